"""Comparisons as sentences: which models differ significantly, and by how much."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sacmil.evaluation.comparison import PairComparison
from sacmil.evaluation.metrics import LOWER_IS_BETTER, METRIC_TITLES
from sacmil.evaluation.permutation import count_needed_patients
from sacmil.evaluation.printable import make_printable
from sacmil.evaluation.tables import UNDEFINED, TableStyle, format_count, format_p_value

_MAX_LISTED_PAIRS = 12
"""Maximum number of pairs with a sentence each; more pairs are summarised."""


def list_conclusions(
    comparisons: Sequence[PairComparison], *, level: float = 0.95, style: TableStyle | None = None
) -> list[str]:
    """Return a sentence per comparison: significant differences by size, then the others.

    Args:
        comparisons: of one metric, from compare_models.
        level: a difference is significant if p after Holm is below 1 - level.
        style: number format.
    """
    style = style or TableStyle()
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
    patients, needed = tested[0].patients, count_needed_patients(len(tested), level)
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
    losers = ", ".join(sorted(make_printable(order_better_first(pair)[1]) for pair in pairs))
    sizes = [abs(pair.difference) for pair in pairs]
    highest = format_p_value(max(pair.p_holm or 0.0 for pair in pairs))
    return (
        f"{make_printable(winner)} is better than {losers}: by {style.format_number(min(sizes))} "
        f"to {style.format_number(max(sizes))}{_format_points(style)} "
        f"{METRIC_TITLES[pairs[0].metric]}, "
        f"p {'< 0.001' if highest.startswith('<') else f'≤ {highest}'} after Holm."
    )


def is_significant(pair: PairComparison, *, level: float = 0.95) -> bool:
    """Whether the two models differ significantly after Holm's correction."""
    return pair.p_holm is not None and pair.p_holm < 1 - level


def order_better_first(pair: PairComparison) -> tuple[str, str]:
    """Return the names of the two models, the better one first."""
    ahead = (pair.difference < 0) == (pair.metric in LOWER_IS_BETTER)
    return (pair.first, pair.second) if ahead else (pair.second, pair.first)


def _describe_significant_pair(pair: PairComparison, style: TableStyle) -> str:
    winner, loser = map(make_printable, order_better_first(pair))
    return (
        f"{winner} is better than {loser} by {_format_difference(pair, style)}, "
        f"{_describe_p_value(pair)}."
    )


def _describe_undecided_pair(pair: PairComparison, style: TableStyle) -> str:
    ahead, behind = map(make_printable, order_better_first(pair))
    text = f"No significant difference between {ahead} and {behind}"
    if not math.isfinite(pair.difference):
        return f"{text}: {METRIC_TITLES[pair.metric]} is not defined in every fold."
    return f"{text}: {_format_difference(pair, style)}, {_describe_p_value(pair)}."


def _format_difference(pair: PairComparison, style: TableStyle) -> str:
    """Format the better model's lead and its interval with the same sign."""
    ends = [pair.low, pair.high]
    if pair.difference < 0:
        ends = [-pair.high, -pair.low]
    size = style.format_number(abs(pair.difference))
    interval = f" {style.format_interval(ends[0], ends[1])}" if math.isfinite(sum(ends)) else ""
    return f"{size}{_format_points(style)} {METRIC_TITLES[pair.metric]}{interval}"


def _format_points(style: TableStyle) -> str:
    return " points of" if style.percent else ""


def _describe_p_value(pair: PairComparison) -> str:
    text = format_p_value(pair.p_holm)
    if text == UNDEFINED:
        return "no p-value"
    return f"p {'< 0.001' if text.startswith('<') else f'= {text}'} after Holm"
