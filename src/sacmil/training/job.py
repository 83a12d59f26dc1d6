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

from sacmil.atomic import atomic_write
from sacmil.bag import Bag
from sacmil.card import CARD_FILE, anonymized_id, read_card
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.environment import list_versions, select_device
from sacmil.errors import ConfigError, OptionError, RunError, SacMILError
from sacmil.formats import read_bag
from sacmil.models import MILModel, create_model
from sacmil.models._folder import WEIGHTS, create_meta_model, serialize_model
from sacmil.models._old_names import restore_old_names
from sacmil.results import (
    LOCALIZATION_FILE,
    PREDICTIONS_FILE,
    Predictions,
    write_localization,
    write_predictions,
)
from sacmil.training.bag_checks import read_width
from sacmil.training.checkpoint import Checkpoint, EpochMetrics
from sacmil.training.config import TrainingConfig
from sacmil.training.fit import FitResult, fit, predict_samples
from sacmil.training.loading import BagReader, CacheMode, SampleLoader
from sacmil.training.localization import LocalizationRecorder
from sacmil.training.log import TrainingLog

CHECKPOINT_FILE = "checkpoint.safetensors"
CONFIG_FILE = "config.yaml"


class LabeledBag(NamedTuple):
    """A labelled slide and where its bag is."""

    slide: LabeledSlide
    path: str
    sha256: str
    """Of the bag's bytes."""


def list_labeled_bags(
    cohort: Cohort, slide_ids: Sequence[str], bags: Mapping[str, Path], hashes: Mapping[str, str]
) -> tuple[LabeledBag, ...]:
    """The slides of a part of a fold with their bags."""
    return tuple(
        LabeledBag(slide, str(bags[slide.slide_id]), hashes[slide.slide_id])
        for slide in cohort.get_slides(slide_ids)
    )


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """What to train on what, and where to put it."""

    folder: Path
    name: str
    """What the model is called in tables."""
    config: TrainingConfig
    classes: tuple[str, ...]
    fold: int
    train: tuple[LabeledBag, ...]
    val: tuple[LabeledBag, ...]
    test: tuple[LabeledBag, ...]

    @property
    def training_set(self) -> tuple[LabeledBag, ...]:
        """Without a choice to make, the validation part is training material like any other."""
        chooses = self.config.to_recipe().monitor != "last"
        return self.train if chooses else self.train + self.val

    @property
    def epochs(self) -> int:
        """How many there are, unless training stops early."""
        return self.config.to_recipe().adapt_to_bags(len(self.training_set)).epochs

    @property
    def fingerprint(self) -> str:
        """Of everything that decides the weights."""
        facts = {
            "config": restore_old_names(self.config.to_dict()),
            "classes": self.classes,
            "slides": [
                [(source.slide.slide_id, source.slide.label, source.sha256) for source in side]
                for side in (self.train, self.val, self.test)
            ],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def is_finished(self) -> bool:
        """Whether it has been done; RunError if something else was done under its name."""
        finished = (self.folder / CARD_FILE).is_file()
        if finished:
            begun = read_card(self.folder)["notes"].get("training", {}).get("fingerprint")
        else:
            begun = Checkpoint(self.folder / CHECKPOINT_FILE).read_fingerprint()
        if begun not in (None, self.fingerprint):
            raise RunError(
                f"{self.folder}: holds another model, or one trained on other data or with other "
                f"settings ({CONFIG_FILE} there says which); choose another --out, or remove that "
                "folder"
            )
        return finished


@dataclass(frozen=True)
class DeviceConfig:
    """Where a part is trained; of no consequence for its weights beyond rounding."""

    device: str = "cpu"
    cache: CacheMode = "auto"
    threads: int | None = None
    """Of torch on the CPU; None leaves them as they are."""


_MAX_PARAMETERS = 2_000_000_000
"""8 GB of weights; the largest model here has a hundredth of it."""


def check_models(
    configs: Iterable[TrainingConfig], bags: Mapping[str, Path], classes: Sequence[str]
) -> None:
    """Refuse options that no model can be made with, before anything else is done."""
    dim = read_width(next(iter(bags.values())))
    if dim is None:
        return  # the check of all bags reports it, with all others that cannot be read
    for config in configs:
        options = {"num_classes": len(classes), **config.model_options()}
        model = create_meta_model(config.model, in_dim=dim, **options)
        count = sum(parameter.numel() for parameter in model.parameters())
        if count > _MAX_PARAMETERS:
            raise OptionError(
                f"{config.model} with these options has {count:,} parameters; expected at most "
                f"{_MAX_PARAMETERS:,}, make its layers narrower or fewer"
            )


def _create_model(config: TrainingConfig, dim: int, classes: int) -> MILModel:
    return create_model(
        config.model, in_dim=dim, **{"num_classes": classes, **config.model_options()}
    )


def run_job(
    job: TrainingJob,
    device_config: DeviceConfig | None = None,
    *,
    read: BagReader = read_bag,
    on_epoch: Callable[[EpochMetrics], None] | None = None,
) -> None:
    """Train, choose the epoch, test, and write the folder; at once where it is there already.

    Args:
        job: what to do.
        device_config: on what.
        read: how a file becomes a bag; a test bag is read once, after the epoch was chosen.
        on_epoch: told of every epoch.
    """
    if job.is_finished():
        return
    device_config = device_config or DeviceConfig()
    if device_config.threads:
        torch.set_num_threads(device_config.threads)
    job.folder.mkdir(parents=True, exist_ok=True)
    _write_config(job)
    work = _JobRunner(job, device_config, read)
    checkpoint = Checkpoint(job.folder / CHECKPOINT_FILE)
    with TrainingLog(job.folder) as journal:

        def tell_all(line: EpochMetrics) -> None:
            journal.log_epoch(line)
            if on_epoch:
                on_epoch(line)

        try:
            fitted = work.train(checkpoint, tell_all)
        finally:
            checkpoint.wait_for_write()
    work.test_and_write(fitted)
    checkpoint.remove()


def _write_config(job: TrainingJob) -> None:
    with atomic_write(job.folder / CONFIG_FILE) as partial:
        partial.write_text(yaml.safe_dump(job.config.to_dict(), sort_keys=False))


class _JobRunner:
    def __init__(self, job: TrainingJob, device_config: DeviceConfig, read: BagReader) -> None:
        self.job, self.device_config, self.read = job, device_config, read
        self.recipe = job.config.to_recipe()
        self.device = select_device(device_config.device)
        self.precision = _check_precision(job.config, self.device)
        self.first_bag = read(Path(job.train[0].path))
        self.model = self._build_model()

    def _build_model(self) -> MILModel:
        torch.manual_seed(self.job.config.seed)
        made = _create_model(self.job.config, self.first_bag.dim, len(self.job.classes))
        return made.to(self.device)

    def train(self, checkpoint: Checkpoint, on_epoch: Callable[[EpochMetrics], None]) -> FitResult:
        part, chooses = self.job, self.recipe.monitor != "last"
        training = self._make_loader(part.training_set)
        try:
            return fit(
                self.model,
                training,
                self.recipe,
                validation=self._make_loader(part.val) if chooses else None,
                seed=part.config.seed,
                precision=self.precision,
                checkpoint=checkpoint,
                fingerprint=part.fingerprint,
                on_epoch=on_epoch,
            )
        except torch.OutOfMemoryError as error:
            raise SacMILError(
                f"{part.name}: the GPU has too little memory; try --cache memory, fewer parts at "
                "once (--per-gpu 1), or precision=bfloat16"
            ) from error

    def _make_loader(
        self,
        bags: Sequence[LabeledBag],
        cache: CacheMode | None = None,
        read: BagReader | None = None,
    ) -> SampleLoader:
        return SampleLoader(
            self.model,
            [Path(source.path) for source in bags],
            [source.slide.label for source in bags],
            device=self.device,
            cache=cache or self.device_config.cache,
            read=read or self.read,
        )

    def test_and_write(self, fitted: FitResult) -> None:
        part = self.job
        files = serialize_model(fitted.model, part.classes, self._make_notes(fitted))
        with atomic_write(part.folder / WEIGHTS) as partial:
            partial.write_bytes(files[WEIGHTS])
        recorder = LocalizationRecorder(
            [(source.slide, Path(source.path)) for source in part.test],
            self.read,
            fold=part.fold,
            seed=part.config.seed,
            model=part.name,
        )
        chosen_by = part.val if self.recipe.monitor != "last" else ()
        found = [self._predict_split(fitted.model, "val", chosen_by)] if chosen_by else []
        found.append(self._predict_split(fitted.model, "test", part.test, recorder))
        write_predictions(part.folder / PREDICTIONS_FILE, Predictions.concatenate(found))
        if recorder.rows:
            write_localization(part.folder / LOCALIZATION_FILE, recorder.rows)
        with atomic_write(part.folder / CARD_FILE) as partial:
            partial.write_bytes(files[CARD_FILE])

    def _predict_split(
        self,
        model: MILModel,
        split: str,
        bags: Sequence[LabeledBag],
        recorder: LocalizationRecorder | None = None,
    ) -> Predictions:
        part = self.job
        rows = [
            (s.slide_id, s.patient_id, split, part.fold, part.config.seed, part.name, s.label)
            for s, _, _ in bags
        ]
        samples = self._make_loader(bags, cache="none", read=recorder.read if recorder else None)
        on_output = recorder.add if recorder else None
        found = (
            predict_samples(model, samples, self.precision, on_output=on_output)
            if bags
            else np.empty((0, 2))
        )
        for (slide_id, *_), probabilities in zip(rows, found, strict=True):
            if not np.isfinite(probabilities).all():
                raise SacMILError(
                    f"{slide_id}: the model answers {probabilities.tolist()}, no probabilities; "
                    "look for features of its bag that are far too large"
                )
        return Predictions.from_rows(part.classes, rows, found)

    def _list_training_ids(self) -> list[str]:
        """Marks of the slides and patients that made the model, so that a test can tell them."""
        slides = [source.slide for source in self.job.train + self.job.val]
        marks = {anonymized_id("slide", slide.slide_id) for slide in slides}
        return sorted(marks | {anonymized_id("patient", slide.patient_id) for slide in slides})

    def _make_notes(self, fitted: FitResult) -> dict[str, Any]:
        part = self.job
        return {
            "training": {
                **part.config.to_dict(),
                "name": part.name,
                "fold": part.fold,
                "epoch": fitted.best_epoch,
                "epochs": fitted.history[-1].epoch,
                "fingerprint": part.fingerprint,
                "slides": {"train": len(part.train), "val": len(part.val), "test": len(part.test)},
                "seen": self._list_training_ids(),
                "device": str(self.device),
                "versions": list_versions(),
            },
            "bags": describe_bag(self.first_bag),
        }


def _check_precision(config: TrainingConfig, device: torch.device) -> torch.dtype:
    """Where a CPU has no bfloat16, every product would go the slowest way there is."""
    slow = device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if config.precision == "bfloat16" and slow:
        raise ConfigError(
            "precision=bfloat16: this CPU does not compute in it; expected float32, or a GPU"
        )
    found: torch.dtype = getattr(torch, config.precision)
    return found


def describe_bag(bag: Bag) -> dict[str, Any]:
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
