"""Checks of the input files of a run: every bag is read, hashed and planned before training.

Bags are read in worker processes with the limits of ``sacmil predict`` (limits.py): a damaged file
can crash or hang the library that reads it. Workers import this module, which must not load torch.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import os
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sacmil.arguments import ProgressCallback
from sacmil.atomic import atomic_write
from sacmil.bag import TILE_SIZE_TOLERANCE, Bag
from sacmil.cohorts.bags import describe_slide_mismatch, find_outliers
from sacmil.csv_text import escape_cells, restore_cells
from sacmil.errors import BagWarning, CohortError, RunError, SacMILError
from sacmil.formats import read_bag
from sacmil.formats.native import note_verified
from sacmil.limits import BAG_LIMIT_S
from sacmil.parallel import TaskOutcome, run_each
from sacmil.plans import PlanFolder, Planner

BAGS_FILE = "bags.csv"
PLAN_FOLDER = ".plans"
"""In the run folder, until the run ends."""
_MAX_WORKERS = 16
"""Processes that inspect bags; more do not read faster from one disk."""
_BAGS_PER_WORKER = 16
"""Reading fewer takes less time than starting another process."""


class _BagRecord(NamedTuple):
    path: str
    size: str
    changed: str
    sha256: str
    slide: str
    """Slide id stored in the bag."""
    encoder: str
    """Name and hash of the weights; empty if either is unknown."""
    patch_um: str
    """Side of a tile on the glass, or in pixels as "115px"; empty if unknown."""


def check_and_hash_bags(
    out: Path,
    bags: Mapping[str, Path],
    on_progress: ProgressCallback,
    planners: Sequence[Planner] = (),
) -> dict[str, str]:
    """Return the SHA-256 of every bag by slide id; one error lists all problems.

    Files listed in bags.csv of the run and unchanged since are not read again. A run over other
    bags is rejected: its models would not be comparable.

    Args:
        out: the run folder.
        bags: files by slide id.
        on_progress: called with the number of bags checked.
        planners: make plans of the bags that are read, for the models to be trained.
    """
    known = _read_records(out / BAGS_FILE)
    unchanged = {
        name for name, path in bags.items() if name in known and _is_unchanged(path, known[name])
    }
    changed = [name for name in bags if name not in unchanged]
    results: dict[str, _BagRecord | str] = {name: known[name] for name in unchanged}
    on_progress("checking bags", len(unchanged), len(bags))
    plans = _Plans(PlanFolder(out / PLAN_FOLDER), tuple(planners))
    inspected = _inspect_bags([_BagToInspect(bags[name], plans) for name in changed])
    for done, outcome in enumerate(inspected, start=1):
        name = changed[outcome.key]
        results[name] = _get_record_or_error(bags[name], outcome)
        on_progress("checking bags", len(unchanged) + done, len(bags))
    found = {name: result for name in bags if isinstance(result := results[name], _BagRecord)}
    problems = [result for name in bags if isinstance(result := results[name], str)]
    problems += _find_mismatched_bags(bags, found)
    if problems:
        raise CohortError("bags", problems)
    _check_same_bags(out, known, found)
    _write_records(out / BAGS_FILE, known | found)
    return {slide_id: facts.sha256 for slide_id, facts in found.items()}


def _is_unchanged(path: Path, record: _BagRecord) -> bool:
    """Whether a file has not changed since it was inspected."""
    try:
        return _read_file_version(path) == record[:3]
    except OSError:
        return False


def _read_file_version(path: Path) -> tuple[str, str, str]:
    facts = path.stat()
    return str(path), str(facts.st_size), str(facts.st_mtime_ns)


class _Plans(NamedTuple):
    """Plans to make, and where they are stored."""

    folder: PlanFolder
    planners: tuple[Planner, ...]


class _BagToInspect(NamedTuple):
    path: Path
    plans: _Plans


def inspect_bag(task: _BagToInspect) -> tuple[_BagRecord, list[str]]:
    """Read, hash and plan one bag; return its record and warnings. Runs in a worker process."""
    path = task.path
    version = _read_file_version(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BagWarning)
        bag = read_bag(path)
    messages = [str(w.message) for w in caught if issubclass(w.category, BagWarning)]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    for planner in task.plans.planners:
        with contextlib.suppress(SacMILError, MemoryError):  # training makes it, or says why not
            task.plans.folder.make(planner, bag.patch_coords, bag.features)
    return _BagRecord(*version, digest, *_describe_origin(bag)), messages


def read_width(path: Path) -> int | None:
    """Read the feature width of one bag; None if it cannot be read."""
    if path.suffix == ".pt":  # no HDF5, and a worker process would load torch for it
        with contextlib.suppress(SacMILError):
            return inspect_width(path)
        return None
    (outcome,) = run_each(inspect_width, [path], limit_s=BAG_LIMIT_S)
    width: int | None = outcome.value
    return width


def inspect_width(path: Path) -> int:
    """Read the feature width of one bag; runs in a worker process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BagWarning)  # the inspection of all bags repeats them
        return read_bag(path).dim


def _inspect_bags(bags: Sequence[_BagToInspect]) -> Iterator[TaskOutcome]:
    if not bags:
        return iter(())
    workers = min(-(-len(bags) // _BAGS_PER_WORKER), _MAX_WORKERS, os.cpu_count() or 1)
    return run_each(inspect_bag, bags, workers=workers, limit_s=BAG_LIMIT_S)


def _get_record_or_error(path: Path, outcome: TaskOutcome) -> _BagRecord | str:
    """Return the record of a bag, or an error message."""
    if outcome.failure is not None:
        text = " ".join(outcome.failure.split())
        return text if path.name in text else f"{path}: {text}"
    record: _BagRecord
    record, messages = outcome.value
    if _is_unchanged(path, record):
        note_verified(path)
    for message in messages:
        warnings.warn(message, BagWarning, stacklevel=2)
    return record


def _describe_origin(bag: Bag) -> tuple[str, str, str]:
    name, digest = bag.encoder or ("", None)
    encoder = f"{name} {digest}" if digest else ""
    if bag.patch_size_px is not None:
        return bag.slide_id, encoder, f"{bag.patch_size_px:g}px"
    return bag.slide_id, encoder, "" if bag.patch_size_um is None else f"{bag.patch_size_um:.6g}"


def _find_mismatched_bags(
    bags: Mapping[str, Path], found: Mapping[str, _BagRecord]
) -> Iterator[str]:
    """List duplicates, bags of other slides, and bags extracted differently from the others."""
    first: dict[str, str] = {}
    for slide_id, facts in found.items():
        path = bags[slide_id]
        twin = first.setdefault(facts.sha256, slide_id)
        if twin != slide_id:
            yield f"{path}: is the same file as {bags[twin]}, byte for byte; expected another slide"
        elif wrong := describe_slide_mismatch(path, slide_id, facts.slide):
            yield wrong
    yield from find_outliers(bags, {name: facts.encoder for name, facts in found.items()})
    yield from find_outliers(bags, _describe_tile_sizes(found))


def _describe_tile_sizes(found: Mapping[str, _BagRecord]) -> dict[str, str]:
    """Describe tile sizes in words; sizes within the tolerance are given as the median."""
    known = {name: facts.patch_um for name, facts in found.items() if facts.patch_um}
    in_pixels = {
        name: f"tiles of {side.removesuffix('px')} pixels of unknown µm"
        for name, side in known.items()
        if side.endswith("px")
    }
    widths = {name: float(side) for name, side in known.items() if name not in in_pixels}
    if not widths:
        return in_pixels
    usual = sorted(widths.values())[len(widths) // 2]
    return in_pixels | {
        name: f"tiles of {usual if abs(width / usual - 1) <= TILE_SIZE_TOLERANCE else width:.4g} µm"
        for name, width in widths.items()
    }


def _check_same_bags(
    out: Path, known: Mapping[str, _BagRecord], found: Mapping[str, _BagRecord]
) -> None:
    other = [s for s, facts in found.items() if s in known and known[s].sha256 != facts.sha256]
    if other:
        raise RunError(
            f"{out}: is a run over other bags ({len(other)} differ from {BAGS_FILE} there, such as "
            f"{found[other[0]].path}); choose another `out`"
        )


def _read_records(path: Path) -> dict[str, _BagRecord]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [restore_cells(row) for row in csv.reader(file)]
            return {row[0]: _BagRecord(*row[1:]) for row in rows[1:]}
    except (OSError, TypeError, IndexError, UnicodeDecodeError, csv.Error):
        return {}  # the file only saves time


def _write_records(path: Path, known: Mapping[str, _BagRecord]) -> None:
    with atomic_write(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["slide_id", *_BagRecord._fields])
        writer.writerows(escape_cells([slide_id, *facts]) for slide_id, facts in known.items())
