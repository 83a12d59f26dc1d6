"""Mean ranks of models, and who cannot be told apart."""

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
    """Mean rank per model, the best on top; a bar joins models that cannot be told apart.

    Args:
        ranks: mean rank over folds by model.
        comparisons: of every pair; where some are missing no bars are drawn.
        metric: what was ranked.
        level: a difference counts when p, after Holm, is below one minus this.
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
    for place, group in enumerate(groups):
        x = right + 0.06 * right * (place + 1.5)
        axes.plot([x, x], [group[0] - 0.25, group[-1] + 0.25], color=INK, linewidth=3.5)
    axes.set_yticks(range(len(ordered)), [shorten_name(name) for name in ordered])
    axes.set_ylim(len(ordered) - 0.5, -0.5)
    axes.set_xlim(0.9, right * (1.06 + 0.06 * (len(groups) + 1)))
    axes.set_xticks(_integer_ticks(right))
    told = ": models joined by a bar cannot be told apart" if groups else ""
    if not groups and _has_all_pairs(ordered, comparisons):
        told = ": every two models can be told apart"
    label_axes(axes, f"mean rank by {METRIC_TITLES[metric]} (1 is best)", "", f"Ranks{told}")
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure


def find_indistinct_groups(
    ordered: Sequence[str], comparisons: Sequence[PairComparison], *, level: float = 0.95
) -> list[range]:
    """The longest runs of neighbours in rank among whom no difference can be claimed."""
    if not _has_all_pairs(ordered, comparisons):
        return []  # who was not compared must not look equal
    sure = {frozenset((c.first, c.second)) for c in comparisons if is_significant(c, level=level)}
    found: list[range] = []
    for start in range(len(ordered)):
        end = start + 1
        while end < len(ordered) and not any(
            frozenset((ordered[end], name)) in sure for name in ordered[start:end]
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
