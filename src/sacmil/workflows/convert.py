"""Converts bags of other tools to native bags, and official checkpoints to model folders.

Each bag is read in its own process, because a damaged HDF5 file can crash or hang the library
that reads it. ``convert.csv`` in the target folder holds the status and the source of each bag. A
row "started" means that the run ended before the status was written.
"""

from __future__ import annotations

import csv
import glob
import os
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, cast

from sacmil.atomic import atomic_write, remove_if_abandoned, report_final_path
from sacmil.bag import Bag
from sacmil.csv_text import escape_cells, restore_cell
from sacmil.errors import (
    BagWarning,
    FormatError,
    ModelError,
    ModelFolderError,
    OptionError,
    UnknownModelError,
)
from sacmil.formats import check_spacing, find_bags, find_layout, read_bag, write_bag
from sacmil.parallel import run_each
from sacmil.progress import ProgressCallback, ignore_progress

if TYPE_CHECKING:
    from sacmil.models._reference import LoadedReference

CONVERT_CSV = "convert.csv"


@dataclass(frozen=True, kw_only=True)
class ConversionSettings:
    """How bags are read and written."""

    layout: str | None = None
    """One of list_formats(); detected for each file if None."""
    patch_size: float | None = None
    """Properties that files do not state, as for read_bag; so are the three below."""
    mpp: float | None = None
    stride: float | None = None
    coords: str | None = None
    dtype: str | None = None
    """float16 or float32; as in the file if None."""

    def __str__(self) -> str:
        known = {name: value for name, value in asdict(self).items() if value is not None}
        return " ".join(f"{name}={value}" for name, value in known.items())


@dataclass(frozen=True, kw_only=True)
class ConversionRow:
    """A row of convert.csv."""

    file: str
    slide_id: str
    status: str
    """converted, failed or started; present (written as converted) if there is nothing to do."""
    reason: str = ""
    """Why it failed, or warnings."""
    instances: str = ""
    layout: str = ""
    size: str
    """Bytes of the source; with the next two, shows whether it has changed since."""
    modified_ns: str
    settings: str


class ConversionJob(NamedTuple):
    """One file to convert."""

    source: Path
    target: Path
    settings: ConversionSettings


class ConvertedBag(NamedTuple):
    """Result of a converted file."""

    layout: str
    instances: int
    warnings: str


def convert_bags(
    items: Iterable[Path],
    out: Path,
    settings: ConversionSettings,
    *,
    overwrite: bool = False,
    limit_s: float = 300.0,
    workers: int = 1,
    progress: ProgressCallback = ignore_progress,
) -> list[ConversionRow]:
    """Write every bag as ``<slide_id>.h5``; a bag that cannot be read does not stop the others.

    Args:
        items: files, and folders to search.
        out: folder for native bags and convert.csv.
        settings: how to read and write.
        overwrite: convert again what exists, whatever its source.
        limit_s: seconds one file may take.
        workers: number of bags read at the same time.
        progress: called with (task, done, total).
    """
    sources = find_bags(items, exclude=out)
    older = _read_table(out / CONVERT_CSV)
    plans = (_plan_conversion(file, out, settings, older, overwrite=overwrite) for file in sources)
    rows = {row.file: row for row in plans}
    _write_table(out / CONVERT_CSV, older | rows)
    todo = [row for row in rows.values() if row.status == "started"]
    jobs = {
        row.file: ConversionJob(Path(row.file), _target_path(row, out), settings) for row in todo
    }
    progress("converting", 0, len(jobs))
    outcomes = run_each(convert_bag, jobs.values(), workers=workers, limit_s=limit_s)
    for done, outcome in enumerate(outcomes, start=1):
        row = _finish_row(todo[cast("int", outcome.key)], outcome.value, outcome.failure)
        if outcome.failure:
            _remove_partial(jobs[row.file].target)
        rows[row.file] = row
        _append_row(out / CONVERT_CSV, row)
        progress("converting", done, len(jobs))
    _write_table(out / CONVERT_CSV, older | rows)
    return list(rows.values())


def convert_bag(job: ConversionJob) -> ConvertedBag:
    """Read and write one bag; runs in a worker process."""
    hints = asdict(job.settings)
    dtype, layout = hints.pop("dtype"), hints.pop("layout") or find_layout(job.source)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BagWarning)
        bag = read_bag(job.source, layout=layout, **hints)
        if layout == "native":  # the others are checked whenever they are read
            check_spacing(bag)
        if dtype is not None and bag.features.dtype != dtype:
            bag = _cast_features(bag, dtype)
    if bag.slide_id != job.target.stem:
        raise FormatError(
            f"{job.source}: holds the slide {bag.slide_id!r}; expected a file with the name of "
            "its slide, rename it"
        )
    write_bag(job.target, bag)
    messages = dict.fromkeys(str(w.message) for w in caught if issubclass(w.category, BagWarning))
    return ConvertedBag(layout, len(bag), "; ".join(messages))


def convert_model(
    source: Path, name: str, out: Path, options: Mapping[str, Any], *, overwrite: bool = False
) -> LoadedReference:
    """Write an official checkpoint as a model folder, and return where its options come from.

    Args:
        source: .safetensors, or a file of torch.save with tensors only.
        name: one of list_models().
        out: model folder to write.
        options: options that the shapes do not determine, such as an activation.
        overwrite: replace an existing model.
    """
    from sacmil.models import save_model
    from sacmil.models._reference import read_reference

    if out.exists() and not overwrite:
        raise ModelFolderError(
            f"{out}: exists; expected a new folder. Choose another, or overwrite it"
        )
    checkpoint = (
        _load_safetensors(source) if source.suffix == ".safetensors" else _load_torch_file(source)
    )
    try:
        loaded = read_reference(name, checkpoint, options)
    except (UnknownModelError, OptionError):
        raise
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from error
    save_model(out, loaded.model, notes={"converted_from": source.name})
    return loaded


def _cast_features(bag: Bag, dtype: str) -> Bag:
    import numpy as np

    with np.errstate(over="ignore"):
        features = bag.features.astype(dtype)
    if not np.isfinite(features).all():
        raise FormatError(
            f"{bag.slide_id}: features reach {np.abs(bag.features).max():g}, more than {dtype} can "
            "hold; leave `dtype` out"
        )
    return replace(bag, features=features)


def _plan_conversion(
    source: Path,
    out: Path,
    settings: ConversionSettings,
    older: Mapping[str, ConversionRow],
    *,
    overwrite: bool,
) -> ConversionRow:
    """Return the row of a file to convert, with the status started, present or failed."""
    path = Path(os.path.realpath(source))  # unlike resolve, works for a link to itself
    try:
        facts = source.stat()
    except OSError as error:  # a broken link
        reason = f"{source}: {error.strerror}; copy the file again"
        return ConversionRow(
            file=str(path),
            slide_id=source.stem,
            status="failed",
            reason=reason,
            size="",
            modified_ns="",
            settings=str(settings),
        )
    row = ConversionRow(
        file=str(path),
        slide_id=source.stem,
        status="started",
        size=str(facts.st_size),
        modified_ns=str(facts.st_mtime_ns),
        settings=str(settings),
    )
    target, record = _target_path(row, out), older.get(row.file)
    if target.resolve() == path:
        reason = f"{source}: would be replaced by its own conversion; choose another `out`"
        return replace(row, status="failed", reason=reason)
    if overwrite or not target.exists():
        return row
    if record is None:
        reason = (
            f"{target}: exists and was not made from {source}; replace it with `overwrite=True`"
        )
        return replace(row, status="failed", reason=reason)
    is_same = record.status in ("converted", "present") and all(
        getattr(record, name) == getattr(row, name) for name in ("size", "modified_ns", "settings")
    )
    return replace(record, status="present") if is_same else row


def _target_path(row: ConversionRow, out: Path) -> Path:
    return out / f"{row.slide_id}.h5"


def _finish_row(
    row: ConversionRow, value: ConvertedBag | None, failure: str | None
) -> ConversionRow:
    if value is None:
        reason = str(failure)  # such as a killed process, which does not name the file
        named = reason if row.file in reason else f"{row.file}: {reason}"
        return replace(row, status="failed", reason=named)
    return replace(
        row,
        status="converted",
        reason=value.warnings,
        instances=str(value.instances),
        layout=value.layout,
    )


def _remove_partial(target: Path) -> None:
    """Remove what a worker that was killed while writing left beside the target."""
    for partial in target.parent.glob(f".{glob.escape(target.name)}.*.partial"):
        remove_if_abandoned(partial)


def _read_table(path: Path) -> dict[str, ConversionRow]:
    """Return the last row of each file; ignore a line that a crash cut short."""
    names = {field.name for field in fields(ConversionRow)}
    if not path.is_file():
        return {}
    with _open_csv(path, "r") as file:
        try:
            lines = [line for line in csv.DictReader(file) if set(line) == names]
        except csv.Error:  # not our table any more
            return {}
    rows = (_parse_row(line) for line in lines if None not in line.values())
    return {row.file: row for row in rows}


def _parse_row(line: Mapping[str, str]) -> ConversionRow:
    return ConversionRow(**{name: restore_cell(text) for name, text in line.items()})


def _open_csv(path: Path, mode: str) -> IO[str]:
    # file names need not be UTF-8
    return path.open(mode, newline="", encoding="utf-8", errors="surrogateescape")


def _write_table(path: Path, rows: Mapping[str, ConversionRow]) -> None:
    with atomic_write(path) as partial, _open_csv(partial, "w") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(ConversionRow)])
        writer.writerows(escape_cells(astuple(_to_final_status(row))) for row in rows.values())


def _to_final_status(row: ConversionRow) -> ConversionRow:
    """Return the row as an uninterrupted run would have written it."""
    return replace(row, status="converted") if row.status == "present" else row


def _append_row(path: Path, row: ConversionRow) -> None:
    with report_final_path(path), _open_csv(path, "a") as file:
        csv.writer(file).writerow(escape_cells(astuple(row)))
        file.flush()
        os.fsync(file.fileno())


def _load_safetensors(source: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(source)
    except (SafetensorError, OSError, ValueError) as error:
        raise FormatError(
            f"{source}: cannot be read as safetensors ({error}); copy it again"
        ) from error


def _load_torch_file(source: Path) -> Any:
    from sacmil.formats._torch_file import load

    return load(source)
