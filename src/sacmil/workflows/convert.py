"""Converts bags of other tools to native bags: ``sacmil convert``.

Each bag is read in its own process, because a damaged HDF5 file can crash or hang the library
that reads it. ``convert.csv`` in the target folder holds the status and the source of each bag.
"""

from __future__ import annotations

import glob
import math
import numbers
import os
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple, cast

from sacmil.arguments import list_paths
from sacmil.atomic import remove_if_abandoned
from sacmil.bag import Bag
from sacmil.errors import BagWarning, FormatError, OptionError, suggest_names
from sacmil.formats import check_spacing, find_bags, find_layout, list_formats, read_bag, write_bag
from sacmil.parallel import run_each
from sacmil.progress import ProgressCallback, ignore_progress
from sacmil.workflows.conversion_table import (
    CONVERT_CSV,
    ConversionRow,
    ConversionSummary,
    append_row,
    read_table,
    write_table,
)

DTYPES = ("float16", "float32")


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
    settings = ConversionSettings(
        layout=layout,
        patch_size=patch_size,
        mpp=mpp,
        stride=stride,
        coords=None if coords is None else str(Path(coords).resolve()),
        dtype=dtype,
    )
    _check_positive("limit_s", limit_s)
    chosen = min(4, os.cpu_count() or 1) if workers is None else workers
    _check_positive("workers", chosen)
    given = list_paths("items", items)
    target = Path(out)
    _check_paths(given, target, settings.coords)
    sources, table = find_bags(given, exclude=target), target / CONVERT_CSV
    older = read_table(table)
    plans = (_plan_conversion(one, target, settings, older, overwrite=overwrite) for one in sources)
    rows = {row.file: row for row in plans}
    write_table(table, older | rows)
    started = [row for row in rows.values() if row.status == "started"]
    jobs = [ConversionJob(Path(row.file), _target_path(row, target), settings) for row in started]
    on_progress("converting", 0, len(jobs))
    outcomes = run_each(convert_bag, jobs, workers=chosen, limit_s=limit_s)
    for done, outcome in enumerate(outcomes, start=1):
        number = cast("int", outcome.key)
        row = _finish_row(started[number], outcome.value, outcome.failure)
        if outcome.failure:
            _remove_partial(jobs[number].target)
        rows[row.file] = row
        append_row(table, row)
        on_progress("converting", done, len(jobs))
    write_table(table, older | rows)
    return ConversionSummary(target, list(rows.values()))


def _check_positive(name: str, value: object) -> None:
    if not isinstance(value, numbers.Real) or not 0 < float(value) < math.inf:
        raise OptionError(f"`{name}` is {value!r}; expected a number above zero")


def _check_paths(items: Sequence[Path], out: Path, coords: str | None) -> None:
    if out.exists() and not out.is_dir():
        raise OptionError(f"`out` {out} is a file; expected a folder")
    for path in [*items, *([] if coords is None else [Path(coords)])]:
        if not path.exists():
            raise OptionError(f"{path}: does not exist; check the path")


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
