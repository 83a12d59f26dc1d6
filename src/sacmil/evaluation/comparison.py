"""Paired comparisons of models, with intervals and significance tests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata, t

from sacmil.errors import RunError, suggest_names
from sacmil.evaluation.delong import delong_test
from sacmil.evaluation.fold_results import (
    FoldResult,
    collect_fold_results,
    compute_fold_metrics,
    describe_difference,
)
from sacmil.evaluation.intervals import (
    check_level_and_draws,
    fold_means,
    percentile_interval,
    resample_patients,
)
from sacmil.evaluation.metrics import LOWER_IS_BETTER, check_metric
from sacmil.evaluation.permutation import MIN_DRAWS, permutation_test
from sacmil.results import Predictions

Floats = npt.NDArray[np.float64]
_OVERSAMPLING = 2
"""Factor by which more arrangements are sampled than the smallest p needs to survive Holm."""


@dataclass(frozen=True)
class PairComparison:
    """Comparison of two models on the same patients; a test that does not apply is None."""

    first: str
    second: str
    metric: str
    difference: float
    """First minus second, mean over folds."""
    low: float
    high: float
    """Its confidence interval; NaN if there are too few patients to resample."""
    p_permutation: float | None
    """Paired permutation test: the two models' predictions of a patient are swapped."""
    p_t: float | None
    """Corrected resampled t-test over folds (Nadeau and Bengio 2003)."""
    p_delong: float | None
    """DeLong's test: the AUC of two classes, one test set, one seed."""
    p_holm: float | None
    """p_permutation, corrected for the number of comparisons (Holm 1979)."""
    patients: int
    """Number of patients both models were tested on."""


def compare_models(
    predictions: Predictions,
    *,
    metric: str = "auc",
    pairs: Iterable[tuple[str, str]] | None = None,
    against: str | None = None,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> list[PairComparison]:
    """Compare models that were tested on the same patients of the same folds.

    Args:
        predictions: of two or more models; rows of other splits than test are left out.
        metric: a name in METRICS.
        pairs: models to compare; all pairs if omitted.
        against: instead of pairs, one model to compare with each of the others.
        level: confidence level of the intervals.
        draws: number of resamples of patients for intervals. The permutation test samples at least
            as many arrangements, and more if many pairs are compared.
        seed: of resamples and arrangements.

    Raises:
        RunError: a model is missing, or the models were tested on different patients or folds.
    """
    check_metric(metric)
    check_level_and_draws(level=level, draws=draws)
    fold_results = collect_fold_results(predictions)
    chosen = choose_pairs(list(fold_results), pairs, against)
    _check_same_test_sets(
        [fold_results[model] for model in dict.fromkeys(m for pair in chosen for m in pair)]
    )
    resampled = _resample_models(fold_results, chosen, metric, draws, seed)
    enough = count_needed_draws(draws, len(chosen), level)
    found = [
        replace(
            _compare_pair(
                fold_results[a], fold_results[b], metric, resampled.get(a), resampled.get(b), level
            ),
            p_permutation=permutation_test(
                fold_results[a], fold_results[b], metric, draws=enough, seed=seed
            ),
        )
        for a, b in chosen
    ]
    return correct_for_multiple_pairs(found)


def count_needed_draws(draws: int, pairs: int, level: float) -> int:
    """Return how many random arrangements let the smallest p of that many pairs survive Holm."""
    return max(MIN_DRAWS, draws, math.ceil(_OVERSAMPLING * pairs / (1 - level)))


def correct_for_multiple_pairs(comparisons: Sequence[PairComparison]) -> list[PairComparison]:
    """Return the comparisons with p_holm, corrected for their number."""
    corrected = holm([one.p_permutation for one in comparisons])
    return [replace(one, p_holm=p) for one, p in zip(comparisons, corrected, strict=True)]


def mean_ranks(predictions: Predictions, metric: str = "auc") -> dict[str, float]:
    """Return the mean rank of each model over the folds; 1 is best, and ties share the mean rank.

    Raises:
        RunError: the models were tested on different patients or folds.
    """
    check_metric(metric)
    fold_results = collect_fold_results(predictions)
    _check_same_test_sets(list(fold_results.values()))
    values = np.stack([compute_fold_metrics(each, metric) for each in fold_results.values()])
    cost = values if metric in LOWER_IS_BETTER else -values
    # values that differ only by rounding are ties
    ranks = rankdata(np.round(cost, 12), axis=0).mean(1)
    return dict(zip(fold_results, ranks.tolist(), strict=True))


def holm(values: Sequence[float | None]) -> list[float | None]:
    """Return p values after Holm's step-down correction; None stays None and does not count.

    >>> holm([0.01, 0.04, None, 0.03])
    [0.03, 0.06, None, 0.06]
    """
    order = sorted((p, index) for index, p in enumerate(values) if p is not None)
    corrected: list[float | None] = [None] * len(values)
    least = 0.0
    for done, (p, index) in enumerate(order):
        least = min(1.0, max(least, p * (len(order) - done)))
        corrected[index] = least
    return corrected


def corrected_t_test(differences: npt.ArrayLike, test_over_train: float) -> float | None:
    """Return the two-sided p of the corrected resampled t-test (Nadeau and Bengio 2003).

    Training sets of different folds overlap, so differences vary less than among independent
    experiments. Their variance is therefore multiplied by 1/J + test/train instead of 1/J.

    Args:
        differences: (J,), one per fold.
        test_over_train: ratio of the test set's size to the training set's.
    """
    values = np.asarray(differences, dtype=np.float64)
    if np.abs(values).max() < 1e-12:
        return 1.0
    if len(values) < 2 or not np.var(values) > 1e-24:
        return None
    scale = math.sqrt((1 / len(values) + test_over_train) * np.var(values, ddof=1))
    return float(2 * t.sf(abs(values.mean()) / scale, len(values) - 1))


def choose_pairs(
    models: Sequence[str], pairs: Iterable[tuple[str, str]] | None, against: str | None
) -> list[tuple[str, str]]:
    """Return the pairs to compare: those given, one model against the others, or all."""
    if against is not None:
        _check_known([against], models)
        return [(against, other) for other in models if other != against]
    chosen = list(combinations(models, 2)) if pairs is None else list(pairs)
    _check_known([model for pair in chosen for model in pair], models)
    return chosen


def _check_known(names: Iterable[str], models: Sequence[str]) -> None:
    for model in names:
        if model not in models:
            raise RunError(f"there are no predictions of {model!r}; {suggest_names(model, models)}")


def _check_same_test_sets(models: Sequence[Sequence[FoldResult]]) -> None:
    """Reject models that were tested on different folds, units or labels."""
    for other in models[1:]:
        first = models[0]
        names = f"{first[0].model} and {other[0].model}"
        folds = [[result.fold for result in each] for each in (first, other)]
        if folds[0] != folds[1]:
            raise RunError(
                f"{names} were tested on different folds ({folds[0]} and {folds[1]}); expected the "
                "same folds for both: compare models of one run, or of runs over the same splits"
            )
        for a, b in zip(first, other, strict=True):
            if differs := describe_difference(a, b):
                raise RunError(
                    f"{names} were tested on {differs} in fold {a.fold}; expected the same for "
                    "both: run sacmil crossval with the same splits"
                )


def _resample_models(
    fold_results: Mapping[str, Sequence[FoldResult]],
    pairs: Sequence[tuple[str, str]],
    metric: str,
    draws: int,
    seed: int,
) -> dict[str, Floats]:
    """Return the fold mean of each model in every resample; all models share the resamples."""
    models = dict.fromkeys(model for pair in pairs for model in pair)
    if not models:
        return {}
    counts = resample_patients(fold_results[next(iter(models))], draws=draws, seed=seed)
    if counts is None:
        return {}
    return {model: fold_means(fold_results[model], counts, metric) for model in models}


def _compare_pair(
    first: Sequence[FoldResult],
    second: Sequence[FoldResult],
    metric: str,
    first_draws: Floats | None,
    second_draws: Floats | None,
    level: float,
) -> PairComparison:
    differences = compute_fold_metrics(first, metric) - compute_fold_metrics(second, metric)
    low, high = math.nan, math.nan
    if first_draws is not None and second_draws is not None:
        low, high = percentile_interval(first_draws - second_draws, level)
    return PairComparison(
        first=first[0].model,
        second=second[0].model,
        metric=metric,
        difference=float(differences.mean()),
        low=low,
        high=high,
        p_permutation=None,
        p_t=_test_over_folds(first, differences),
        p_delong=_test_by_delong(first, second) if metric == "auc" else None,
        p_holm=None,
        patients=len({patient for result in first for patient in result.patients.tolist()}),
    )


def _test_over_folds(fold_results: Sequence[FoldResult], differences: Floats) -> float | None:
    """Return p of the t-test, or None unless every fold leaves patients to train on."""
    everyone = len({patient for result in fold_results for patient in result.patients.tolist()})
    tested = np.array([len(np.unique(result.patients)) for result in fold_results])
    if len(fold_results) < 2 or np.isnan(differences).any() or (tested == everyone).any():
        return None
    return corrected_t_test(differences, float(np.mean(tested / (everyone - tested))))


def _test_by_delong(first: Sequence[FoldResult], second: Sequence[FoldResult]) -> float | None:
    is_single_set = (
        len(first) == 1 and len(first[0].probabilities) == len(second[0].probabilities) == 1
    )
    one, other = first[0], second[0]
    # slides of one patient are not independent, which DeLong assumes
    independent = len(np.unique(one.patients)) == len(one.patients)
    if not (is_single_set and independent and one.probabilities.shape[2] == 2):
        return None
    p = delong_test(one.labels, one.probabilities[0, :, 1], other.probabilities[0, :, 1]).p
    return None if math.isnan(p) else p
