"""Past results of the studies are whole: files, rows and the metrics recorded with them."""

from __future__ import annotations

import csv
import gzip
import hashlib
import re
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from sacmil.metrics.classification import METRICS
from sacmil.results import read_predictions

RESULTS = Path(__file__).parents[2] / "studies" / "results"
LIMIT = 8_500_000
"""Bytes of all files together."""
TOLERANCE = 1e-6
"""Metrics are recorded with six digits."""
LARGEST_DIFFERENCE = 0.0401
"""Of coarse AUCs, which is two pairs of fifty."""
COARSE = {
    "ablation/development": 35,
    "colon-and-breast/first-confirmation": 1,
    "idc/development": 3,
    "idc/first-confirmation": 4,
    "seed-variance/confirmation": 1,
    "synthetic-long-bags/confirmation": 2,
}
"""Runs whose recorded AUC differs from that of the predictions by more than rounding explains.

Probably it was computed from single-precision probabilities, of which more are equal."""

Row = dict[str, str]


def read_rows(file: Path) -> list[Row]:
    opener = gzip.open if file.suffix == ".gz" else open
    with opener(file, "rt", newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def count_rows(file: Path) -> int:
    with gzip.open(file, "rt", newline="", encoding="utf-8") as stream:
        return sum(1 for _ in csv.reader(stream)) - 1


MANIFEST = read_rows(RESULTS / "manifest.csv")
TABLES = [
    row
    for row in MANIFEST
    if not row["file"].endswith("runs.csv.gz") and not row["file"].startswith("exploration/")
]
"""Of the files with predictions."""


def find_runs(file: Path) -> dict[tuple[str, int, int], Row]:
    """Return the finished runs that a file holds the predictions of, by model, fold and seed."""
    return {
        (row["model"], int(row["fold"]), int(row["seed"])): row
        for row in read_rows(file.with_name("runs.csv.gz"))
        if row["role"] == "run"
        and not row["failure"]
        and re.sub(r"[^a-z0-9_]+", "-", row["task"].lower()) == file.name.removesuffix(".csv.gz")
    }


def measure_ties(labels: npt.NDArray[np.int64], scores: npt.NDArray[np.float64]) -> float:
    """Return by how much the AUC may differ if equal scores are not equal before rounding."""
    positive, negative = scores[labels == 1], scores[labels == 0]
    equal = (positive[:, None] == negative).sum()
    return float(equal) / max(2 * len(positive) * len(negative), 1)


def check_table(file: Path) -> int:
    """Check metrics of the predictions run by run; return how many recorded AUCs are coarser."""
    runs = find_runs(file)
    found = read_predictions(file)
    rows = defaultdict(list)
    keys = zip(found.model.tolist(), found.fold.tolist(), found.seed.tolist(), strict=True)
    for number, key in enumerate(keys):
        rows[key].append(number)
    assert rows.keys() == runs.keys()
    coarse = 0
    for key, numbers in rows.items():
        labels, probabilities = found.label[numbers], found.probabilities[numbers]
        auc, accuracy = (METRICS[name](labels, probabilities) for name in ("auc", "accuracy"))
        assert accuracy == pytest.approx(float(runs[key]["accuracy"]), abs=TOLERANCE), key
        recorded = float(runs[key]["auc"])
        ties = measure_ties(labels, probabilities[:, 1])
        coarse += abs(auc - recorded) > TOLERANCE + ties
        assert auc == pytest.approx(recorded, abs=LARGEST_DIFFERENCE + ties, nan_ok=True), key
    return coarse


def test_the_manifest_lists_every_file_once() -> None:
    listed = [row["file"] for row in MANIFEST]
    files = [path for path in RESULTS.rglob("*") if path.is_file()]
    names = {path.relative_to(RESULTS).as_posix() for path in files} - {"manifest.csv"}
    assert listed == sorted(names)
    assert sum(path.stat().st_size for path in files) <= LIMIT


def test_every_file_is_as_it_was_written() -> None:
    for row in MANIFEST:
        content = (RESULTS / row["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == row["sha256"], row["file"]


@pytest.mark.parametrize("row", TABLES[7::40], ids=lambda row: row["file"])
def test_recorded_metrics_are_those_of_the_predictions(row: Row) -> None:
    assert count_rows(RESULTS / row["file"]) == int(row["rows"])
    assert check_table(RESULTS / row["file"]) == 0


@pytest.mark.slow
def test_all_recorded_metrics_are_those_of_the_predictions() -> None:
    for row in MANIFEST:
        assert count_rows(RESULTS / row["file"]) == int(row["rows"]), row["file"]
    coarse: Counter[str] = Counter()
    for row in TABLES:
        coarse[row["file"].rpartition("/")[0]] += check_table(RESULTS / row["file"])
    assert +coarse == COARSE


def test_every_run_has_an_auc_or_a_failure() -> None:
    for file in sorted(RESULTS.rglob("runs.csv.gz")):
        rows = read_rows(file)
        assert all(row["auc"] or row["failure"] for row in rows if row["role"] == "run"), file
        assert len({row["key"] for row in rows}) == len(rows)
