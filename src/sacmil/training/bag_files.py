"""The files a run is made from: every bag read once and hashed before anything is trained.

They are read in worker processes with the limits of ``sacmil predict`` (limits.py): a damaged file
can crash or hang the library that reads it.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from sacmil.atomic import whole_file
from sacmil.bag import SAME_SIZE, Bag
from sacmil.cohorts.bags import odd_ones, other_slide
from sacmil.csv_text import escape_cells, restore_cells
from sacmil.errors import BagWarning, CohortError, RunError, SacMILError
from sacmil.formats import read_bag
from sacmil.limits import BAG_LIMIT_S
from sacmil.parallel import Outcome, run_each

BAGS = "bags.csv"

_BLOCK = 2**20
_MOST_WORKERS = 8
"""Processes that inspect bags: a disk serves no more of them faster."""
_BAGS_PER_WORKER = 16
"""Fewer are read faster than another process starts."""


class _Known(NamedTuple):
    path: str
    size: str
    changed: str
    sha256: str
    slide: str
    """That the bag says it is of."""
    encoder: str
    """Its name and the hash of its weights; empty where either is not told."""
    patch_um: str
    """Side of a tile on the glass, or in pixels as "115px"; empty where it is unknown."""


def check_and_hash(
    out: Path, bags: Mapping[str, Path], tell: Callable[[str, int, int], None]
) -> dict[str, str]:
    """SHA-256 of every bag's bytes by slide id; all that is wrong with bags in one error.

    Files that bags.csv of the run knows, and that have not been touched since, are not read again.
    A run over other bags is refused: its models would not be comparable.
    """
    known = _read_hashes(out / BAGS)
    unchanged = {name for name, path in bags.items() if name in known and _is_at(path, known[name])}
    changed = [name for name in bags if name not in unchanged]
    results: dict[str, _Known | str] = {name: known[name] for name in unchanged}
    tell("checking bags", len(unchanged), len(bags))
    for done, outcome in enumerate(_inspect_each([bags[name] for name in changed]), start=1):
        name = changed[outcome.key]
        results[name] = _result(bags[name], outcome)
        tell("checking bags", len(unchanged) + done, len(bags))
    found = {name: result for name in bags if isinstance(result := results[name], _Known)}
    problems = [result for name in bags if isinstance(result := results[name], str)]
    problems += _mixed_up(bags, found)
    if problems:
        raise CohortError("bags", problems)
    _check_same(out, known, found)
    _write_hashes(out / BAGS, known | found)
    return {slide_id: facts.sha256 for slide_id, facts in found.items()}


def _is_at(path: Path, known: _Known) -> bool:
    """Whether a file is the one that was inspected."""
    try:
        return _version(path) == known[:3]
    except OSError:
        return False


def _version(path: Path) -> tuple[str, str, str]:
    facts = path.stat()
    return str(path), str(facts.st_size), str(facts.st_mtime_ns)


class Inspection(NamedTuple):
    """What is known of a bag, and the warnings of reading it."""

    facts: _Known
    warnings: list[str]


def inspect_bag(path: Path) -> Inspection:
    """Read and hash one bag: what runs in a worker process."""
    version = _version(path)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BagWarning)
        bag = read_bag(path)
    messages = [str(w.message) for w in caught if issubclass(w.category, BagWarning)]
    return Inspection(_Known(*version, _sha256(path), *_told(bag)), messages)


def read_width(path: Path) -> int | None:
    """Read the feature width of one bag; None where it cannot be read."""
    if path.suffix == ".pt":  # no HDF5, and a worker process would load torch for it
        with contextlib.suppress(SacMILError):
            return inspect_width(path)
        return None
    (outcome,) = run_each(inspect_width, [path], limit_s=BAG_LIMIT_S)
    width: int | None = outcome.value
    return width


def inspect_width(path: Path) -> int:
    """Read the feature width of one bag: what runs in a worker process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", BagWarning)  # the inspection of all bags repeats them
        return read_bag(path).dim


def _inspect_each(paths: Sequence[Path]) -> Iterator[Outcome]:
    if not paths:
        return iter(())
    workers = min(-(-len(paths) // _BAGS_PER_WORKER), _MOST_WORKERS, os.cpu_count() or 1)
    return run_each(inspect_bag, paths, workers=workers, limit_s=BAG_LIMIT_S)


def _result(path: Path, outcome: Outcome) -> _Known | str:
    """What is known of a bag, or why there is nothing."""
    if outcome.failure is not None:
        text = " ".join(outcome.failure.split())
        return text if path.name in text else f"{path}: {text}"
    for message in outcome.value.warnings:
        warnings.warn(message, BagWarning, stacklevel=2)
    facts: _Known = outcome.value.facts
    return facts


def _told(bag: Bag) -> tuple[str, str, str]:
    name, digest = bag.encoder or ("", None)
    encoder = f"{name} {digest}" if digest else ""
    if bag.patch_size_px is not None:
        return bag.slide_id, encoder, f"{bag.patch_size_px:g}px"
    return bag.slide_id, encoder, "" if bag.patch_size_um is None else f"{bag.patch_size_um:.6g}"


def _mixed_up(bags: Mapping[str, Path], found: Mapping[str, _Known]) -> Iterator[str]:
    """Bags that are not those of their slides, or were not made as the others were."""
    first: dict[str, str] = {}
    for slide_id, facts in found.items():
        path = bags[slide_id]
        twin = first.setdefault(facts.sha256, slide_id)
        if twin != slide_id:
            yield f"{path}: is the same file as {bags[twin]}, byte for byte; expected another slide"
        elif wrong := other_slide(path, slide_id, facts.slide):
            yield wrong
    yield from odd_ones(bags, {name: facts.encoder for name, facts in found.items()})
    yield from odd_ones(bags, _sizes(found))


def _sizes(found: Mapping[str, _Known]) -> dict[str, str]:
    """How wide tiles are, in words; what differs a little is called as the one in the middle."""
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
        name: f"tiles of {usual if abs(width / usual - 1) <= SAME_SIZE else width:.4g} µm"
        for name, width in widths.items()
    }


def _check_same(out: Path, known: Mapping[str, _Known], found: Mapping[str, _Known]) -> None:
    other = [s for s, facts in found.items() if s in known and known[s].sha256 != facts.sha256]
    if other:
        raise RunError(
            f"{out}: is a run over other bags ({len(other)} differ from {BAGS} there, such as "
            f"{found[other[0]].path}); choose another --out"
        )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _read_hashes(path: Path) -> dict[str, _Known]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = [restore_cells(row) for row in csv.reader(file)]
            return {row[0]: _Known(*row[1:]) for row in rows[1:]}
    except FileNotFoundError:
        return {}
    except (OSError, TypeError, IndexError, UnicodeDecodeError, csv.Error):
        return {}  # it only saves time


def _write_hashes(path: Path, known: Mapping[str, _Known]) -> None:
    with whole_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["slide_id", *_Known._fields])
        writer.writerows(escape_cells([slide_id, *facts]) for slide_id, facts in known.items())
