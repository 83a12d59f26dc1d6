"""One model, one seed, one fold: train, choose, then test; a folder that is a model folder.

The card is written last: a part with a card is finished and is never done again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import yaml

from sacmil.atomic import whole_file
from sacmil.bag import Bag
from sacmil.card import CARD, read_card, seen_mark
from sacmil.cohorts.table import Cohort, LabelledSlide
from sacmil.errors import ConfigError, OptionError, RunError, SacMILError
from sacmil.formats import read_bag
from sacmil.installation import usable_device, versions
from sacmil.models import MILModel, create_model
from sacmil.models._folder import WEIGHTS, model_files, sized_model
from sacmil.results import (
    LOCALISATION,
    PREDICTIONS,
    Predictions,
    write_localisation,
    write_predictions,
)
from sacmil.training.bag_files import read_width
from sacmil.training.checkpoint import Checkpoint, Epoch
from sacmil.training.config import Config
from sacmil.training.journal import Journal
from sacmil.training.localise import LocalisationRecorder
from sacmil.training.loop import Fitted, fit, predicted
from sacmil.training.samples import Cache, Read, Samples

CHECKPOINT = "checkpoint.safetensors"
CONFIG = "config.yaml"


class Source(NamedTuple):
    """A labelled slide and where its bag is."""

    slide: LabelledSlide
    path: str
    sha256: str
    """Of the bag's bytes."""


def sources(
    cohort: Cohort, slide_ids: Sequence[str], bags: Mapping[str, Path], hashes: Mapping[str, str]
) -> tuple[Source, ...]:
    """The slides of a part of a fold with their bags."""
    return tuple(
        Source(slide, str(bags[slide.slide_id]), hashes[slide.slide_id])
        for slide in cohort.of(slide_ids)
    )


@dataclass(frozen=True, kw_only=True)
class Part:
    """What to train on what, and where to put it."""

    folder: Path
    name: str
    """What the model is called in tables."""
    config: Config
    classes: tuple[str, ...]
    fold: int
    train: tuple[Source, ...]
    val: tuple[Source, ...]
    test: tuple[Source, ...]

    @property
    def trained_on(self) -> tuple[Source, ...]:
        """Without a choice to make, the validation part is training material like any other."""
        chooses = self.config.to_recipe().monitor != "last"
        return self.train if chooses else self.train + self.val

    @property
    def epochs(self) -> int:
        """How many there are, unless training stops early."""
        return self.config.to_recipe().for_bags(len(self.trained_on)).epochs

    @property
    def fingerprint(self) -> str:
        """Of everything that decides the weights."""
        facts = {
            "config": self.config.to_dict(),
            "classes": self.classes,
            "slides": [
                [(source.slide.slide_id, source.slide.label, source.sha256) for source in side]
                for side in (self.train, self.val, self.test)
            ],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def is_finished(self) -> bool:
        """Whether it has been done; RunError if something else was done under its name."""
        finished = (self.folder / CARD).is_file()
        if finished:
            begun = read_card(self.folder)["notes"].get("training", {}).get("fingerprint")
        else:
            begun = Checkpoint(self.folder / CHECKPOINT).fingerprint()
        if begun not in (None, self.fingerprint):
            raise RunError(
                f"{self.folder}: holds another model, or one trained on other data or with other "
                f"settings ({CONFIG} there says which); choose another --out, or remove that folder"
            )
        return finished


@dataclass(frozen=True)
class Place:
    """Where a part is trained; of no consequence for its weights beyond rounding."""

    device: str = "cpu"
    cache: Cache = "auto"
    threads: int | None = None
    """Of torch on the CPU; None leaves them as they are."""


_MOST_PARAMETERS = 2_000_000_000
"""8 GB of weights; the largest model here has a hundredth of it."""


def check_models(
    configs: Iterable[Config], bags: Mapping[str, Path], classes: Sequence[str]
) -> None:
    """Refuse options that no model can be made with, before anything else is done."""
    dim = read_width(next(iter(bags.values())))
    if dim is None:
        return  # the check of all bags reports it, with all others that cannot be read
    for config in configs:
        options = {"num_classes": len(classes), **config.model_options()}
        model = sized_model(config.model, in_dim=dim, **options)
        count = sum(parameter.numel() for parameter in model.parameters())
        if count > _MOST_PARAMETERS:
            raise OptionError(
                f"{config.model} with these options has {count:,} parameters; expected at most "
                f"{_MOST_PARAMETERS:,}, make its layers narrower or fewer"
            )


def _made(config: Config, dim: int, classes: int) -> MILModel:
    return create_model(
        config.model, in_dim=dim, **{"num_classes": classes, **config.model_options()}
    )


def train_part(
    part: Part,
    place: Place | None = None,
    *,
    read: Read = read_bag,
    tell: Callable[[Epoch], None] | None = None,
) -> None:
    """Train, choose the epoch, test, and write the folder; at once where it is there already.

    Args:
        part: what to do.
        place: on what.
        read: how a file becomes a bag; a test bag is read once, after the epoch was chosen.
        tell: told of every epoch.
    """
    if part.is_finished():
        return
    place = place or Place()
    if place.threads:
        torch.set_num_threads(place.threads)
    part.folder.mkdir(parents=True, exist_ok=True)
    _write_config(part)
    work = _Work(part, place, read)
    checkpoint = Checkpoint(part.folder / CHECKPOINT)
    with Journal(part.folder) as journal:

        def tell_all(line: Epoch) -> None:
            journal.tell(line)
            if tell:
                tell(line)

        try:
            fitted = work.train(checkpoint, tell_all)
        finally:
            checkpoint.finish()
    work.test_and_write(fitted)
    checkpoint.remove()


def _write_config(part: Part) -> None:
    with whole_file(part.folder / CONFIG) as partial:
        partial.write_text(yaml.safe_dump(part.config.to_dict(), sort_keys=False))


class _Work:
    def __init__(self, part: Part, place: Place, read: Read) -> None:
        self.part, self.place, self.read = part, place, read
        self.recipe = part.config.to_recipe()
        self.device = usable_device(place.device)
        self.precision = _precision(part.config, self.device)
        self.first = read(Path(part.train[0].path))
        self.model = self._model()

    def _model(self) -> MILModel:
        torch.manual_seed(self.part.config.seed)
        made = _made(self.part.config, self.first.dim, len(self.part.classes))
        return made.to(self.device)

    def train(self, checkpoint: Checkpoint, tell: Callable[[Epoch], None]) -> Fitted:
        part, chooses = self.part, self.recipe.monitor != "last"
        training = self._samples(part.trained_on)
        try:
            return fit(
                self.model,
                training,
                self.recipe,
                validation=self._samples(part.val) if chooses else None,
                seed=part.config.seed,
                precision=self.precision,
                checkpoint=checkpoint,
                fingerprint=part.fingerprint,
                tell=tell,
            )
        except torch.OutOfMemoryError as error:
            raise SacMILError(
                f"{part.name}: the GPU has too little memory; try --cache memory, fewer parts at "
                "once (--per-gpu 1), or precision=bfloat16"
            ) from error

    def _samples(
        self, chosen: Sequence[Source], cache: Cache | None = None, read: Read | None = None
    ) -> Samples:
        return Samples(
            self.model,
            [Path(source.path) for source in chosen],
            [source.slide.label for source in chosen],
            device=self.device,
            cache=cache or self.place.cache,
            read=read or self.read,
        )

    def test_and_write(self, fitted: Fitted) -> None:
        part = self.part
        files = model_files(fitted.model, part.classes, self._notes(fitted))
        with whole_file(part.folder / WEIGHTS) as partial:
            partial.write_bytes(files[WEIGHTS])
        recorder = LocalisationRecorder(
            [(source.slide, Path(source.path)) for source in part.test],
            self.read,
            fold=part.fold,
            seed=part.config.seed,
            model=part.name,
        )
        chosen_by = part.val if self.recipe.monitor != "last" else ()
        found = [self._predictions(fitted.model, "val", chosen_by)] if chosen_by else []
        found.append(self._predictions(fitted.model, "test", part.test, recorder))
        write_predictions(part.folder / PREDICTIONS, Predictions.joined(found))
        if recorder.rows:
            write_localisation(part.folder / LOCALISATION, recorder.rows)
        with whole_file(part.folder / CARD) as partial:
            partial.write_bytes(files[CARD])

    def _predictions(
        self,
        model: MILModel,
        split: str,
        side: Sequence[Source],
        recorder: LocalisationRecorder | None = None,
    ) -> Predictions:
        part = self.part
        rows = [
            (s.slide_id, s.patient_id, split, part.fold, part.config.seed, part.name, s.label)
            for s, _, _ in side
        ]
        samples = self._samples(side, cache="none", read=recorder.read if recorder else None)
        on_output = recorder.add if recorder else None
        found = (
            predicted(model, samples, self.precision, on_output=on_output)
            if side
            else np.empty((0, 2))
        )
        for (slide_id, *_), probabilities in zip(rows, found, strict=True):
            if not np.isfinite(probabilities).all():
                raise SacMILError(
                    f"{slide_id}: the model answers {probabilities.tolist()}, no probabilities; "
                    "look for features of its bag that are far too large"
                )
        return Predictions.of(part.classes, rows, found)

    def _seen(self) -> list[str]:
        """Marks of the slides and patients that made the model, so that a test can tell them."""
        slides = [source.slide for source in self.part.train + self.part.val]
        marks = {seen_mark("slide", slide.slide_id) for slide in slides}
        return sorted(marks | {seen_mark("patient", slide.patient_id) for slide in slides})

    def _notes(self, fitted: Fitted) -> dict[str, Any]:
        part = self.part
        return {
            "training": {
                **part.config.to_dict(),
                "name": part.name,
                "fold": part.fold,
                "epoch": fitted.epoch,
                "epochs": fitted.history[-1].epoch,
                "fingerprint": part.fingerprint,
                "slides": {"train": len(part.train), "val": len(part.val), "test": len(part.test)},
                "seen": self._seen(),
                "device": str(self.device),
                "versions": versions(),
            },
            "bags": bag_facts(self.first),
        }


def _precision(config: Config, device: torch.device) -> torch.dtype:
    """Where a CPU has no bfloat16, every product would go the slowest way there is."""
    slow = device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if config.precision == "bfloat16" and slow:
        raise ConfigError(
            "precision=bfloat16: this CPU does not compute in it; expected float32, or a GPU"
        )
    found: torch.dtype = getattr(torch, config.precision)
    return found


def bag_facts(bag: Bag) -> dict[str, Any]:
    """What a model must know of the bags it can answer."""
    return {
        "encoder": bag.encoder.name if bag.encoder else None,
        "encoder_hash": bag.encoder.hash if bag.encoder else None,
        "dim": bag.dim,
        "patch_um": float(bag.patch_size * bag.mpp) if bag.mpp else None,
        "patch_px": None if bag.patch_size_px is None else int(bag.patch_size_px),
        "tile_px": int(bag.tile_px) if bag.tile_px else None,
        "tissue": (bag.provenance or {}).get("tissue_mode"),
    }
