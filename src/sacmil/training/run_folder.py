"""What a run folder says of how it was made: config.yaml, splits, hashes of bags, versions."""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from sacmil.alone import alone_in, remove_leftovers
from sacmil.atomic import whole_file
from sacmil.cohorts.split_files import write_splits
from sacmil.cohorts.splits import Fold
from sacmil.cohorts.table import Cohort
from sacmil.errors import RunError
from sacmil.installation import devices, versions
from sacmil.training.config import Config

CONFIG = "config.yaml"
PROVENANCE = "provenance.json"
BAGS = "bags.csv"

_BLOCK = 2**20


@contextmanager
def open_run(out: Path, cohort: Cohort, folds: Sequence[Fold]) -> Iterator[None]:
    """Work in a run folder: a new one, or one there of the same cohort and folds.

    Models may be added to a run; its slides, labels and folds stay what they are. Two commands
    cannot work in one run at the same time.
    """
    before = _read_provenance(out)
    with alone_in(out, what="run"):
        remove_leftovers(out)
        _open(out, cohort, folds, before)
        yield


def _open(out: Path, cohort: Cohort, folds: Sequence[Fold], before: dict[str, Any]) -> None:
    facts = {"cohort": cohort.sha256, "folds": _hash([list(map(list, f)) for f in folds])}
    for name, value in facts.items():
        if before and before.get(name) != value:
            raise RunError(
                f"{out}: is a run over other {name} (they differ from {PROVENANCE} there); choose "
                "another --out"
            )
    write_splits(out / "splits", folds, cohort)
    with whole_file(out / PROVENANCE) as partial:
        whole = {**facts, "versions": versions(), "devices": devices()}
        partial.write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def _read_provenance(out: Path) -> dict[str, Any]:
    try:
        found = json.loads((out / PROVENANCE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        if out.is_dir() and any(out.iterdir()):
            raise RunError(
                f"{out}: holds files and is no run folder (no {PROVENANCE}); choose another --out"
            ) from None
        return {}
    except (OSError, ValueError) as error:
        raise RunError(f"{out / PROVENANCE}: cannot be read ({error})") from error
    return found if isinstance(found, dict) else {}


def write_configs(out: Path, configs: Mapping[str, Config]) -> None:
    """By name, what was asked for; what the file holds of other models stays."""
    known: dict[str, Any] = {}
    path = out / CONFIG
    if path.is_file():
        known = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    known |= {name: config.to_dict() for name, config in configs.items()}
    with whole_file(path) as partial:
        partial.write_text(yaml.safe_dump(known, sort_keys=False), encoding="utf-8")


class _Known(NamedTuple):
    path: str
    size: str
    changed: str
    sha256: str


def hash_bags(
    out: Path, bags: Mapping[str, Path], tell: Callable[[str, int, int], None]
) -> dict[str, str]:
    """SHA-256 of every bag's bytes by slide id; those of unchanged files are read from bags.csv."""
    known = _read_hashes(out / BAGS)

    def hashed(slide_id: str) -> _Known:
        path = bags[slide_id]
        facts = path.stat()
        now = (str(path), str(facts.st_size), str(facts.st_mtime_ns))
        before = known.get(slide_id)
        return before if before and before[:3] == now else _Known(*now, _sha256(path))

    found = {}
    with ThreadPoolExecutor() as pool:
        for slide_id, facts in zip(bags, pool.map(hashed, bags), strict=True):
            found[slide_id] = facts
            tell("hashing bags", len(found), len(bags))
    _write_hashes(out / BAGS, known | found)
    return {slide_id: facts.sha256 for slide_id, facts in found.items()}


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def _read_hashes(path: Path) -> dict[str, _Known]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return {row[0]: _Known(*row[1:]) for row in list(csv.reader(file))[1:]}
    except FileNotFoundError:
        return {}
    except (OSError, TypeError, IndexError, UnicodeDecodeError, csv.Error):
        return {}  # it only saves time


def _write_hashes(path: Path, known: Mapping[str, _Known]) -> None:
    with whole_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["slide_id", *_Known._fields])
        writer.writerows([slide_id, *facts] for slide_id, facts in known.items())
