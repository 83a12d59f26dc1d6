"""The same tuning for every model: eight settings, chosen by the inner validation part alone.

Tuning happens in development, on the first fold of a task; its lines stand in the same CSV file
with the role ``tune`` and no test figures, since the test part is not looked at. The confirmatory
run takes what development chose.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from benchmarks.accuracy._job import Job
from benchmarks.accuracy._lines import Line
from benchmarks.accuracy._study import Request
from benchmarks.accuracy._tasks import RECIPE

RATES = (5e-5, 1.5e-4, 5e-4, 1.5e-3)
DECAYS = (1e-3, 1e-1)
TRIED: tuple[Mapping[str, Any], ...] = tuple(
    {"lr": rate, "weight_decay": decay} for rate, decay in product(RATES, DECAYS)
)
"""Fields of the recipe that are tried; eight of them."""
TELLING = 0.63
"""A validation AUC that is two standard errors from chance, with 80 slides; below it nothing has
been learnt, so that nothing has been told about the settings either."""


def tuned(
    request: Request, first: Job, others: Callable[[Mapping[str, Any]], Iterator[Job]]
) -> Iterator[Job]:
    """The jobs that tune a model on a task, and once they are done, those with what was chosen.

    Args:
        request: what the study is asked for.
        first: the model on the first fold of development.
        others: all jobs of model and task, given the fields of the recipe.
    """
    trials = [_trial(first, fields) for fields in TRIED]
    chosen = best(trials, request.developed)
    if not request.confirm:
        yield from trials
    elif chosen is None:
        raise SystemExit(
            f"{first.task}, {first.variant}: has not been tuned; run the study without --confirm "
            "first, to its end"
        )
    if chosen is not None:
        yield from others(chosen)


def best(trials: Sequence[Job], lines: Sequence[Line]) -> dict[str, Any] | None:
    """The fields whose validation AUC is highest, then whose loss is lowest; None before the end.

    Where a setting failed it is out; where all of them did there is nothing to choose. Where none
    is beyond chance the recipe's own fields are taken.
    """
    by_key = {line["key"]: line for line in lines}
    found = [by_key.get(trial.key) for trial in trials]
    if any(line is None for line in found):
        return None
    whole = [line for line in found if line is not None and not line["failure"]]
    if not whole:
        return None
    line = max(whole, key=lambda line: (float(line["val_auc"]), -float(line["val_loss"])))
    told = float(line["val_auc"]) >= TELLING
    training: Mapping[str, Any] = json.loads(line["training"]) if told else RECIPE
    return {key: training[key] for key in TRIED[0]}


def _trial(job: Job, fields: Mapping[str, Any]) -> Job:
    return replace(job, training={**job.training, **fields}, role="tune")
