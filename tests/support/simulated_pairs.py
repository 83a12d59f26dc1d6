"""Simulated cross-validation of two models, and how often a test claims a difference.

Print the table of docs/concepts/statistics.md with ``python tests/support/simulated_pairs.py``.
"""

from __future__ import annotations

import sys
from typing import Literal

import numpy as np
from scipy.special import expit

from sacmil.evaluation.comparison import compare_models
from sacmil.evaluation.fold_results import collect_fold_results
from sacmil.evaluation.significance import permutation_test
from sacmil.results import Predictions

Null = Literal["exchangeable", "rescaled", "shifted", "spread"]
"""Ways to be equally good: alike, surer, of another threshold, of an ROC curve of another shape."""
NULLS: dict[str, tuple[Null, ...]] = {
    "accuracy": ("exchangeable", "rescaled", "shifted"),
    "auc": ("exchangeable", "rescaled", "spread"),
    "f1": ("exchangeable", "rescaled", "shifted"),
}
"""By metric, for which the models are equally good."""
PATIENTS, FOLDS = (10, 16, 30, 100), (3, 5)
SURE = 0.05
_APART = 1.8
"""How far the mean scores of the two classes are apart."""


def simulate_pair(
    random: np.random.Generator,
    *,
    patients: int,
    folds: int,
    repeats: int = 1,
    null: Null = "exchangeable",
    gain: float = 0.0,
) -> Predictions:
    """Predictions of models a and b on 1 to 4 correlated slides per patient.

    Both models see the same difficulty of patients and slides, besides noise of their own. One
    patient in five has a slide of the other class, so that slides are the unit of most data sets.

    Args:
        random: source of all that is random.
        patients: half of each class, spread evenly over the folds.
        folds: of the cross-validation.
        repeats: of the cross-validation, by models trained anew.
        null: in which way b is as good as a.
        gain: by how much the classes' mean scores are farther apart for a.
    """
    slides = random.integers(1, 5, size=patients)
    owner = np.repeat(np.arange(patients), slides)
    label = owner % 2
    mixed = (random.random(patients) < 0.2) & (slides > 1)
    label[np.r_[True, owner[1:] != owner[:-1]] & mixed[owner]] ^= 1
    hard = random.normal(size=patients)[owner] + 0.5 * random.normal(size=len(owner))
    liked = {model: 0.7 * random.normal(size=patients)[owner] for model in "ab"}
    rows, odds = [], []
    for repeat in range(repeats):
        order = random.permutation(-(-patients // 2)) % folds + folds * repeat
        for model, own in liked.items():
            noise = hard + own + 0.5 * random.normal(size=len(owner))
            mean = (_APART + gain * (model == "a")) * (label - 0.5)
            scale = 4 if null == "rescaled" and model == "b" else 1
            odds.append(scale * (mean + _change_noise(noise, label, null, model)))
            rows += [
                (f"s{place}", f"p{who}", "test", order[who // 2], 0, model, label[place])
                for place, who in enumerate(owner.tolist())
            ]
    positive = expit(np.concatenate(odds))
    return Predictions.from_rows(("0", "1"), rows, np.stack([1 - positive, positive], axis=1))


def _change_noise(noise: np.ndarray, label: np.ndarray, null: Null, model: str) -> np.ndarray:
    if null == "shifted":
        return noise + (0.6 if model == "a" else -0.6)
    if null == "spread" and model == "b":
        return noise * np.where(label == 1, 1.3, 0.557)  # squares sum to two: the same AUC
    return noise


def false_claims(
    metric: str, null: Null, patients: int, folds: int, *, datasets: int, repeats: int = 1
) -> float:
    """Share of simulated data sets of two equally good models in which p is below 0.05."""
    random = np.random.default_rng([patients, folds])
    claimed = 0
    for _ in range(datasets):
        given = simulate_pair(random, patients=patients, folds=folds, repeats=repeats, null=null)
        trials = collect_fold_results(given)
        p = permutation_test(trials["a"], trials["b"], metric, draws=999)
        claimed += p is not None and p < SURE
    return claimed / datasets


def power(metric: str, *, patients: int, datasets: int, gain: float = 0.7) -> dict[str, float]:
    """Share of data sets in which each test finds that a is better, over 5 folds."""
    random = np.random.default_rng(patients)
    found = {"permutation": 0, "interval": 0, "corrected t": 0}
    for _ in range(datasets):
        given = simulate_pair(random, patients=patients, folds=5, gain=gain)
        (pair,) = compare_models(given, metric=metric, draws=500)
        found["permutation"] += pair.p_permutation is not None and pair.p_permutation < SURE
        found["interval"] += pair.low > 0 or pair.high < 0
        found["corrected t"] += pair.p_t is not None and pair.p_t < SURE
    return {test: number / datasets for test, number in found.items()}


def main(datasets: int) -> None:
    """Print the share of false claims in every cell, and the power at 100 patients."""
    for metric, nulls in NULLS.items():
        for patients in PATIENTS:
            for folds in FOLDS:
                rates = []
                for null in nulls:
                    rate = false_claims(metric, null, patients, folds, datasets=datasets)
                    rates.append(f"{null} {100 * rate:.1f} %")
                _write(f"{metric}, {patients} patients, {folds} folds", rates)
        for gain in (0.0, 0.7):
            rates = [
                f"{test} {100 * rate:.1f} %"
                for test, rate in power(metric, patients=100, datasets=datasets, gain=gain).items()
            ]
            _write(f"{metric}, 100 patients, 5 folds, gain {gain}", rates)


def _write(cell: str, rates: list[str]) -> None:
    sys.stdout.write(f"{cell}: {', '.join(rates)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
