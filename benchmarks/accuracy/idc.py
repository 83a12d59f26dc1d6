"""Study 4: IDC. Bags are windows of 10 × 10 patches, split by slide; whole slides are located on.

Models see windows in training; afterwards they score up to 2,200 patches of a whole test slide,
and the scores are held against the truth of each patch. Colour alone (rgb) stands beside every
figure, since it goes a long way here.

Run: python -m benchmarks.accuracy.idc --device cuda --workers 16 --features FOLDER
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.accuracy import _study
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._models import everyone
from benchmarks.accuracy._study import Request
from benchmarks.accuracy._tasks import real, recipe
from benchmarks.accuracy._tuning import tuned
from benchmarks.accuracy.inside import IDC_EPOCHS, IDC_FOLDS, idc_split

NAME = "idc"
BASELINES = ("mean_pool", "abmil_gated", "max_pool")
"""What colour alone is tried with."""


def jobs(request: Request) -> Sequence[Job]:
    """Tuning first."""
    models = everyone(request.size)
    asked = [(model, "lite0") for model in models] + [(model, "rgb") for model in BASELINES]
    found = [job for pair in asked for job in _of_model(request, *pair, models[pair[0]])]
    return sorted(found, key=lambda job: job.role == "run")


def _of_model(
    request: Request, model: str, encoder: str, options: Mapping[str, Any]
) -> Iterator[Job]:
    first = Job(
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

    def others(fields: Mapping[str, Any]) -> Iterator[Job]:
        for repeat in request.repeats:
            for fold in request.folds(IDC_FOLDS):
                training = {**first.training, **fields}
                split = idc_split(repeat, fold)
                yield replace(first, split=split, training=training, seed=repeat)

    yield from tuned(request, first, others)


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
