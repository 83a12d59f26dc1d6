"""Converts what other tools wrote, ``sacmil convert``: bags, and official checkpoints of models.

Each bag is read in its own process, because a damaged HDF5 file can crash or hang the library
that reads it. ``convert.csv`` in the target folder has a row per bag, with its status and its
source. A row "started" means that the run ended before the status was written.
"""

from __future__ import annotations

import csv
import glob
import math
import numbers
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from sacmil.arguments import ProgressCallback, ignore_progress, list_paths, to_output_folder
from sacmil.atomic import atomic_write, force_to_disk, remove_if_abandoned, report_final_path
from sacmil.bag import Bag
from sacmil.csv_text import escape_cells, restore_cell
from sacmil.errors import (
    FormatError,
    MissingExtraError,
    ModelError,
    OptionError,
    UnknownModelError,
    suggest_names,
)
from sacmil.formats import check_spacing, find_bags, find_layout, list_formats, read_bag, write_bag
from sacmil.parallel import run_each
from sacmil.workflows.inputs import collect_bag_warnings

if TYPE_CHECKING:
    import pandas

    from sacmil.models._reference import LoadedReference

CONVERT_CSV = "convert.csv"
DTYPES = ("float16", "float32")
_MAX_WORKERS = 4


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

    def __post_init__(self) -> None:
        for name, known in (("layout", list_formats()), ("dtype", DTYPES)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise OptionError(f"`{name}={value}`; {suggest_names(value, known)}")
        for name in ("patch_size", "mpp", "stride"):
            if (value := getattr(self, name)) is not None:
                _check_positive(name, value)
                # 512 and 512.0 are the same setting for a later run
                object.__setattr__(self, name, float(value))

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
    size: str = ""
    """Bytes of the source; with the next two, shows whether it has changed since."""
    modified_ns: str = ""
    settings: str


@dataclass(frozen=True)
class ConversionSummary:
    """The bags of one conversion."""

    out: Path
    """The folder of the native bags."""
    rows: Sequence[ConversionRow]
    """One per file, as in convert.csv; what was up to date is ``present``."""

    @property
    def counts(self) -> dict[str, int]:
        """Number of files by status: converted, present and failed."""
        found = Counter(row.status for row in self.rows)
        return {status: found[status] for status in ("converted", "present", "failed")}

    @property
    def failures(self) -> dict[str, str]:
        """Reason of each failure, by slide."""
        return {row.slide_id: row.reason for row in self.rows if row.status == "failed"}

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas frame with a row per file; ConversionRow describes the columns."""
        import pandas

        frame = pandas.DataFrame(self.rows, columns=[field.name for field in fields(ConversionRow)])
        return frame.assign(instances=pandas.to_numeric(frame["instances"], errors="coerce"))


class ConversionJob(NamedTuple):
    """One file to convert."""

    row: ConversionRow
    target: Path
    settings: ConversionSettings


def convert(
    items: str | Path | Iterable[str | Path],
    out: str | Path,
    *,
    layout: str | None = None,
    patch_size: float | None = None,
    mpp: float | None = None,
    stride: float | None = None,
    coords: str | Path | None = None,
    dtype: str | None = None,
    overwrite: bool = False,
    limit_s: float = 300.0,
    workers: int | None = None,
    on_progress: ProgressCallback = ignore_progress,
) -> ConversionSummary:
    """Write bags of other tools as native bags, ``<slide_id>.h5``.

    A bag that cannot be read does not stop the others: the summary and convert.csv give the reason.
    Bags that are up to date are kept.

    Args:
        items: a file, a folder that is searched recursively, or several.
        out: folder for native bags and convert.csv.
        layout: one of list_formats(); None detects it for each file.
        patch_size: side of a tile in level-0 pixels, if files do not state it.
        mpp: microns per level-0 pixel, if files do not state it.
        stride: level-0 pixels between tiles, if they overlap or leave gaps.
        coords: coordinate file, or a folder with one per slide.
        dtype: float16 or float32; None keeps that of the file.
        overwrite: convert again what exists, whatever its source.
        limit_s: seconds one file may take.
        workers: number of bags read at the same time; None chooses by cores.
        on_progress: called with (task, done, total).

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from sacmil import Bag, write_bag
        >>> bag = Bag("slide", features=[[1.0], [2.0]], coords=[[0, 0], [0, 256]], patch_size=256)
        >>> with TemporaryDirectory() as folder:
        ...     write_bag(f"{folder}/slide.h5", bag)
        ...     summary = convert(f"{folder}/slide.h5", f"{folder}/bags", dtype="float16")
        >>> summary.counts, summary.failures
        ({'converted': 1, 'present': 0, 'failed': 0}, {})
    """
    located = None if coords is None else str(Path(coords).resolve())
    settings = ConversionSettings(
        layout=layout, patch_size=patch_size, mpp=mpp, stride=stride, coords=located, dtype=dtype
    )
    chosen = min(_MAX_WORKERS, os.cpu_count() or 1) if workers is None else workers
    _check_positive("limit_s", limit_s)
    _check_positive("workers", chosen)
    given, target = list_paths("items", items), to_output_folder(out)
    _check_exist([*given, *([] if located is None else [Path(located)])])
    older = read_table(target / CONVERT_CSV)
    planned = [
        _plan_conversion(source, target, settings, older, overwrite=overwrite)
        for source in find_bags(given, exclude=target)
    ]
    rows = _convert_bags(planned, older, target, settings, chosen, limit_s, on_progress)
    return ConversionSummary(target, rows)


def _convert_bags(
    planned: Sequence[ConversionRow],
    older: Mapping[str, ConversionRow],
    out: Path,
    settings: ConversionSettings,
    workers: int,
    limit_s: float,
    on_progress: ProgressCallback,
) -> list[ConversionRow]:
    """Convert the bags whose rows are started; return every row with its final status."""
    table, rows = out / CONVERT_CSV, {row.file: row for row in planned}
    write_table(table, {**older, **rows})
    started = [row for row in rows.values() if row.status == "started"]
    jobs = [ConversionJob(row, _target_path(row, out), settings) for row in started]
    on_progress("converting", 0, len(jobs))
    outcomes = run_each(convert_bag, jobs, workers=workers, limit_s=limit_s)
    for done, outcome in enumerate(outcomes, start=1):
        row = outcome.value or _fail_job(jobs[outcome.key], str(outcome.failure))
        rows[row.file] = row
        append_row(table, row)
        on_progress("converting", done, len(jobs))
    write_table(table, {**older, **rows})
    return list(rows.values())


def _check_positive(name: str, value: object) -> None:
    if not isinstance(value, numbers.Real) or not 0 < float(value) < math.inf:
        raise OptionError(f"`{name}` is {value!r}; expected a number above zero")


def _check_exist(paths: Sequence[Path]) -> None:
    for path in paths:
        if not path.exists():
            raise OptionError(f"{path}: does not exist; check the path")


def convert_bag(job: ConversionJob) -> ConversionRow:
    """Read and write one bag, and return its row; runs in a worker process."""
    source, hints = Path(job.row.file), asdict(job.settings)
    dtype, layout = hints.pop("dtype"), hints.pop("layout") or find_layout(source)
    with collect_bag_warnings() as messages:
        bag = read_bag(source, layout=layout, **hints)
        if layout == "native":  # the others are checked whenever they are read
            check_spacing(bag)
        if dtype is not None and bag.features.dtype != dtype:
            bag = _cast_features(bag, dtype)
    if bag.slide_id != job.target.stem:
        raise FormatError(
            f"{source}: holds the slide {bag.slide_id!r}; expected a file with the name of "
            "its slide, rename it"
        )
    write_bag(job.target, bag)
    found = {"layout": layout, "instances": str(len(bag)), "reason": "; ".join(messages)}
    return replace(job.row, status="converted", **found)


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
    row = ConversionRow(
        file=str(path), slide_id=source.stem, status="started", settings=str(settings)
    )
    try:
        facts = source.stat()
    except OSError as error:  # a broken link
        return _fail(row, f"{source}: {error.strerror}; copy the file again")
    row = replace(row, size=str(facts.st_size), modified_ns=str(facts.st_mtime_ns))
    target, record = _target_path(row, out), older.get(row.file)
    if target.resolve() == path:
        return _fail(
            row, f"{source}: would be replaced by its own conversion; choose another `out`"
        )
    if overwrite or not target.exists():
        return row
    if record is None:
        return _fail(
            row,
            f"{target}: exists and was not made from {source}; replace it with `overwrite=True`",
        )
    is_same = record.status in ("converted", "present") and all(
        getattr(record, name) == getattr(row, name) for name in ("size", "modified_ns", "settings")
    )
    return replace(record, status="present") if is_same else row


def _fail(row: ConversionRow, reason: str) -> ConversionRow:
    return replace(row, status="failed", reason=reason)


def _target_path(row: ConversionRow, out: Path) -> Path:
    return out / f"{row.slide_id}.h5"


def _fail_job(job: ConversionJob, reason: str) -> ConversionRow:
    """Return the row of a failure; remove what a worker that was killed left beside the target."""
    for partial in job.target.parent.glob(f".{glob.escape(job.target.name)}.*.partial"):
        remove_if_abandoned(partial)
    file = job.row.file  # the reason of a killed process does not name it
    return _fail(job.row, reason if file in reason else f"{file}: {reason}")


def read_table(path: Path) -> dict[str, ConversionRow]:
    """Return the last row of each file; ignore a line that a crash cut short."""
    names = {field.name for field in fields(ConversionRow)}
    if not path.is_file():
        return {}
    with _open_csv(path, "r") as file:
        try:
            lines = [line for line in csv.DictReader(file) if set(line) == names]
        except csv.Error:  # not our table any more
            return {}
    rows = (
        ConversionRow(**{name: restore_cell(text) for name, text in line.items()})
        for line in lines
        if None not in line.values()
    )
    return {row.file: row for row in rows}


def _open_csv(path: Path, mode: str) -> IO[str]:
    # file names need not be UTF-8
    return path.open(mode, newline="", encoding="utf-8", errors="surrogateescape")


def write_table(path: Path, rows: Mapping[str, ConversionRow]) -> None:
    """Write the rows atomically; a row "present" is written as converted."""
    with atomic_write(path) as partial, _open_csv(partial, "w") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(ConversionRow)])
        for row in rows.values():  # as an uninterrupted run would have written them
            final = replace(row, status="converted") if row.status == "present" else row
            writer.writerow(escape_cells(astuple(final)))


def append_row(path: Path, row: ConversionRow) -> None:
    """Append a row, and force it to disk."""
    with report_final_path(path):
        with _open_csv(path, "a") as file:
            csv.writer(file).writerow(escape_cells(astuple(row)))
        force_to_disk(path)


def convert_model(
    checkpoint: str | Path,
    out: str | Path,
    *,
    model: str,
    options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> LoadedReference:
    """Write an official checkpoint as a model folder.

    Args:
        checkpoint: .safetensors, or a file of torch.save with tensors only.
        out: model folder to write.
        model: one of list_models().
        options: options that the shapes do not determine, such as an activation.
        overwrite: replace an existing model.

    Returns:
        The model, and which options were read from the file, given or assumed.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import torch
        >>> shapes = {
        ...     "attention.0.weight": (3, 6),
        ...     "attention.0.bias": (3,),
        ...     "attention.2.weight": (1, 3),
        ...     "attention.2.bias": (1,),
        ...     "classifier.0.weight": (1, 6),
        ...     "classifier.0.bias": (1,),
        ... }
        >>> with TemporaryDirectory() as folder:
        ...     official = {name: torch.zeros(shape) for name, shape in shapes.items()}
        ...     torch.save(official, f"{folder}/abmil.pt")
        ...     converted = convert_model(f"{folder}/abmil.pt", f"{folder}/model", model="abmil")
        >>> converted.from_checkpoint["in_dim"], converted.from_checkpoint["attention_dim"]
        (6, 3)
    """
    try:
        from sacmil.models import save_model
        from sacmil.models._reference import read_reference
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("torch", "sacmil.convert_model") from error

    source, target = Path(checkpoint), Path(out)
    if not source.is_file():
        raise OptionError(f"{source}: is not a file; expected one checkpoint")
    if target.exists() and not overwrite:
        raise OptionError(f"`out` {target} exists; choose another folder, or add `overwrite=True`")
    parameters = _load_checkpoint(source)
    try:
        loaded = read_reference(model, parameters, options or {})
    except (UnknownModelError, OptionError):
        raise
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from error
    save_model(target, loaded.model, notes={"converted_from": source.name})
    return loaded


def _load_checkpoint(source: Path) -> Any:
    if source.suffix != ".safetensors":
        from sacmil.formats._files import load_tensors

        return load_tensors(source)
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(source)
    except (SafetensorError, OSError, ValueError) as error:
        raise FormatError(
            f"{source}: cannot be read as safetensors ({error}); copy it again"
        ) from error
