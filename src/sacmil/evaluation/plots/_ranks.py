"""Plot of mean ranks, with groups of models that do not differ significantly."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sacmil.evaluation.comparison import PairComparison
from sacmil.evaluation.conclusions import is_significant
from sacmil.evaluation.metrics import METRIC_TITLES
from sacmil.evaluation.plots._style import COLORS, INK, label_axes, shorten_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_ranks(
    ranks: Mapping[str, float],
    comparisons: Sequence[PairComparison],
    *,
    metric: str = "auc",
    level: float = 0.95,
) -> Figure:
    """Draw the mean rank per model, best on top; a bar joins models without significant difference.

    Args:
        ranks: mean rank over folds by model.
        comparisons: of every pair; if some are missing, no bars are drawn.
        metric: metric of the ranks.
        level: a difference is significant if p after Holm is below 1 - level.
    """
    from matplotlib.figure import Figure

    ordered = sorted(ranks, key=lambda name: (ranks[name], name))
    groups = find_indistinct_groups(ordered, comparisons, level=level)
    figure = Figure(figsize=(7, 1.3 + 0.34 * len(ordered)), layout="constrained")
    axes = figure.subplots()
    for line, name in enumerate(ordered):
        axes.plot([1, ranks[name]], [line, line], color="#e4e4e4", linewidth=1.5, zorder=1)
        axes.plot(ranks[name], line, "o", color=COLORS[0], markersize=8, zorder=3)
        text = f"{ranks[name]:.1f}"
        axes.annotate(
            text, (ranks[name], line), (9, 0), textcoords="offset points", va="center", color=INK
        )
    right = max(len(ordered), 2)
    for index, group in enumerate(groups):
        x = right + 0.06 * right * (index + 1.5)
        axes.plot([x, x], [group[0] - 0.25, group[-1] + 0.25], color=INK, linewidth=3.5)
    axes.set_yticks(range(len(ordered)), [shorten_name(name) for name in ordered])
    axes.set_ylim(len(ordered) - 0.5, -0.5)
    axes.set_xlim(0.9, right * (1.06 + 0.06 * (len(groups) + 1)))
    axes.set_xticks(_integer_ticks(right))
    note = ": models joined by a bar do not differ significantly" if groups else ""
    if not groups and _has_all_pairs(ordered, comparisons):
        note = ": all models differ significantly"
    label_axes(axes, f"mean rank by {METRIC_TITLES[metric]} (1 is best)", "", f"Ranks{note}")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def find_indistinct_groups(
    ordered: Sequence[str], comparisons: Sequence[PairComparison], *, level: float = 0.95
) -> list[range]:
    """Return the longest runs of neighbours in rank without a significant difference."""
    if not _has_all_pairs(ordered, comparisons):
        return []  # models that were not compared must not look equal
    significant = {
        frozenset((c.first, c.second)) for c in comparisons if is_significant(c, level=level)
    }
    found: list[range] = []
    for start in range(len(ordered)):
        end = start + 1
        while end < len(ordered) and not any(
            frozenset((ordered[end], name)) in significant for name in ordered[start:end]
        ):
            end += 1
        if end - start > 1 and (not found or end > found[-1].stop):
            found.append(range(start, end))
    return found


def _has_all_pairs(ordered: Sequence[str], comparisons: Sequence[PairComparison]) -> bool:
    compared = {frozenset((pair.first, pair.second)) for pair in comparisons}
    return len(compared) == len(ordered) * (len(ordered) - 1) // 2


def _integer_ticks(last: int) -> list[int]:
    step = max(1, math.ceil(last / 10))
    return list(range(1, last + 1, step))
