"""Every model, seed and fold: parts side by side, each done once, then one table of predictions."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

import torch

from sacmil.cohorts.splits import Fold
from sacmil.cohorts.table import Cohort
from sacmil.errors import RunError, SacMILError, explain_os_error
from sacmil.parallel import Outcome, Workers
from sacmil.results import (
    LOCALISATION,
    PREDICTIONS,
    Predictions,
    read_localisation,
    read_predictions,
    write_localisation,
    write_predictions,
)
from sacmil.training.bag_files import check_and_hash
from sacmil.training.config import Config
from sacmil.training.journal import last_line
from sacmil.training.part import Part, Place, check_models, sources, train_part
from sacmil.training.run_folder import open_run, write_configs
from sacmil.training.samples import Cache

_POLL_S = 0.5


class Tell(Protocol):
    """Told what is being done, how much of it, of how much, and the newest figure."""

    def __call__(self, task: str, done: int, total: int, note: str = "") -> None:
        """Tell."""


Engine = Callable[[Sequence["Part"], "Resources", "_Followed"], Iterator[Outcome]]


@dataclass(frozen=True)
class Resources:
    """What parts are spread over."""

    devices: tuple[str, ...] = ("cpu",)
    """A device per line of work: name one twice to have two parts share it."""
    threads: int | None = None
    """Of torch for each part on a CPU; None shares the cores out."""
    cache: Cache = "auto"
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    """Of the Ray cluster; None uses one that runs here, or starts one."""


class CrossValidated(NamedTuple):
    """What came of it."""

    predictions: Predictions | None
    """Of all finished parts; None where there is none."""
    failures: dict[str, str]
    """By part, why it is not finished."""


def cross_validate(
    out: Path,
    cohort: Cohort,
    bags: Mapping[str, Path],
    folds: Sequence[Fold],
    configs: Mapping[str, Config],
    *,
    seeds: Sequence[int] = (0,),
    resources: Resources | None = None,
    progress: Tell | None = None,
) -> CrossValidated:
    """Train and test every configuration on every fold with every seed.

    What is finished in ``out`` already is not done again; what was begun goes on.

    Args:
        out: the run folder.
        cohort: the slides and their labels.
        bags: by slide id, where its bag is.
        folds: how the cohort is divided.
        configs: what to train, by the name it has in tables and folders.
        seeds: each replaces the seed of every configuration.
        resources: what to train on.
        progress: told of epochs done.
    """
    resources, tell = resources or Resources(), progress or _silent
    _check_names(configs)
    check_models(configs.values(), bags, cohort.classes)
    with open_run(out, cohort, folds, "crossval", seeds):
        hashes = check_and_hash(out, bags, tell)
        parts = list(_parts(out, cohort, bags, hashes, folds, configs, seeds))
        todo = [part for part in parts if not part.is_finished()]  # refuses what does not fit
        write_configs(out, configs)
        failures = _run(parts, todo, resources, tell)
        return CrossValidated(_collected(out, parts), failures)


def _silent(task: str, done: int, total: int, note: str = "") -> None:
    pass


def _check_names(configs: Mapping[str, Config]) -> None:
    for name in configs:
        if not re.fullmatch(r"[\w=+][\w.=+-]*", name):
            raise RunError(
                f"{name!r} cannot be the name of a folder everywhere; expected letters, digits "
                "and _ . = + -"
            )


def _parts(
    out: Path,
    cohort: Cohort,
    bags: Mapping[str, Path],
    hashes: Mapping[str, str],
    folds: Sequence[Fold],
    configs: Mapping[str, Config],
    seeds: Sequence[int],
) -> Iterator[Part]:
    """Folds outermost, so that every model has its first figures early."""
    for seed in seeds:
        for number, fold in enumerate(folds):
            train, val, test = (sources(cohort, ids, bags, hashes) for ids in fold)
            for name, config in configs.items():
                yield Part(
                    folder=out / name / f"seed_{seed}" / f"fold_{number}",
                    name=name,
                    config=replace(config, seed=seed),
                    classes=cohort.classes,
                    fold=number,
                    train=train,
                    val=val,
                    test=test,
                )


def _run(
    parts: Sequence[Part], todo: Sequence[Part], resources: Resources, tell: Tell
) -> dict[str, str]:
    """Do what is not done yet; by part, why it failed."""
    follow = _Followed(parts, todo, tell)
    follow.look()
    failures: dict[str, str] = {}
    for outcome in _engine(resources)(todo, resources, follow):
        part = todo[outcome.key]
        if outcome.failure is not None:
            failures[f"{part.name}, seed {part.config.seed}, fold {part.fold}"] = outcome.failure
        follow.ended(part)
    return failures


def _engine(resources: Resources) -> Engine:
    if resources.engine == "ray":
        return _on_ray
    return _here if len(resources.devices) == 1 else _side_by_side


def _here(todo: Sequence[Part], resources: Resources, follow: _Followed) -> Iterator[Outcome]:
    """One part after the other in this process: a single line of work needs no other."""
    threads = torch.get_num_threads()
    place = Place(resources.devices[0], resources.cache, resources.threads)
    try:
        for index, part in enumerate(todo):
            try:
                train_part(part, place, tell=lambda line: follow.look())
                yield Outcome(index, None, None)
            except SacMILError as error:
                yield Outcome(index, None, str(error))
            except OSError as error:
                yield Outcome(index, None, explain_os_error(error))
    finally:
        torch.set_num_threads(threads)


def _side_by_side(
    todo: Sequence[Part], resources: Resources, follow: _Followed
) -> Iterator[Outcome]:
    """One process per line of work; each part's device is that of the line that is free."""
    if not todo:
        return
    devices = resources.devices[: len(todo)]
    threads = resources.threads or _threads_each(len(devices))
    free = list(devices)[::-1]
    at: dict[int, str] = {}
    waiting = list(range(len(todo)))[::-1]
    with Workers(len(devices), memory_limit=0, threads=threads) as workers:
        while waiting or workers.under_way:
            while waiting and free:
                index, device = waiting.pop(), free.pop()
                at[index] = device
                place = Place(device, resources.cache, threads)
                workers.submit(index, train_part, todo[index], place, limit_s=float("inf"))
            outcome = workers.next_outcome(_POLL_S)
            follow.look()
            if outcome is not None:
                free.append(at.pop(outcome.key))
                yield outcome


def _on_ray(todo: Sequence[Part], resources: Resources, follow: _Followed) -> Iterator[Outcome]:
    from sacmil.parallel.ray import run_each_on_ray

    gpus = int(any(device.startswith("cuda") for device in resources.devices))
    place = Place("cuda:0" if gpus else "cpu", resources.cache, resources.threads or 1)
    yield from run_each_on_ray(
        trainer_at,
        (place,),
        todo,
        cpus=place.threads or 1,
        gpus=gpus,
        address=resources.address,
        waiting=follow.look,
    )


def trainer_at(place: Place) -> Callable[[Part], None]:
    """What an actor of a cluster holds: it trains one part after another."""
    return lambda part: train_part(part, place)


def _threads_each(lines: int) -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // lines)


class _Followed:
    """Looks at the folders of parts to tell how far all of them are."""

    def __init__(self, parts: Sequence[Part], todo: Sequence[Part], tell: Tell) -> None:
        self._tell = tell
        self._finished = len(parts) - len(todo)
        self._count = len(parts)
        self._open = {part.folder: part.epochs for part in todo}
        self._total = sum(part.epochs for part in parts)
        self._done = self._total - sum(self._open.values())

    def look(self) -> None:
        """Tell of epochs done and the newest loss."""
        done, losses = self._done, []
        for folder, epochs in self._open.items():
            line = last_line(folder)
            if line is not None:
                done += min(int(line["epoch"]), epochs)
                losses.append(float(line["loss"]))
        newest = f", loss {sum(losses) / len(losses):.4f}" if losses else ""
        parts = f"{self._finished} of {self._count} parts"
        self._tell("cross-validation, epochs", done, self._total, parts + newest)

    def ended(self, part: Part) -> None:
        """A part is over, early or not."""
        self._done += self._open.pop(part.folder)
        self._finished += 1
        self.look()


def _collected(out: Path, parts: Sequence[Part]) -> Predictions | None:
    """The predictions of all finished parts of the run, of models trained here before too."""
    folders = {part.folder for part in parts}
    folders |= {card.parent for card in out.glob("*/seed_*/fold_*/card.json")}
    finished = [
        folder for folder in sorted(folders, key=_natural) if (folder / "card.json").is_file()
    ]
    if not finished:
        return None
    try:
        joined = Predictions.joined(map(read_predictions, finished))
    except SacMILError as error:
        raise RunError(f"{out}: {error}") from error
    write_predictions(out / PREDICTIONS, joined)
    if localised := [row for folder in finished for row in read_localisation(folder)]:
        write_localisation(out / LOCALISATION, localised)
    return joined


def _natural(path: Path) -> list[object]:
    """Sorts fold_10 after fold_9."""
    pieces = re.split(r"(\d+)", str(path))
    return [int(piece) if piece.isdigit() else piece for piece in pieces]
