"""Study 10: how long to train, and how firmly, where nothing is tuned and the last weights stay.

On IDC, some 670 windows of twelve slides a fold, `standard` is far too sure of what it gets wrong
(study 7). Here it is tried with fewer epochs, 2,000 steps at least as ever, and with more weight
decay, on the ten tasks of study 9; two models, as a recipe is for all. Sets of 100 bags and fewer
have as many epochs as 2,000 steps take in any case, those of 400 where 5 are asked for.

Said before it is run: of those that development leaves, the one with the lowest log loss, a mean
over tasks and models, of those that are worse than `standard` in AUC on no task with any model
(p < 0.05 by the bootstrap, after Holm over the recipes of that model), becomes `standard`.

Run: python -m benchmarks.accuracy.calmer --device cuda --workers 16 --features FOLDER \\
    --outlines FILE
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.accuracy import _study, recipes
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._models import options_of
from benchmarks.accuracy._study import Request
from benchmarks.accuracy.larger import Fresh, on_ten_tasks

NAME = "calmer"
MODELS = ("sac_mil_local", "abmil_gated")
CHANGES: Mapping[str, dict[str, Any]] = {
    "standard": {},
    "10 epochs": {"epochs": 10},
    "5 epochs": {"epochs": 5},
    "3 epochs": {"epochs": 3},
    "2 epochs": {"epochs": 2},
    "5 epochs, 1000 steps": {"epochs": 5, "min_steps": 1000},
    "decay 0.1": {"weight_decay": 0.1},
    "5 epochs, decay 0.1": {"epochs": 5, "weight_decay": 0.1},
}
LEFT = ("standard", "5 epochs", "3 epochs")
"""By development, for the confirmatory run: decay changes little, and with 1,000 steps nests of 200
slides and margins are not learnt. With fewer than 1,000 bags 2 and 3 epochs are one."""
FRESH = Fresh((28, 29, 30), (12, 13))


def jobs(request: Request) -> Sequence[Job]:
    """Every model by every recipe on every task."""
    changes = {name: CHANGES[name] for name in (LEFT if request.confirm else CHANGES)}
    return by_recipes(request, NAME, changes, FRESH)


def by_recipes(
    request: Request,
    study: str,
    changes: Mapping[str, dict[str, Any]],
    fresh: Fresh,
    *,
    developed: int = 1,
) -> list[Job]:
    """Both models on ten tasks, by `standard` with each of these changes."""
    return [
        replace(job, training=recipes.RECIPES["standard"] | change | recipes.shortened(request))
        for name, change in changes.items()
        for model in MODELS
        for job in on_ten_tasks(
            request, _named(request, study, model, name), fresh, developed=developed
        )
    ]


def _named(request: Request, study: str, model: str, change: str) -> dict[str, Any]:
    options = options_of(model, request.size)
    return {"study": study, "variant": f"{model}, {change}", "model": model, "options": options}


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
