"""Which models are compared, and the options that make the comparison theirs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from benchmarks.accuracy._darkness import DARKNESS, Darkness
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._lines import Line
from benchmarks.accuracy._tasks import Size
from sacmil.models import MILModel, create_model, list_models

CLOSER = ("sac_mil", "sac_mil_local", "sac_mil_twice", "mean_pool", "abmil_gated", "transmil")
"""Looked at more closely than the others, with the best of the others beside them."""

RECORDED_NAMES = {"sac_mil_dual": "sac_mil_twice"}
"""Models that results were recorded for under another name."""

PRESETS = ("sac_mil_local", "sac_mil_twice")
LARGER: Mapping[str, Any] = {"start": 2.0}
"""What presets are also tried with: blocks whose first weights are twice as large."""

SLOWEST = ("norma", "mambamil", "longnet", "hipt", "mammil")
"""Whose steps took 80 to 380 ms on 20,000 instances, where TransMIL's take 21: they are compared in
development on real sets, but neither on the longest slides nor, unless it was best, in confirmatory
runs."""

SLOW = ("transmil", *SLOWEST)
"""Those whose steps take longest, on bags of any size: they come last."""


def in_order(jobs: Iterable[Job]) -> list[Job]:
    """Every job once: quick models first, of each what tunes, then seed after seed."""
    once = {job.key: job for job in jobs}
    return sorted(once.values(), key=lambda job: (_slowness(job), job.role == "run", job.seed))


def _slowness(job: Job) -> int:
    return SLOW.index(job.model) + 1 if job.model in SLOW else 0


def everyone(size: Size) -> dict[str, Mapping[str, Any]]:
    """Every registered model with its own defaults, by the name it has in tables."""
    return {RECORDED_NAMES.get(name, name): options_of(name, size) for name in list_models()}


def all_but_slowest(size: Size) -> dict[str, Mapping[str, Any]]:
    """Those that can be trained on long slides, and many times."""
    return {name: given for name, given in everyone(size).items() if name not in SLOWEST}


def to_confirm(
    size: Size, lines: Iterable[Line], task: str, folds: int
) -> dict[str, Mapping[str, Any]]:
    """All but the slowest, and the best in development, however slow it is."""
    best = best_of(lines, task, folds)
    return {n: given for n, given in everyone(size).items() if n in best or n not in SLOWEST}


def best_of(lines: Iterable[Line], task: str, folds: int, but: Collection[str] = ()) -> list[str]:
    """The model with the highest mean AUC over the folds of a task; none before one has them all.

    Args:
        lines: of the development phase.
        task: what they are about.
        folds: of its cross-validation.
        but: models that are not asked for.
    """
    found: dict[str, list[float]] = defaultdict(list)
    for line in lines:
        if line["task"] == task and line["role"] == "run" and line["auc"]:
            found[line["model"]].append(float(line["auc"]))
    whole = {m: sum(v) / len(v) for m, v in found.items() if len(v) >= folds and m not in but}
    return [max(whole, key=lambda model: whole[model])] if whole else []


def options_of(name: str, size: Size) -> Mapping[str, Any]:
    """Of a model's constructor: none, unless the study is a tiny one."""
    return (size.options or {}) if name.startswith("sac_mil") else {}


def model_of(job: Job, in_dim: int) -> MILModel:
    """The model of a job, untrained."""
    if job.model == DARKNESS:
        return Darkness(in_dim=in_dim, num_classes=2)
    return create_model(job.model, in_dim=in_dim, num_classes=2, **tuples(job.options))


def tuples(given: Mapping[str, Any]) -> dict[str, Any]:
    """What JSON holds as lists, recipes and models hold as tuples."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
