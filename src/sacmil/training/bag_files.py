"""The files a run is made from: every bag read once and hashed before anything is trained."""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from sacmil.atomic import whole_file
from sacmil.bag import SAME_SIZE, Bag
from sacmil.cohorts.bags import odd_ones, other_slide
from sacmil.csv_text import escape_cells, restore_cells
from sacmil.errors import CohortError, RunError, SacMILError
from sacmil.formats import read_bag

BAGS = "bags.csv"

_BLOCK = 2**20


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
    found: dict[str, _Known] = {}
    problems: list[str] = []
    with ThreadPoolExecutor() as pool:
        looked_at = pool.map(lambda slide_id: _look(bags[slide_id], known.get(slide_id)), bags)
        for number, (slide_id, facts) in enumerate(zip(bags, looked_at, strict=True), start=1):
            if isinstance(facts, _Known):
                found[slide_id] = facts
            else:
                problems.append(facts)
            tell("checking bags", number, len(bags))
    problems += _mixed_up(bags, found)
    if problems:
        raise CohortError("bags", problems)
    _check_same(out, known, found)
    _write_hashes(out / BAGS, known | found)
    return {slide_id: facts.sha256 for slide_id, facts in found.items()}


def _look(path: Path, before: _Known | None) -> _Known | str:
    """What a file is now, or why it is no bag."""
    try:
        facts = path.stat()
        now = (str(path), str(facts.st_size), str(facts.st_mtime_ns))
        if before and before[:3] == now:
            return before
        return _Known(*now, _sha256(path), *_told(read_bag(path)))
    except SacMILError as error:
        text = " ".join(str(error).split())
        return text if path.name in text else f"{path}: {text}"
    except OSError as error:
        return f"{path}: {error.strerror or error}"


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
