"""Study 7: which recipe `sacmil train` and `crossval` take where none is asked for.

The paper's (Adam, 1e-4, 200 epochs, the last weights), and the one that other studies start from
(AdamW, 5e-4, 20 epochs down a cosine): with the epoch chosen on an inner validation part, with the
last weights, which learn from that part as well, and as `standard`, of 2,000 steps at least.
Nothing is tuned, as by somebody who types no option. Real sets, development only; the paper's not
on IDC, where 200 epochs are 130,000 steps a fold. Blocks that start larger, which study 8 found to
learn from fewer slides, stand beside their preset.

Run: python -m benchmarks.accuracy.recipes --device cuda --workers 16 --features FOLDER
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.accuracy import _study, colon_breast
from benchmarks.accuracy._job import Job, Split
from benchmarks.accuracy._models import LARGER, PRESETS, options_of
from benchmarks.accuracy._study import Request
from benchmarks.accuracy._tasks import RECIPE, real
from benchmarks.accuracy.inside import IDC_FOLDS, idc_split

NAME = "recipes"
RECIPES: Mapping[str, dict[str, Any]] = {
    "chosen epoch": {**RECIPE, "epochs": 20},
    "last epoch": {**RECIPE, "epochs": 20, "monitor": "last"},
    "standard": {**RECIPE, "epochs": 20, "min_steps": 2000, "monitor": "last"},
    "paper": {"optimiser": "adam", "lr": 1e-4, "epochs": 200, "monitor": "last"},
}
MODELS: Mapping[str, Sequence[str]] = {
    "sac_mil_local": tuple(RECIPES),
    "sac_mil_twice": ("chosen epoch", "standard"),
    "sac_mil": ("standard", "paper"),
    "abmil_gated": ("chosen epoch", "standard"),
}
"""By which recipes each is trained."""


def jobs(request: Request) -> Sequence[Job]:
    """Quick recipes first, of each all folds of all sets."""
    return [
        _job(request, recipe, model, task, split, options)
        for recipe in RECIPES
        for model, options in _models(request, recipe)
        for task, split in folds(request, request.repeats)
        if (recipe, task) != ("paper", "idc")
    ]


def _models(request: Request, recipe: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for model, recipes in MODELS.items():
        if recipe in recipes:
            yield model, options_of(model, request.size)
    for model in PRESETS if recipe == "standard" else ():
        yield model, {**options_of(model, request.size), **LARGER}


def _job(
    request: Request,
    recipe: str,
    model: str,
    task: str,
    split: Split,
    options: Mapping[str, Any],
) -> Job:
    training = fields_of(recipe, request)
    larger = " start 2" if "start" in options else ""
    return Job(
        study=NAME,
        task=task,
        variant=f"{model}{larger}, {recipe}",
        model=model,
        options=options,
        source=real(task, "lite0", request.features),
        split=for_training(split) if training["monitor"] == "last" else split,
        seed=int(split["repeat"]),
        training=training,
    )


def fields_of(recipe: str, request: Request) -> Mapping[str, Any]:
    """Of a recipe, shortened where the study is."""
    return RECIPES[recipe] | shortened(request)


def shortened(request: Request) -> dict[str, Any]:
    """What a study that is only tried out changes in a recipe."""
    epochs = request.size.epochs
    return {} if epochs is None else {"epochs": epochs, "min_steps": 0}


def folds(request: Request, repeats: Sequence[int]) -> Iterator[tuple[str, Split]]:
    """Of the real sets: set and split."""
    for repeat in repeats:
        for fold in request.folds(colon_breast.FOLDS):
            for task in colon_breast.SETS:
                yield task, {"folds": colon_breast.FOLDS, "repeat": repeat, "fold": fold}
        for fold in request.folds(IDC_FOLDS):
            yield "idc", idc_split(repeat, fold)


def for_training(split: Split) -> Split:
    """Without an inner validation part."""
    return {**split, "validation": 0.0}


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
