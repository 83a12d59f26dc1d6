"""From lines of results to figures with intervals: sacmil.evaluation does the statistics."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import expit
from scipy.stats import rankdata

from benchmarks.accuracy._lines import Line, Lines
from sacmil.errors import RunError
from sacmil.evaluation.comparison import PairComparison, compare_models
from sacmil.evaluation.summary import MetricEstimate, summarize
from sacmil.results import Predictions

METRICS = ("auc", "accuracy")
FURTHER = {
    "suite_slowest": "suite_slowest_more",
    "suite_slowest_rest": "suite_slowest_rest_more",
}
"""Confirmatory runs whose seeds are told with those of the one they go on from."""
DRAWS = 2000
SUREST = 20.0
"""Log odds beyond which probabilities begin to round to the same."""


class Standing(NamedTuple):
    """A variant on a task."""

    variant: str
    figures: Mapping[str, MetricEstimate]
    against: PairComparison | None
    """With the reference, on the same bags; None for the reference itself."""
    localisation: float
    """Mean over folds; NaN where instances have no truth."""
    runs: int


def told(confirmation: Path) -> bool:
    """Whether a confirmatory run has come to its end: before, nobody should look."""
    if not confirmation.exists():
        return False
    return bool(json.loads(confirmation.read_text(encoding="utf-8"))["finished"])


def lines_of(results: Path, name: str) -> list[Line]:
    """Of a study, or of its confirmatory run (``STUDY.confirm``) with the seeds that go on from it.

    Args:
        results: folder of CSV files.
        name: of a file there.
    """
    lines = Lines(results / f"{name}.csv").lines
    further = FURTHER.get(name.removesuffix(".confirm"))
    if further and name.endswith(".confirm") and told(results / f"{further}.confirm.json"):
        lines = [*lines, *Lines(results / f"{further}.confirm.csv").lines]
    return list(lines)


def tasks_of(lines: Iterable[Line]) -> dict[str, list[Line]]:
    """Finished runs by task, in the order of the file; the last line of a job counts."""
    found: dict[str, dict[str, Line]] = defaultdict(dict)
    for line in lines:
        if line["role"] == "run" and not line["failure"]:
            found[line["task"]][line["key"]] = line
    return {task: list(by_key.values()) for task, by_key in found.items()}


def standings(lines: Sequence[Line], reference: str) -> list[Standing]:
    """Every variant of a task, the best first; those with folds missing are left out."""
    whole = complete(lines)
    predictions = to_predictions(whole)
    figures = summarize(predictions, metrics=METRICS, draws=DRAWS)
    against = {}
    if reference in figures and len(figures) > 1:
        compared = compare_models(predictions, against=reference, draws=DRAWS)
        against = {one.second: one for one in compared}
    found = [
        Standing(
            variant,
            figures[variant],
            against.get(variant),
            _mean(line["localisation"] for line in whole if line["variant"] == variant),
            sum(line["variant"] == variant for line in whole),
        )
        for variant in figures
    ]
    return sorted(found, key=lambda one: -one.figures["auc"].mean)


def to_predictions(lines: Sequence[Line]) -> Predictions:
    """Answers on test bags, as sacmil.evaluation takes them; a window's patient is its slide."""
    rows, odds = [], []
    for line in lines:
        labels = line["labels"].split(" ")
        units = line["units"].split(" ") if line["units"] else _numbered(line["fold"], labels)
        answers = _apart(np.array(line["answers"].split(" "), dtype=np.float64))
        for unit, label, answer in zip(units, labels, answers, strict=True):
            whose = unit.split("/")[0]
            key = (line["fold"], line["seed"], line["variant"], label)
            rows.append((unit, whose, "test", int(key[0]), int(key[1]), key[2], int(key[3])))
            odds.append(answer)
    if not rows:
        raise RunError("no finished runs; expected at least one")
    positive = expit(np.array(odds))
    return Predictions.from_rows(("0", "1"), rows, np.stack([1 - positive, positive], axis=1))


def _apart(odds: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Log odds that stay apart as probabilities: all smaller, where a model is surer than that."""
    return odds * (SUREST / max(SUREST, np.abs(odds).max()))


def _numbered(fold: str, labels: Sequence[str]) -> list[str]:
    """Names for the slides of a synthetic cohort: no two cohorts share one."""
    return [f"{fold}-{number}" for number in range(len(labels))]


def mean_ranks(by_task: Mapping[str, Sequence[Standing]]) -> dict[str, float]:
    """Mean rank by AUC over tasks that most variants did, among those that did all of these."""
    did = {task: {one.variant for one in rows} for task, rows in by_task.items()}
    wide = [task for task in did if 2 * len(did[task]) > max(map(len, did.values()))]
    names = sorted(set.intersection(*(did[task] for task in wide)))
    ranks = []
    for task in wide:
        auc = {one.variant: one.figures["auc"].mean for one in by_task[task]}
        ranks.append(rankdata([-round(auc[name], 12) for name in names]))
    return dict(zip(names, np.mean(ranks, axis=0).tolist(), strict=True)) if names else {}


def ceiling(lines: Sequence[Line]) -> float:
    """The oracle's mean AUC over the folds of a task; NaN where there is none."""
    by_fold = {line["fold"]: line["ceiling"] for line in lines}
    return _mean(by_fold.values())


def more(lines: Sequence[Line], name: str) -> dict[str, list[float]]:
    """What a line tells besides, by variant."""
    found: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        told = json.loads(line["more"] or "{}")
        if name in told:
            found[line["variant"]].append(float(told[name]))
    return dict(found)


def complete(lines: Sequence[Line]) -> list[Line]:
    """Lines of the variants that have as many folds and seeds as any."""
    held: dict[str, set[tuple[str, str]]] = defaultdict(set)
    for line in lines:
        held[line["variant"]].add((line["fold"], line["seed"]))
    most = max(map(len, held.values()), default=0)
    return [line for line in lines if len(held[line["variant"]]) == most]


def _mean(values: Iterable[str]) -> float:
    numbers = np.array([float(value) for value in values if value], dtype=np.float64)
    numbers = numbers[np.isfinite(numbers)]
    return float(numbers.mean()) if len(numbers) else float("nan")
