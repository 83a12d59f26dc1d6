"""Comparisons in words: who is better than whom, and how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sacmil.evaluation.comparison import Comparison
from sacmil.evaluation.metrics import LOWER_IS_BETTER, TITLES
from sacmil.evaluation.permutation import patients_needed
from sacmil.evaluation.printable import printable
from sacmil.evaluation.tables import NOTHING, Style, count, p_value

_TOLD = 12
"""How many pairs of a kind are told one by one; more are told together."""


def claims(
    comparisons: Sequence[Comparison], *, level: float = 0.95, style: Style | None = None
) -> list[str]:
    """What can be claimed, largest differences first, then what cannot.

    Args:
        comparisons: of one metric, as compare gives them.
        level: a difference is claimed when p, after Holm, is below one minus this.
        style: how figures are printed.
    """
    style = style or Style()
    if small := _too_small(comparisons, level):
        return [small]
    sure = [pair for pair in comparisons if is_claimed(pair, level=level)]
    left = [pair for pair in comparisons if not is_claimed(pair, level=level)]
    sure.sort(key=lambda pair: -abs(pair.difference))
    told = [_better(pair, style) for pair in sure] if len(sure) <= _TOLD else _winners(sure, style)
    if len(left) <= _TOLD:
        return told + [_undecided(pair, style) for pair in left]
    others = "other " if sure else ""
    return [*told, f"No difference can be claimed in the {others}{len(left)} pairs."]


def _too_small(comparisons: Sequence[Comparison], level: float) -> str | None:
    """That no p could pass, where so few patients make it so."""
    tested = [pair for pair in comparisons if pair.p_permutation is not None]
    if not tested:
        return None
    patients, needed = tested[0].patients, patients_needed(len(tested), level)
    if patients >= needed:
        return None
    names = "the models apart"
    if len(tested) == 1:
        names = " from ".join(map(printable, better_first(tested[0])))
    corrected = f" for {count(len(tested), 'pair')}" if len(tested) > 1 else ""
    return (
        f"The cohort is too small to tell {names}: it has {count(patients, 'patient')}, and p < "
        f"{1 - level:.2g} needs at least {needed}{corrected}."
    )


def _winners(sure: Sequence[Comparison], style: Style) -> list[str]:
    """A sentence per model that is better than others, who beats most of them first."""
    beaten: dict[str, list[Comparison]] = {}
    for pair in sure:
        beaten.setdefault(better_first(pair)[0], []).append(pair)
    ordered = sorted(beaten.items(), key=lambda item: (-len(item[1]), item[0]))
    return [_better_than_all(winner, pairs, style) for winner, pairs in ordered]


def _better_than_all(winner: str, pairs: Sequence[Comparison], style: Style) -> str:
    if len(pairs) == 1:
        return _better(pairs[0], style)
    losers = ", ".join(sorted(printable(better_first(pair)[1]) for pair in pairs))
    sizes = [abs(pair.difference) for pair in pairs]
    highest = p_value(max(pair.p_holm or 0.0 for pair in pairs))
    return (
        f"{printable(winner)} is better than {losers}: by {style.number(min(sizes))} to "
        f"{style.number(max(sizes))}{_points(style)} {TITLES[pairs[0].metric]}, "
        f"p {'< 0.001' if highest.startswith('<') else f'≤ {highest}'} after Holm."
    )


def is_claimed(pair: Comparison, *, level: float = 0.95) -> bool:
    """Whether the two differ by more than chance would explain, after Holm's correction."""
    return pair.p_holm is not None and pair.p_holm < 1 - level


def better_first(pair: Comparison) -> tuple[str, str]:
    """The two models, the better one first."""
    ahead = (pair.difference < 0) == (pair.metric in LOWER_IS_BETTER)
    return (pair.first, pair.second) if ahead else (pair.second, pair.first)


def _better(pair: Comparison, style: Style) -> str:
    winner, loser = map(printable, better_first(pair))
    return f"{winner} is better than {loser} by {_by(pair, style)}, {_sure(pair)}."


def _undecided(pair: Comparison, style: Style) -> str:
    ahead, behind = map(printable, better_first(pair))
    text = f"No difference can be claimed between {ahead} and {behind}"
    if not math.isfinite(pair.difference):
        return f"{text}: {TITLES[pair.metric]} is not defined in every fold."
    return f"{text}: {_by(pair, style)}, {_sure(pair)}."


def _by(pair: Comparison, style: Style) -> str:
    """How far the better one is ahead, and its interval turned the same way."""
    ends = [pair.low, pair.high]
    if pair.difference < 0:
        ends = [-pair.high, -pair.low]
    size = style.number(abs(pair.difference))
    interval = f" {style.interval(ends[0], ends[1])}" if math.isfinite(sum(ends)) else ""
    return f"{size}{_points(style)} {TITLES[pair.metric]}{interval}"


def _points(style: Style) -> str:
    return " points of" if style.percent else ""


def _sure(pair: Comparison) -> str:
    told = p_value(pair.p_holm)
    if told == NOTHING:
        return "no p-value"
    return f"p {'< 0.001' if told.startswith('<') else f'= {told}'} after Holm"
