"""Study 4: IDC. Bags are windows of 10 × 10 patches, split by slide; whole slides are located on.

Models see windows in training; afterwards they score up to 2,200 patches of a whole test slide,
and the scores are held against the truth of each patch. Colour alone (rgb) stands beside every
figure, since it goes a long way here, and so does darkness, which needs no training at all.

This is the second round. The first (results/idc_first.confirm.csv, repeats 2 to 5) was confirmed
without sac_mil_twice, which came out of it.

Run: python -m benchmarks.accuracy.idc --device cuda --workers 16 --features FOLDER
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.accuracy import _study
from benchmarks.accuracy._darkness import DARKNESS
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._models import everyone, in_order, to_confirm
from benchmarks.accuracy._study import Request
from benchmarks.accuracy._tasks import real, recipe
from benchmarks.accuracy._tuning import tuned
from benchmarks.accuracy.inside import IDC_EPOCHS, IDC_FOLDS, idc_split

NAME = "idc"
BASELINES = ("mean_pool", "abmil_gated", "max_pool")
"""What colour alone is tried with."""


def jobs(request: Request) -> Sequence[Job]:
    """Every model on every fold, once it is tuned."""
    models = everyone(request.size)
    if request.confirm:
        models = to_confirm(request.size, request.developed, NAME, IDC_FOLDS)
    asked = [(model, "lite0") for model in models] + [(model, "rgb") for model in BASELINES]
    found = [job for pair in asked for job in _of_model(request, *pair, models[pair[0]])]
    found += _all_folds(request, _first(request, DARKNESS, "rgb", {}))
    return in_order(found)


def _of_model(
    request: Request, model: str, encoder: str, options: Mapping[str, Any]
) -> Iterator[Job]:
    first = _first(request, model, encoder, options)

    def others(fields: Mapping[str, Any]) -> Iterator[Job]:
        return _all_folds(request, replace(first, training={**first.training, **fields}))

    yield from tuned(request, first, others)


def _first(request: Request, model: str, encoder: str, options: Mapping[str, Any]) -> Job:
    """On the first fold of development."""
    return Job(
        study=NAME,
        task="idc" if encoder == "lite0" else f"idc {encoder}",
        variant=model,
        model=model,
        options=options,
        source=real("idc", encoder, request.features),
        split=idc_split(1, 0),
        seed=1,
        training=recipe(request.size, epochs=IDC_EPOCHS),
    )


def _all_folds(request: Request, first: Job) -> Iterator[Job]:
    for repeat in request.repeats:
        for fold in request.folds(IDC_FOLDS):
            yield replace(first, split=idc_split(repeat, fold), seed=repeat)


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
