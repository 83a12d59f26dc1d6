"""Paired comparisons of models: intervals, significance tests, and conclusions in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt
import scipy

from sacmil.errors import RunError, format_count, suggest_names
from sacmil.evaluation import significance, summary
from sacmil.evaluation.fold_results import (
    FoldResult,
    average_folds,
    collect_fold_results,
    compute_fold_metrics,
    describe_difference,
)
from sacmil.evaluation.table_format import (
    DEFAULT_STYLE,
    UNDEFINED,
    TableStyle,
    format_p_value,
    make_printable,
)
from sacmil.results import Predictions
from sacmil.tasks import from_card

Floats = npt.NDArray[np.float64]
_MAX_LISTED_PAIRS = 12
"""Maximum number of pairs with a sentence each; more pairs are summarised."""


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
    p_t: float | None = None
    """Corrected resampled t-test over folds (Nadeau and Bengio 2003)."""
    p_delong: float | None = None
    """DeLong's test: the AUC of two classes, one test set, one seed."""
    p_holm: float | None = None
    """p_permutation, corrected for the number of comparisons (Holm 1979)."""
    patients: int = 0
    """Number of patients both models were tested on."""
    title: str = ""
    """Of the metric; its name if not given."""
    lower_is_better: bool = False
    is_share: bool = True
    """Whether the difference can be printed in percent."""
    remark: str = ""
    """What is true of both models, such as that neither is useful."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "title", self.title or self.metric)


def compare_models(
    predictions: Predictions,
    *,
    metric: str | None = None,
    pairs: Iterable[tuple[str, str]] | None = None,
    against: str | None = None,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
) -> list[PairComparison]:
    """Compare models that were tested on the same patients of the same folds.

    Args:
        predictions: of two or more models; rows of other splits than test are left out.
        metric: the name of a metric of the task; None means its headline.
        pairs: models to compare; all pairs if omitted.
        against: instead of pairs, one model to compare with each of the others.
        level: confidence level of the intervals.
        draws: number of resamples of patients for intervals. The permutation test samples at least
            as many arrangements, and more if many pairs are compared.
        seed: of resamples and arrangements.

    Raises:
        RunError: a model is missing, or the models were tested on different patients or folds.
    """
    task = from_card(predictions.task)
    metric = metric or task.headline
    found_metric = task.get_metric(metric)
    summary.check_level_and_draws(level=level, draws=draws)
    everything = collect_fold_results(predictions)
    chosen = choose_pairs(list(everything), pairs, against)
    used = {model: everything[model] for pair in chosen for model in pair}
    _check_same_test_sets(list(used.values()))
    resampled = _resample_models(used, metric, draws, seed)
    enough = significance.count_needed_draws(draws, len(chosen), level)
    found = []
    for a, b in chosen:
        first, second = used[a], used[b]
        values = [compute_fold_metrics(each, metric) for each in (first, second)]
        differences = values[0] - values[1]
        difference = average_folds(first, metric, differences)
        means = [average_folds(first, metric, each) for each in values]
        low, high = math.nan, math.nan
        if resampled:
            drawn = summary.drop_undefined(found_metric, resampled[a] - resampled[b])
            drawn = summary.center_draws(found_metric, drawn, difference)
            low, high = summary.percentile_interval(drawn, level)
        pair = PairComparison(
            first=a,
            second=b,
            metric=metric,
            title=found_metric.title,
            lower_is_better=found_metric.lower_is_better,
            is_share=found_metric.is_share,
            difference=difference,
            low=low,
            high=high,
            p_permutation=significance.permutation_test(
                first, second, metric, draws=enough, seed=seed
            ),
            p_t=_test_over_folds(first, differences),
            p_delong=_test_by_delong(first, second, metric),
            patients=_count_patients(first),
            remark=found_metric.useless_text if all(map(found_metric.is_useless, means)) else "",
        )
        found.append(pair)
    return correct_for_multiple_pairs(found)


def correct_for_multiple_pairs(comparisons: Sequence[PairComparison]) -> list[PairComparison]:
    """Return the comparisons with p_holm, corrected for their number."""
    corrected = significance.holm([one.p_permutation for one in comparisons])
    return [replace(one, p_holm=p) for one, p in zip(comparisons, corrected, strict=True)]


def mean_ranks(predictions: Predictions, metric: str | None = None) -> dict[str, float]:
    """Return the mean rank of each model over the folds; 1 is best, and ties share the mean rank.

    Raises:
        RunError: the models were tested on different patients or folds.
    """
    task = from_card(predictions.task)
    metric = metric or task.headline
    lower_is_better = task.get_metric(metric).lower_is_better
    fold_results = collect_fold_results(predictions)
    _check_same_test_sets(list(fold_results.values()))
    values = np.stack([compute_fold_metrics(each, metric) for each in fold_results.values()])
    cost = values if lower_is_better else -values
    # values that differ only by rounding are ties
    ranks = scipy.stats.rankdata(np.round(cost, 12), axis=0).mean(1)
    return dict(zip(fold_results, ranks.tolist(), strict=True))


def choose_pairs(
    models: Sequence[str],
    pairs: Iterable[tuple[str, str]] | None = None,
    against: str | None = None,
) -> list[tuple[str, str]]:
    """Return the pairs to compare: those given, one model against the others, or all."""
    chosen = list(combinations(models, 2)) if pairs is None else list(pairs)
    if against is not None:
        chosen = [(against, other) for other in models if other != against]
    for model in [against or "", *(model for pair in chosen for model in pair)]:
        if model and model not in models:
            raise RunError(f"there are no predictions of {model!r}; {suggest_names(model, models)}")
    return chosen


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
    models: Mapping[str, Sequence[FoldResult]], metric: str, draws: int, seed: int
) -> dict[str, Floats]:
    """Return the fold mean of each model in every resample; all models share the resamples."""
    first = next(iter(models.values()), None)
    counts = None if first is None else summary.resample_patients(first, draws=draws, seed=seed)
    if counts is None:
        return {}
    return {model: summary.fold_means(folds, counts, metric) for model, folds in models.items()}


def _count_patients(fold_results: Sequence[FoldResult]) -> int:
    return len({patient for result in fold_results for patient in result.patients.tolist()})


def _test_over_folds(fold_results: Sequence[FoldResult], differences: Floats) -> float | None:
    """Return p of the t-test, or None unless every fold leaves patients to train on."""
    everyone = _count_patients(fold_results)
    tested = np.array([_count_patients([result]) for result in fold_results])
    if len(fold_results) < 2 or np.isnan(differences).any() or (tested == everyone).any():
        return None
    return significance.corrected_t_test(differences, float(np.mean(tested / (everyone - tested))))


def _test_by_delong(
    first: Sequence[FoldResult], second: Sequence[FoldResult], metric: str
) -> float | None:
    one, other = first[0], second[0]
    if metric != "auc" or len(one.task.levels) != 2:
        return None
    is_single_set = len(first) == len(one.values) == len(other.values) == 1
    # slides of one patient are not independent, which DeLong assumes
    independent = len(np.unique(one.patients)) == len(one.patients)
    if not (is_single_set and independent and one.values.shape[2] == 2):
        return None
    labels = one.targets[:, 0]
    p = significance.delong_test(labels, one.values[0, :, 1], other.values[0, :, 1]).p
    return None if math.isnan(p) else p


# --- conclusions ---------------------------------------------------------------------------------


def list_conclusions(
    comparisons: Sequence[PairComparison], *, level: float = 0.95, style: TableStyle = DEFAULT_STYLE
) -> list[str]:
    """Return a sentence per comparison: significant differences by size, then the others.

    Args:
        comparisons: of one metric, from compare_models.
        level: a difference is significant if p after Holm is below 1 - level.
        style: number format.
    """
    if small := _describe_small_cohort(comparisons, level):
        return [small]
    significant = [pair for pair in comparisons if is_significant(pair, level=level)]
    left = [pair for pair in comparisons if not is_significant(pair, level=level)]
    significant.sort(key=lambda pair: -abs(pair.difference))
    sentences = (
        [_describe_significant_pair(pair, style) for pair in significant]
        if len(significant) <= _MAX_LISTED_PAIRS
        else _describe_winners(significant, style)
    )
    if len(left) <= _MAX_LISTED_PAIRS:
        return sentences + [_describe_undecided_pair(pair, style) for pair in left]
    others = "other " if significant else ""
    return [*sentences, f"No significant difference in the {others}{len(left)} pairs."]


def _describe_small_cohort(comparisons: Sequence[PairComparison], level: float) -> str | None:
    """Return a sentence if there are too few patients for any p to pass, else None."""
    tested = [pair for pair in comparisons if pair.p_permutation is not None]
    if not tested:
        return None
    patients, needed = tested[0].patients, significance.count_needed_patients(len(tested), level)
    if patients >= needed:
        return None
    names = "the models"
    if len(tested) == 1:
        names = " and ".join(map(make_printable, order_better_first(tested[0])))
    corrected = f" for {format_count(len(tested), 'pair')}" if len(tested) > 1 else ""
    return (
        f"The cohort is too small to compare {names}: it has {format_count(patients, 'patient')}, "
        f"and p < {1 - level:.2g} needs at least {needed}{corrected}."
    )


def _describe_winners(significant: Sequence[PairComparison], style: TableStyle) -> list[str]:
    """Return a sentence per model that is better than others, the one that beats most first."""
    beaten: dict[str, list[PairComparison]] = {}
    for pair in significant:
        beaten.setdefault(order_better_first(pair)[0], []).append(pair)
    ordered = sorted(beaten.items(), key=lambda item: (-len(item[1]), item[0]))
    return [_describe_winner(winner, pairs, style) for winner, pairs in ordered]


def _describe_winner(winner: str, pairs: Sequence[PairComparison], style: TableStyle) -> str:
    if len(pairs) == 1:
        return _describe_significant_pair(pairs[0], style)
    style = style.suited_to(pairs[0])
    losers = ", ".join(sorted(make_printable(order_better_first(pair)[1]) for pair in pairs))
    sizes = [abs(pair.difference) for pair in pairs]
    highest = format_p_value(max(pair.p_holm or 0.0 for pair in pairs))
    return (
        f"{make_printable(winner)} is better than {losers}: by {style.format_number(min(sizes))} "
        f"to {style.format_number(max(sizes))}{_format_points(style)} "
        f"{pairs[0].title}, "
        f"p {'< 0.001' if highest.startswith('<') else f'≤ {highest}'} after Holm"
        f"{_add_remark(*pairs)}."
    )


def is_significant(pair: PairComparison, *, level: float = 0.95) -> bool:
    """Whether the two models differ significantly after Holm's correction."""
    return pair.p_holm is not None and pair.p_holm < 1 - level


def order_better_first(pair: PairComparison) -> tuple[str, str]:
    """Return the names of the two models, the better one first."""
    ahead = (pair.difference < 0) == pair.lower_is_better
    return (pair.first, pair.second) if ahead else (pair.second, pair.first)


def _describe_significant_pair(pair: PairComparison, style: TableStyle) -> str:
    winner, loser = map(make_printable, order_better_first(pair))
    return (
        f"{winner} is better than {loser} by {_format_difference(pair, style)}, "
        f"{_describe_p_value(pair)}{_add_remark(pair)}."
    )


def _describe_undecided_pair(pair: PairComparison, style: TableStyle) -> str:
    ahead, behind = map(make_printable, order_better_first(pair))
    text = f"No significant difference between {ahead} and {behind}"
    if not math.isfinite(pair.difference):
        return f"{text}: {pair.title} is not defined in every fold."
    size = _format_difference(pair, style)
    return f"{text}: {size}, {_describe_p_value(pair)}{_add_remark(pair)}."


def _add_remark(*pairs: PairComparison) -> str:
    """Return the remark that all pairs have in common, after the rest of a sentence."""
    remarks = {pair.remark for pair in pairs}
    return f"; {remarks.pop()}" if len(remarks) == 1 and any(remarks) else ""


def _format_difference(pair: PairComparison, style: TableStyle) -> str:
    """Format the better model's lead and its interval with the same sign."""
    style = style.suited_to(pair)
    low, high = (pair.low, pair.high) if pair.difference >= 0 else (-pair.high, -pair.low)
    size = f"{style.format_number(abs(pair.difference))}{_format_points(style)}"
    return f"{size} {pair.title}{style.format_interval(low, high)}"


def _format_points(style: TableStyle) -> str:
    return " points of" if style.percent else ""


def _describe_p_value(pair: PairComparison) -> str:
    text = format_p_value(pair.p_holm)
    if text == UNDEFINED:
        return "no p-value"
    return f"p {'< 0.001' if text.startswith('<') else f'= {text}'} after Holm"
