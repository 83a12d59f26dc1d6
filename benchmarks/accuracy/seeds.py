"""Study 6: how much of a figure is luck? Twenty seeds of first weights on one split.

sac_mil_local, abmil_gated and transmil on one cohort of each of two synthetic tasks, and on one
fold of IDC. Nothing but the seed of weights and of the order of bags differs.

Run: python -m benchmarks.accuracy.seeds --device cuda --workers 16 --features FOLDER
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from benchmarks.accuracy import _study
from benchmarks.accuracy._job import Job, Source, Split
from benchmarks.accuracy._models import options_of
from benchmarks.accuracy._study import Request
from benchmarks.accuracy._tasks import real, recipe, synthetic
from benchmarks.accuracy.inside import IDC_EPOCHS, idc_split

NAME = "seeds"
MODELS = ("sac_mil_local", "abmil_gated", "transmil")
SEEDS = 20


def jobs(request: Request) -> Sequence[Job]:
    """Every seed of every model on every task."""
    return [
        Job(
            study=NAME,
            task=task,
            variant=model,
            model=model,
            options=options_of(model, request.size),
            source=source,
            split=split,
            seed=seed,
            training=recipe(request.size, **({"epochs": IDC_EPOCHS} if split else {})),
        )
        for seed in range(SEEDS)
        for task, source, split in _cases(request)
        for model in MODELS
    ]


def _cases(request: Request) -> Iterator[tuple[str, Source, Split]]:
    (first,) = request.seeds(1)
    for task in ("metastasis", "margin"):
        yield task, synthetic(task, first, request.size), {}
    yield "idc", real("idc", "lite0", request.features), idc_split(request.repeats[0], 0)


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
