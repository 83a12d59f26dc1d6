"""Which recipe becomes `standard`, by a rule that stands here before anything is confirmed.

Of the recipes that are worse than `standard` in AUC on no task with any model, the one with the
lowest log loss, a mean over tasks and models. Worse is a p < 0.05 by the bootstrap, after Holm over
all tasks and recipes of that model; tasks on which `standard` itself is not beyond chance are left
out, as there is nothing to lose on them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from benchmarks.accuracy._figures import CHANCE, SURE, Standing
from sacmil.evaluation.comparison import holm

Ranked = Mapping[str, Sequence[Standing]]
"""Of each task the variants, the best first."""


class Decision(NamedTuple):
    """What a rule says of recipes."""

    recipe: str
    log_loss: Mapping[str, float]
    """By recipe, a mean over tasks and models."""
    worse: Mapping[str, list[str]]
    """By recipe, where it loses: "MODEL on TASK"."""


def decide(held: Mapping[str, Ranked], log_losses: Mapping[str, Sequence[float]]) -> Decision:
    """Apply the rule.

    Args:
        held: by reference, "MODEL, standard", the variants of that model on every task.
        log_losses: by variant, "MODEL, RECIPE", one for each task.
    """
    worse: dict[str, list[str]] = defaultdict(list)
    for reference, ranked in held.items():
        model, _ = _parts(reference)
        for variant, tasks in worse_on(ranked, reference).items():
            worse[_parts(variant)[1]] += [f"{model} on {task}" for task in tasks]
    by_recipe: dict[str, list[float]] = defaultdict(list)
    for variant, losses in log_losses.items():
        by_recipe[_parts(variant)[1]].append(float(np.mean(losses)))
    means = {recipe: float(np.mean(losses)) for recipe, losses in by_recipe.items()}
    allowed = [recipe for recipe in means if recipe not in worse]
    return Decision(min(allowed, key=means.__getitem__), means, dict(worse))


def worse_on(ranked: Ranked, reference: str) -> dict[str, list[str]]:
    """By variant, the tasks on which it is worse than the reference."""
    pairs = [
        (task, row.variant, row.against)
        for task, rows in ranked.items()
        if _beyond_chance(rows, reference)
        for row in rows
        if row.against is not None
    ]
    found: dict[str, list[str]] = defaultdict(list)
    corrected = holm([against.p_bootstrap for *_, against in pairs])
    for (task, variant, against), p in zip(pairs, corrected, strict=True):
        if p is not None and p < SURE and against.difference > 0:  # reference minus variant
            found[variant].append(task)
    return dict(found)


def _beyond_chance(rows: Sequence[Standing], reference: str) -> bool:
    return any(row.variant == reference and row.figures["auc"].low > CHANCE for row in rows)


def _parts(variant: str) -> tuple[str, str]:
    """A variant's model and recipe."""
    model, _, recipe = variant.partition(", ")
    return model, recipe
