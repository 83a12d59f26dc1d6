"""How often intervals of the AUC contain the truth, in simulated cross-validation.

Print the table of docs/concepts/statistics.md with ``python tests/support/interval_coverage.py``.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
from scipy.stats import norm

sys.path.insert(0, str(Path(__file__).parents[1] / "evaluation"))

from test_summary import TRUE_AUC, simulated, trial

from sacmil.evaluation.summary import fold_means, percentile_interval, resample_patients

RARE = ((10, 1, 1), (5, 2, 2), (5, 2, 10), (5, 1, 10), (5, 1, 20))
"""Folds, and patients of each class in a fold."""
GAP = 0.7
"""How far the mean scores of the two classes are apart, in standard deviations."""
DRAWS = 500


def measure_whole_folds(kind: str, datasets: int) -> dict[float, float]:
    """Share of intervals that contain the truth, by level."""
    random, hits, valid = np.random.default_rng(11), dict.fromkeys((0.95, 0.9), 0), 0
    for seed in range(datasets):
        trials = simulated(random, kind)
        counts = resample_patients(trials, draws=DRAWS, seed=seed)
        if counts is None:
            continue
        valid += 1
        means = fold_means(trials, counts, "auc")
        for level in hits:
            low, high = percentile_interval(means, level)
            hits[level] += bool(low <= TRUE_AUC <= high)
    return {level: count / valid for level, count in hits.items()}


def measure_rare_classes(folds: int, one: int, other: int, datasets: int) -> float:
    """Share of intervals of 95 % that contain the truth; few patients of one class in a fold."""
    random, hits, valid = np.random.default_rng(12), 0, 0
    truth = norm.cdf(GAP / math.sqrt(2))
    labels = np.r_[np.zeros(other, np.int64), np.ones(one, np.int64)]
    for seed in range(datasets):
        trials = []
        for fold in range(folds):
            ids = np.array([f"{fold}-{number}" for number in range(len(labels))])
            noise = random.normal(size=(2, len(labels)))  # of two models; the first is measured
            trials.append(trial(fold, ids, labels, GAP * labels + noise[0]))
        counts = resample_patients(trials, draws=DRAWS, seed=seed)
        if counts is not None:
            valid += 1
            low, high = percentile_interval(fold_means(trials, counts, "auc"), 0.95)
            hits += bool(low <= truth <= high)
    return hits / valid


def main() -> None:
    """Print a row for each kind of data."""
    for kind, datasets in (("folds", 1000), ("one test set", 1000), ("small folds", 300)):
        print(kind, datasets, measure_whole_folds(kind, datasets), flush=True)  # noqa: T201
    for folds, one, other in RARE:
        share = measure_rare_classes(folds, one, other, 600)
        print(f"{folds} folds of {one} and {other}", 600, share, flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
