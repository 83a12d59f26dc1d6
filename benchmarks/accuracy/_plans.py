"""Plans of all bags of a source, made once for all models that plan alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.accuracy._bags import Bags
from benchmarks.accuracy._job import Job, digest
from sacmil.atomic import atomic_write

Plan = dict[str, npt.NDArray[Any]]


def plan_name(job: Job) -> str:
    """The same for jobs whose plans are the same."""
    if job.arrangement:
        return job.arrangement
    planner = _planner(job)
    return digest([planner.name, dict(planner.options)])


def make_plans(path: Path, job: Job, bags: Bags) -> None:
    """Write the plan of every bag, unless that has been done."""
    if path.exists():
        return
    plan = _maker(job)
    arrays: Plan = {}
    for bag in range(len(bags)):
        where = bags.slice(bag)
        made = plan(bags.coords[where], bags.features[where].astype(np.float32))
        arrays |= {f"{bag}/{key}": value for key, value in made.items()}
    with atomic_write(path) as partial, partial.open("wb") as stream:
        np.savez(stream, **{"bags": np.array(len(bags)), **arrays})  # type: ignore[arg-type]


def read_plans(path: Path) -> list[Plan]:
    """The plan of every bag."""
    with np.load(path) as arrays:
        plans: list[Plan] = [{} for _ in range(int(arrays["bags"]))]
        for name in arrays.files:
            bag, _, key = name.partition("/")
            if key:
                plans[int(bag)][key] = arrays[name]
    return plans


def _maker(job: Job) -> Callable[[npt.NDArray[Any], npt.NDArray[Any]], Plan]:
    if job.arrangement:
        return ARRANGEMENTS[job.arrangement]
    from sacmil.plans import make_plan

    planner = _planner(job)
    return lambda coords, features: make_plan(planner.name, planner.options, coords, features)


def _planner(job: Job) -> Any:
    import torch

    from benchmarks.accuracy._models import model_of

    with torch.device("meta"):
        return model_of(job, in_dim=8).planner


def _raster(coords: npt.NDArray[Any], features: npt.NDArray[Any]) -> Plan:
    """Row by row, as most files list their tiles."""
    return {"order": np.lexsort((coords[:, 0], coords[:, 1]))}


def _random(coords: npt.NDArray[Any], features: npt.NDArray[Any]) -> Plan:
    """An order that knows nothing of places."""
    return {"order": np.random.default_rng(len(coords)).permutation(len(coords))}


ARRANGEMENTS = {"raster": _raster, "random": _random}
"""What regions are measured against."""
