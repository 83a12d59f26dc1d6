"""Study 3: COLON and BREAST, the benchmarks of Ilse et al. (2018), under one protocol.

Every model with the encoder lite0, 10-fold once; all but the slowest again in the confirmatory run,
over four fresh repeats. SAC-MIL, mean_pool, abmil_gated, transmil and the best rival also with
lite0_mid. Colour alone (rgb) stands beside them. Folds are dealt by picture, as in the paper; the
epoch is chosen on an inner validation part, and so are eight settings of the recipe, on the first
fold.

This is the second round. In the first (results/colon_breast_first.csv: 50 epochs, repeats 2 to 5)
the first of equally good epochs was kept, which had hardly learnt.

Run: python -m benchmarks.accuracy.colon_breast --device cuda --workers 16 --features FOLDER
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from benchmarks.accuracy import _study
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._lines import Line
from benchmarks.accuracy._models import (
    CLOSER,
    SLOWEST,
    best_of,
    everyone,
    in_order,
    to_confirm,
)
from benchmarks.accuracy._study import Request
from benchmarks.accuracy._tasks import real, recipe
from benchmarks.accuracy._tuning import tuned

NAME = "colon_breast"
SETS = ("colon", "breast")
FOLDS, EPOCHS = 10, 20
FIRST, SECOND, COLOUR = "lite0", "lite0_mid", "rgb"
BASELINES = ("mean_pool", "abmil_gated")
"""What colour alone is tried with."""


def jobs(request: Request) -> Sequence[Job]:
    """Every model on every fold, once it is tuned."""
    found = [job for each in SETS for job in _of_set(request, each)]
    return in_order(found)


def _of_set(request: Request, name: str) -> Iterator[Job]:
    models = everyone(request.size)
    closer = [*CLOSER, *best_rival(request.developed, name)]
    asked = [(model, SECOND) for model in closer] + [(model, COLOUR) for model in BASELINES]
    confirmed = to_confirm(request.size, request.developed, name, FOLDS)
    asked += [(model, FIRST) for model in (confirmed if request.confirm else models)]
    for model, encoder in asked:
        first = _job(request, name, model, models[model], encoder, repeat=1, fold=0)
        yield from tuned(request, first, _all_folds(request, first))


def best_rival(lines: Sequence[Line], task: str) -> list[str]:
    """The best in development, of those not looked at anyway and not too slow to be confirmed."""
    return best_of(lines, task, FOLDS, but=(*CLOSER, *SLOWEST))


def _all_folds(request: Request, first: Job) -> Any:
    def others(fields: Mapping[str, Any]) -> Iterator[Job]:
        for repeat in request.repeats:
            for fold in request.folds(FOLDS):
                split = {**first.split, "repeat": repeat, "fold": fold}
                training = {**first.training, **fields}
                yield replace(first, split=split, training=training, seed=repeat)

    return others


def _job(
    request: Request,
    name: str,
    model: str,
    options: Mapping[str, Any],
    encoder: str,
    *,
    repeat: int,
    fold: int,
) -> Job:
    return Job(
        study=NAME,
        task=name if encoder == FIRST else f"{name} {encoder}",
        variant=model,
        model=model,
        options=options,
        source=real(name, encoder, request.features),
        split={"folds": FOLDS, "repeat": repeat, "fold": fold},
        seed=repeat,
        training=recipe(request.size, epochs=EPOCHS),
    )


if __name__ == "__main__":
    _study.main(NAME, jobs, __doc__ or "")
