"""Significance tests of the difference of two models.

If two models are equally good, either could have made either prediction of a patient. The paired
permutation test therefore swaps the two models' predictions of some patients, with all slides,
folds and seeds, and computes the difference again. p is the share of arrangements that differ at
least as much as the data. Patients are the unit, so correlated slides do not lower p, and a metric
may be discrete.

DeLong's test (DeLong, DeLong and Clarke-Pearson 1988) compares two AUCs on one set. The placement
value of a positive is the share of negatives below it, that of a negative the share of positives
above it. Their covariances give that of the AUCs. Midranks compute them in O(n log n) (Sun and Xu
2014).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

from sacmil.evaluation.fold_results import FoldResult, share_folds
from sacmil.metrics.metric import Metric

Floats = npt.NDArray[np.float64]
Swaps = npt.NDArray[np.bool_]
"""(arrangements, patients): True where a patient's predictions are swapped."""

MIN_DRAWS = 10_000
"""Minimum number of random arrangements: p near 0.005 then varies by 0.0007 among seeds."""
_OVERSAMPLING = 2
"""Factor by which more arrangements are sampled than the smallest p needs to survive Holm."""
_MAX_EXACT_ARRANGEMENTS = 2**15
"""Maximum number of arrangements that are enumerated; more are sampled."""
_TOLERANCE = 1e-10
"""Differences below this are rounding errors."""
_CHUNK_WEIGHTS = 120_000
"""Weights per chunk: few enough for the processor's cache."""
_BLOCK_WEIGHTS = 6_000_000
"""The same for metrics that split them further: enough for what they prepare for each call."""


# --- corrections for many comparisons ------------------------------------------------------------


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


def count_needed_draws(draws: int, pairs: int, level: float) -> int:
    """Return how many random arrangements let the smallest p of that many pairs survive Holm."""
    return max(MIN_DRAWS, draws, math.ceil(_OVERSAMPLING * pairs / (1 - level)))


def count_needed_patients(pairs: int, level: float) -> int:
    """Return how few patients suffice for one of that many pairs to pass after Holm's correction.

    n patients have 2^(n - 1) arrangements that differ in size, so p is at least 2^(1 - n).

    >>> count_needed_patients(1, 0.95), count_needed_patients(78, 0.95)
    (6, 12)
    """
    return 2 + math.floor(math.log2(max(pairs, 1) / (1 - level)) + _TOLERANCE)


# --- tests over folds and over one test set ------------------------------------------------------


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
    return float(2 * scipy.stats.t.sf(abs(values.mean()) / scale, len(values) - 1))


class DeLongResult(NamedTuple):
    """The test of the difference of two AUCs over the same units."""

    variance: float
    """Of the difference."""
    z: float
    p: float
    """Two-sided; NaN if the variance is zero although the AUCs differ."""


def delong_test(labels: npt.ArrayLike, first: npt.ArrayLike, second: npt.ArrayLike) -> DeLongResult:
    """Test whether two scores of the same units differ in AUC.

    Args:
        labels: (n,), zero or one; the units must be independent of each other.
        first: (n,), scores of the first model.
        second: (n,), scores of the second model.
    """
    areas, covariance = auc_covariance(labels, np.stack([np.asarray(first), np.asarray(second)]))
    variance = float(covariance[0, 0] + covariance[1, 1] - 2 * covariance[0, 1])
    difference = float(areas[0] - areas[1])
    z = difference / math.sqrt(variance) if variance > 1e-15 else math.nan
    if abs(difference) < 1e-12:
        z = 0.0
    return DeLongResult(variance, z, float(2 * scipy.stats.norm.sf(abs(z))))


def auc_covariance(labels: npt.ArrayLike, scores: Floats) -> tuple[Floats, Floats]:
    """Return the AUC of each row of scores (m, n), and their covariance (m, m).

    Both are NaN if a class has fewer than two units.
    """
    positive = np.asarray(labels).astype(np.bool_)
    m, n = int(positive.sum()), int((~positive).sum())
    rows = len(scores)
    if min(m, n) < 2:  # one unit has no spread
        return np.full(rows, np.nan), np.full((rows, rows), np.nan)
    ranks = scipy.stats.rankdata(scores, axis=1)
    below = (ranks[:, positive] - scipy.stats.rankdata(scores[:, positive], axis=1)) / n
    above = 1 - (ranks[:, ~positive] - scipy.stats.rankdata(scores[:, ~positive], axis=1)) / m
    covariance = np.atleast_2d(np.cov(below)) / m + np.atleast_2d(np.cov(above)) / n
    return below.mean(1), covariance


# --- permutation test ----------------------------------------------------------------------------


class _PairedFold(NamedTuple):
    """The predictions of both models on one fold, the rows of the first model first."""

    metric: Metric
    targets: Floats
    """(2n, T)."""
    predictions: Floats
    """(seeds, 2n, P)."""
    patients: npt.NDArray[np.intp]
    """(n,), index of each row's patient among all."""
    widening: float
    """Factor of the arrangements; see _compute_widening."""
    share: float
    """Of the fold in the mean over folds."""

    def compute_swapped(self, swapped: Swaps) -> Floats:
        """Return the differences if the marked rows (arrangements, n) are swapped."""
        chunks = self._split(swapped)
        weights = (np.hstack([~chunk, chunk]).astype(np.float64) for chunk in chunks)
        return np.concatenate([self._compute_weighted(each, 1 - each) for each in weights])

    def compute_halved(self, halved: Swaps) -> Floats:
        """Return the differences if the marked rows (arrangements, n) count half."""
        found = []
        for chunk in self._split(halved):
            weights, nothing = 1 - 0.5 * chunk, np.zeros(chunk.shape)
            first, second = np.hstack([weights, nothing]), np.hstack([nothing, weights])
            found.append(self._compute_weighted(first, second))
        return np.concatenate(found)

    def _compute_weighted(self, first: Floats, second: Floats) -> Floats:
        """Return the differences for row weights of the two models, (arrangements, 2n) each."""
        compute, targets = self.metric.formula, self.targets
        each = [compute(targets, p, first) - compute(targets, p, second) for p in self.predictions]
        mean: Floats = np.mean(each, axis=0)
        return mean

    def _split(self, rows: Swaps) -> Iterator[Swaps]:
        limit = _BLOCK_WEIGHTS if self.metric.makes_blocks else _CHUNK_WEIGHTS
        return _split_chunks(rows, 2, limit)

    def mark_one_patient_each(self) -> tuple[npt.NDArray[np.intp], Swaps]:
        """Return the patients, and rows (1 + patients, n): nobody, then one patient in each."""
        present = np.unique(self.patients)
        one_each = np.vstack([np.zeros(len(present), np.bool_), np.eye(len(present)) > 0])
        return present, one_each[:, np.searchsorted(present, self.patients)]


def permutation_test(
    first: Sequence[FoldResult],
    second: Sequence[FoldResult],
    metric: str,
    *,
    draws: int = MIN_DRAWS,
    seed: int = 0,
) -> float | None:
    """Return the two-sided p of the mean difference of two models over folds, or None if undefined.

    The test is exact if the predictions of at most 16 patients differ, and Monte Carlo beyond. For
    ranks it is the larger p of two tests. Swaps of patients assume that both ROC curves have the
    same shape. Sign flips of patients' influences do not, but need more patients.

    Args:
        first: fold results of one model.
        second: of the other model, on the same folds and patients.
        metric: the name of a metric of the task.
        draws: number of random arrangements, if there are too many to enumerate.
        seed: of these arrangements.
    """
    everyone = np.unique(np.concatenate([result.patients for result in first]))
    found = first[0].task.get_metric(metric)
    is_defined = [not math.isnan(each.compute_metric(found)) for each in first]
    shares = share_folds(first, found, np.array(is_defined))
    if shares is None:
        shares = np.full(len(first), 1 / len(first))
    pairs = zip(first, second, shares.tolist(), strict=True)
    folds = [_pair_fold(one, other, share, everyone, found) for one, other, share in pairs if share]
    nobody = [fold.compute_swapped(np.zeros((1, len(fold.patients)), np.bool_)) for fold in folds]
    observed = float(np.sum([fold.share * one for fold, one in zip(folds, nobody, strict=True)]))
    if math.isnan(observed):
        return None
    if found.is_additive:
        effects = _compute_patient_effects(folds, len(everyone), by_swaps=True)
        p = sign_flip_test(effects, observed=observed, draws=draws, seed=seed)
    else:
        p = _swap_test(folds, len(everyone), observed, draws, seed)
    if found.scale != "ranks":
        return p
    influences = _compute_patient_effects(folds, len(everyone), by_swaps=False)
    return max(p, sign_flip_test(influences, observed=observed, draws=draws, seed=seed))


def sign_flip_test(
    effects: npt.ArrayLike, *, observed: float | None = None, draws: int = MIN_DRAWS, seed: int = 0
) -> float:
    """Return the two-sided p of a sum of patients' effects; a swap changes the sign of one effect.

    >>> sign_flip_test([1.0, 1.0, 1.0])
    0.25

    Args:
        effects: (patients,), contribution of each patient to the difference.
        observed: the difference; the sum of the effects if omitted.
        draws: number of random arrangements, if there are too many to enumerate.
        seed: of these arrangements.
    """
    values = np.asarray(effects, dtype=np.float64)
    difference = float(values.sum()) if observed is None else observed
    values = values[np.abs(values) > _TOLERANCE]
    swaps, exact = _make_arrangements(len(values), draws, seed)
    sums = np.concatenate([(1.0 - 2.0 * chunk) @ values for chunk in _split_chunks(swaps, 1)])
    return _compute_p_value(sums, difference, exact=exact)


def _swap_test(
    folds: Sequence[_PairedFold], patients: int, observed: float, draws: int, seed: int
) -> float:
    """Return p from swaps of all patients whose predictions differ, for metrics without effects."""
    differing = np.zeros(patients, np.bool_)
    for fold in folds:
        one, other = np.split(fold.predictions, 2, axis=1)
        differing[fold.patients[(one != other).any((0, 2))]] = True
    some, exact = _make_arrangements(int(differing.sum()), draws, seed)
    swaps = np.zeros((len(some), patients), np.bool_)
    swaps[:, differing] = some
    each = [
        fold.share * fold.widening * fold.compute_swapped(swaps[:, fold.patients]) for fold in folds
    ]
    return _compute_p_value(np.sum(each, axis=0), observed, exact=exact)


def _compute_patient_effects(
    folds: Sequence[_PairedFold], patients: int, *, by_swaps: bool
) -> Floats:
    """Return each patient's contribution to the difference, or influence on it.

    The contribution is half of what a swap takes away. The influence is twice the effect of half
    the weight; the squares of influences sum to the variance of the difference. A weight of one
    half is between the two jackknives: of m patients it gives m/(m - 1/2), where the infinitesimal
    one gives too little, and leaving patients out gives m/(m - 1), too much.
    """
    effects = np.zeros(patients)
    for fold in folds:
        present, rows = fold.mark_one_patient_each()
        values = fold.compute_swapped(rows) if by_swaps else fold.compute_halved(rows)
        factor = fold.widening / 2 if by_swaps else 2.0
        effects[present] += factor * (values[0] - values[1:]) * fold.share
    return effects


def _compute_p_value(values: Floats, observed: float, *, exact: bool) -> float:
    """Return p; an arrangement with an undefined difference counts as extreme."""
    extreme = int(np.sum(~(np.abs(values) < abs(observed) - _TOLERANCE)))
    return extreme / len(values) if exact else (extreme + 1) / (len(values) + 1)


def _pair_fold(
    one: FoldResult,
    other: FoldResult,
    share: float,
    everyone: npt.NDArray[np.str_],
    metric: Metric,
) -> _PairedFold:
    # a model with fewer seeds repeats them, so that both have a prediction for each
    seeds = math.lcm(len(one.values), len(other.values))
    both = [
        np.tile(_to_comparable_scale(values, metric), (seeds // len(values), 1, 1))
        for values in (one.values, other.values)
    ]
    return _PairedFold(
        metric=one.bind(metric),
        targets=np.tile(one.targets, (2, 1)),
        predictions=np.concatenate(both, axis=1),
        patients=np.searchsorted(everyone, one.patients),
        widening=_compute_widening(one, metric),
        share=share,
    )


def _compute_widening(fold_result: FoldResult, metric: Metric) -> float:
    """Return the factor by which to widen arrangements of ranks, √(N/(N - 2)) for N patients.

    Ranks of a fold sum to a constant, so swaps of them vary less than the AUC does. In four repeats
    of folds of six simulated patients, 10 % of the tests were false positives without a correction,
    8 % with N - 1, and 3 % with N - 2. Patients with unequal numbers of slides count as fewer, as
    in an effective sample size.
    """
    if metric.scale != "ranks":
        return 1.0
    slides = np.unique(fold_result.patients, return_counts=True)[1]
    patients = slides.sum() ** 2 / np.square(slides).sum()
    return math.sqrt(patients / max(patients - 2, 1))


def _to_comparable_scale(values: Floats, metric: Metric) -> Floats:
    """Return what the metric uses of (seeds, n, P), on a scale comparable between models."""
    scaled = values
    if metric.scale == "ranks":
        scaled = scipy.stats.rankdata(values, axis=1)
    elif metric.scale == "classes":
        scaled = np.eye(values.shape[2])[values.argmax(2)]
    return scaled


def _make_arrangements(patients: int, draws: int, seed: int) -> tuple[Swaps, bool]:
    """Return all arrangements or random ones, and whether they are all."""
    # swapping everyone only changes the sign, so the last patient is never swapped
    everything = 2 ** max(patients - 1, 0)
    if everything <= _MAX_EXACT_ARRANGEMENTS:
        numbers = np.arange(everything)[:, None]
        return (numbers >> np.arange(patients)) & 1 > 0, True
    random = np.random.default_rng(seed)
    return random.integers(2, size=(draws, patients), dtype=np.int8) > 0, False


def _split_chunks(swaps: Swaps, models: int, most_weights: int = _CHUNK_WEIGHTS) -> Iterator[Swaps]:
    step = 1 + most_weights // (models * swaps.shape[1] + 1)
    return (swaps[begin : begin + step] for begin in range(0, len(swaps), step))
