"""One training job (model, seed, fold): train, choose the epoch, test, write a model folder.

The card is written last: a job with a card is finished and is never run again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import yaml
from torch import Tensor

from sacmil.atomic import atomic_write
from sacmil.bag import Bag
from sacmil.card import CARD_FILE, anonymized_id, read_card
from sacmil.cohorts.cohort import LabeledSlide
from sacmil.cohorts.dataset import Dataset
from sacmil.environment import list_versions, select_device
from sacmil.errors import (
    ConfigError,
    OptionError,
    RunError,
    SacMILError,
    UnsupportedTaskError,
)
from sacmil.evaluation.localization import measure_slide_localization
from sacmil.formats import read_bag
from sacmil.models import MILModel, Output, create_model
from sacmil.models._folder import WEIGHTS, create_meta_model, serialize_model
from sacmil.models._registry import restore_old_names
from sacmil.plans import PlanFolder, Planner
from sacmil.results import (
    LOCALIZATION_FILE,
    PREDICTIONS_FILE,
    Predictions,
    SlideLocalization,
    write_localization,
    write_predictions,
)
from sacmil.results.task_card import read_task_card
from sacmil.tasks import Task
from sacmil.training.bag_checks import read_width
from sacmil.training.checkpoint import Checkpoint, EpochMetrics, TrainingLog
from sacmil.training.config import TrainingConfig
from sacmil.training.fit import FitResult, fit, predict_samples
from sacmil.training.loading import BagReader, CacheMode, SampleLoader

CHECKPOINT_FILE = "checkpoint.safetensors"
CONFIG_FILE = "config.yaml"

_MAX_PARAMETERS = 2_000_000_000
"""8 GB of weights; the largest model here has a hundredth of that."""


class TrainingBag(NamedTuple):
    """A labelled slide and the path of its bag, for training, validation or test."""

    slide: LabeledSlide
    path: str
    sha256: str
    """Hash of the bag file."""


def list_labeled_bags(dataset: Dataset, slide_ids: Sequence[str]) -> tuple[TrainingBag, ...]:
    """Return slides of a dataset with their bags; the dataset must have their hashes."""
    bags, hashes = dataset.bags, dataset.hashes
    return tuple(
        TrainingBag(slide, str(bags[slide.slide_id]), hashes[slide.slide_id])
        for slide in dataset.cohort.get_slides(slide_ids)
    )


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """A model to train, its data, and its output folder."""

    folder: Path
    name: str
    """Of the model in tables."""
    config: TrainingConfig
    task: Task
    fold: int
    train: tuple[TrainingBag, ...]
    val: tuple[TrainingBag, ...]
    test: tuple[TrainingBag, ...]
    plans: PlanFolder | None = None
    """Where plans are stored for all jobs of the run."""

    @property
    def training_set(self) -> tuple[TrainingBag, ...]:
        """Bags to train on; includes the validation set if the last epoch is kept anyway."""
        return self.train if self._needs_validation else self.train + self.val

    @property
    def validation_set(self) -> tuple[TrainingBag, ...]:
        """Bags that choose the epoch; empty if the last epoch is kept anyway."""
        return self.val if self._needs_validation else ()

    @property
    def _needs_validation(self) -> bool:
        return self.config.to_recipe().monitor != "last"

    @property
    def epochs(self) -> int:
        """Number of epochs, unless training stops early."""
        return self.config.to_recipe().adapt_to_bags(len(self.training_set)).epochs

    @property
    def fingerprint(self) -> str:
        """Hash of the configuration, the classes and the bags; not of the values of a recipe."""
        card = self.task.card
        of_task = {} if card.is_classification else {"task": [card.kind, card.settings]}
        facts = {
            "config": restore_old_names(self.config.to_dict()),
            "classes": card.levels,
            **of_task,
            "slides": [
                [(source.slide.slide_id, source.slide.label, source.sha256) for source in side]
                for side in (self.train, self.val, self.test)
            ],
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def is_finished(self) -> bool:
        """Whether the job is finished; RunError if the folder belongs to a different job."""
        finished = (self.folder / CARD_FILE).is_file()
        if finished:
            existing = read_card(self.folder).training.get("fingerprint")
        else:
            existing = Checkpoint(self.folder / CHECKPOINT_FILE).read_fingerprint()
        if existing not in (None, self.fingerprint):
            raise RunError(
                f"{self.folder}: holds another model, or one trained on other data or with other "
                f"settings ({self._find_difference()}); choose another `out`, or remove that folder"
            )
        return finished

    def _find_difference(self) -> str:
        """Return which settings of the task differ from those of the folder's, or where to look."""
        known = read_task_card(self.folder)
        ours = self.task.card
        where = f"see {CONFIG_FILE} there"
        if known is None or known.kind != ours.kind:
            return where if known is None else f"for {known.description}, now {ours.description}"
        pairs = {name: (known.settings.get(name), now) for name, now in ours.settings.items()}
        changed = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
        if len(changed) > 1:  # leave out what follows from the others: settings of one loss only
            changed = {name: pair for name, pair in changed.items() if None not in pair}
            changed.pop("curve_times", None)  # and those from the horizons
        texts = [f"`{name}` was {old}, now {now}" for name, (old, now) in changed.items()]
        return ", ".join(texts) or where


@dataclass(frozen=True)
class DeviceConfig:
    """Where a job is trained; this changes its weights by rounding errors at most."""

    device: str = "cpu"
    cache: CacheMode = "auto"
    threads: int | None = None
    """Of torch on the CPU; None leaves torch's setting."""


def check_models(configs: Iterable[TrainingConfig], dataset: Dataset) -> list[Planner]:
    """Reject options that a model cannot be created with, before any other work.

    Returns how the models plan bags.
    """
    dim = dataset.dim or read_width(next(iter(dataset.bags.values())))
    if dim is None:
        return []  # check_and_hash_bags reports it, with all other unreadable bags
    planners: list[Planner] = []
    task = dataset.cohort.task
    unsupported: dict[str, list[str]] = {}
    for config in configs:
        recipe = config.to_recipe()
        task.check_training(
            label_smoothing=recipe.label_smoothing, class_weights=recipe.class_weights
        )
        options = {"num_classes": task.outputs, **config.model_options()}
        model = create_meta_model(config.model, in_dim=dim, **options)
        if reason := model.explain_unsupported(task):
            unsupported.setdefault(reason, []).append(config.model)
            continue
        model.set_task(task)
        if model.planner not in planners:
            planners.append(model.planner)
        count = sum(parameter.numel() for parameter in model.parameters())
        if count > _MAX_PARAMETERS:
            raise OptionError(
                f"{config.model} with these options has {count:,} parameters; expected at most "
                f"{_MAX_PARAMETERS:,}: use narrower or fewer layers"
            )
    if unsupported:
        raise _make_unsupported_error(task, unsupported)
    return planners


def _make_unsupported_error(
    task: Task, models: Mapping[str, Sequence[str]]
) -> UnsupportedTaskError:
    """Return one error for all models that cannot be trained for a task.

    Args:
        task: what was to be predicted.
        models: names by the reason.
    """
    what = f"cannot be trained for {task.card.description}"
    if sum(map(len, models.values())) == 1:
        ((reason, (name,)),) = models.items()
        other = "Use another model, such as sac_mil_near_far or abmil"
        return UnsupportedTaskError(f"{name} {what}: {reason}. {other}")
    listed = "\n".join(f"  - {', '.join(names)}: {reason}" for reason, names in models.items())
    count = sum(map(len, models.values()))
    return UnsupportedTaskError(f"{count} models {what}; leave them out:\n{listed}")


def run_job(
    job: TrainingJob,
    device_config: DeviceConfig | None = None,
    *,
    read: BagReader = read_bag,
    on_epoch: Callable[[EpochMetrics], None] | None = None,
) -> None:
    """Train, choose the epoch, test, and write the folder; return at once if finished.

    Args:
        job: the model and its data.
        device_config: where to train.
        read: reads a bag file; test bags are read once, after the epoch was chosen.
        on_epoch: called with every epoch.
    """
    if job.is_finished():
        return
    device_config = device_config or DeviceConfig()
    if device_config.threads:
        torch.set_num_threads(device_config.threads)
    job.folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(job.folder / CONFIG_FILE) as partial:
        partial.write_text(yaml.safe_dump(job.config.to_dict(), sort_keys=False))
    runner = _JobRunner(job, device_config, read)
    with (
        TrainingLog(job.folder, job.task.headline) as log,
        Checkpoint(job.folder / CHECKPOINT_FILE) as checkpoint,
    ):

        def log_and_report(metrics: EpochMetrics) -> None:
            log.log_epoch(metrics)
            if on_epoch:
                on_epoch(metrics)

        fitted = runner.train(checkpoint, log_and_report)
    runner.test_and_write(fitted)
    checkpoint.remove()


class _JobRunner:
    def __init__(self, job: TrainingJob, device_config: DeviceConfig, read: BagReader) -> None:
        self.job, self.device_config, self.read = job, device_config, read
        self.device = select_device(device_config.device)
        self.precision = _check_precision(job.config, self.device)
        self.first_bag = read(Path(job.train[0].path))
        self.task = self._fit_task()
        options = {"num_classes": self.task.outputs, **job.config.model_options()}
        torch.manual_seed(job.config.seed)
        model = create_model(job.config.model, in_dim=self.first_bag.dim, **options)
        model.set_task(self.task)
        self.model = model.to(self.device)

    def _fit_task(self) -> Task:
        """Return the task with what it learns from the targets of the training set."""
        job, recipe = self.job, self.job.config.to_recipe()
        slides = [bag.slide for bag in job.training_set]
        if job.task.learns_by_patient:
            slides = list({slide.patient_id: slide for slide in slides}.values())
        return job.task.fitted(
            np.array([slide.targets for slide in slides], dtype=np.float64),
            label_smoothing=recipe.label_smoothing,
            class_weights=recipe.class_weights,
        )

    def train(self, checkpoint: Checkpoint, on_epoch: Callable[[EpochMetrics], None]) -> FitResult:
        job = self.job
        try:
            return fit(
                self.model,
                self._make_loader(job.training_set),
                job.config.to_recipe(),
                task=self.task,
                validation=self._make_loader(job.validation_set),
                seed=job.config.seed,
                precision=self.precision,
                checkpoint=checkpoint,
                fingerprint=job.fingerprint,
                on_epoch=on_epoch,
            )
        except torch.OutOfMemoryError as error:
            raise SacMILError(
                f"{job.name}: the GPU is out of memory; set `cache` to memory, `per_gpu` to 1, or "
                "precision to bfloat16"
            ) from error

    def _make_loader(self, bags: Sequence[TrainingBag], **changes: Any) -> SampleLoader:
        settings = {
            "device": self.device,
            "cache": self.device_config.cache,
            "read": self.read,
            "plans": self.job.plans,
        }
        paths = [Path(bag.path) for bag in bags]
        targets = np.array([bag.slide.targets for bag in bags], dtype=np.float64)
        return SampleLoader(self.model, paths, targets, task=self.task, **settings | changes)

    def _calibrate_task(self, model: MILModel) -> None:
        """Let the task learn from the outputs of the trained model for its training set."""
        outputs: list[Tensor] = []
        sums: list[Tensor] = []
        bags = self.job.training_set

        def keep(output: Output) -> None:
            outputs.append(output.logits.float().cpu())
            if output.class_scores is not None and not model.scores_are_logits:
                sums.append(output.class_scores.float().sum(0).cpu())

        samples = self._make_loader(bags, read_once=True)
        predict_samples(
            model,
            samples,
            self.precision,
            task=self.task,
            on_output=keep,
        )
        self.task = self.task.calibrated(
            torch.stack(outputs).double().numpy(),
            samples.targets,
            [bag.slide.patient_id for bag in bags],
            torch.stack(sums).double().numpy() if sums else None,
        )
        model.task = self.task

    def test_and_write(self, fitted: FitResult) -> None:
        job = self.job
        if self.task.needs_training_rows:
            self._calibrate_task(fitted.model)
        notes, classes = self._make_notes(fitted), job.task.levels or None
        files = serialize_model(fitted.model, classes, notes, task=self.task)
        with atomic_write(job.folder / WEIGHTS) as partial:
            partial.write_bytes(files[WEIGHTS])
        recorder = LocalizationRecorder(job, self.read)
        known = job.training_set if self.task.needs_training_rows else ()
        predicted = [
            self._predict_split(fitted.model, "train", known),
            self._predict_split(fitted.model, "val", job.validation_set),
            self._predict_split(fitted.model, "test", job.test, recorder),
        ]
        predictions = Predictions.concatenate(predicted)
        write_predictions(job.folder / PREDICTIONS_FILE, predictions)
        if recorder.rows:
            write_localization(job.folder / LOCALIZATION_FILE, recorder.rows)
        with atomic_write(job.folder / CARD_FILE) as partial:
            partial.write_bytes(files[CARD_FILE])

    def _predict_split(
        self,
        model: MILModel,
        split: str,
        bags: Sequence[TrainingBag],
        recorder: LocalizationRecorder | None = None,
    ) -> Predictions:
        job = self.job
        rows = [
            (s.slide_id, s.patient_id, split, job.fold, job.config.seed, job.name, s.targets)
            for s, _, _ in bags
        ]
        if not bags:
            return Predictions.from_rows(job.task.card, (), ())
        read, on_output = (recorder.read, recorder.add) if recorder else (self.read, None)
        samples = self._make_loader(bags, read_once=True, read=read)
        found = predict_samples(model, samples, self.precision, task=self.task, on_output=on_output)
        for (slide_id, *_), values in zip(rows, found, strict=True):
            if not np.isfinite(values).all():
                raise SacMILError(
                    f"{slide_id}: the model predicts {values.tolist()}; expected finite numbers: "
                    "check the features of this bag for extreme values"
                )
        return Predictions.from_rows(job.task.card, rows, found)

    def _make_notes(self, fitted: FitResult) -> dict[str, Any]:
        job = self.job
        slides = [source.slide for source in job.train + job.val]
        # to detect them in a test set
        seen = {anonymized_id("slide", slide.slide_id) for slide in slides}
        seen |= {anonymized_id("patient", slide.patient_id) for slide in slides}
        return {
            "training": {
                **job.config.to_dict(),
                "name": job.name,
                "fold": job.fold,
                "epoch": fitted.best_epoch,
                "epochs": fitted.history[-1].epoch,
                "fingerprint": job.fingerprint,
                "slides": {
                    "train": len(job.training_set),
                    "val": len(job.validation_set),
                    "test": len(job.test),
                },
                "seen": sorted(seen),
                "device": str(self.device),
                "versions": list_versions(),
            },
            "bags": describe_bag(self.first_bag),
        }


def _check_precision(config: TrainingConfig, device: torch.device) -> torch.dtype:
    """Return the dtype; reject bfloat16 on CPUs without it, where it would be very slow."""
    slow = device.type == "cpu" and not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if config.precision == "bfloat16" and slow:
        raise ConfigError("precision=bfloat16: this CPU does not support it; use float32, or a GPU")
    found: torch.dtype = getattr(torch, config.precision)
    return found


def describe_bag(bag: Bag) -> dict[str, Any]:
    """Describe the bags a model was trained on, for the checks before a prediction."""
    return {
        "encoder": bag.encoder.name if bag.encoder else None,
        "encoder_hash": bag.encoder.hash if bag.encoder else None,
        "dim": bag.dim,
        "patch_um": float(bag.patch_size * bag.mpp) if bag.mpp else None,
        "patch_px": None if bag.patch_size_px is None else int(bag.patch_size_px),
        "tile_px": int(bag.tile_px) if bag.tile_px else None,
        "tissue": (bag.provenance or {}).get("tissue_mode"),
    }


class LocalizationRecorder:
    """Stores the instance labels of each test bag that is read, and scores each output with them.

    Args:
        job: whose test set is predicted, in its order.
        read: reads a bag file.
    """

    def __init__(self, job: TrainingJob, read: BagReader) -> None:
        self.rows: list[SlideLocalization] = []
        """One for each slide so far whose bag has instance labels."""
        self._job, self._read = job, read
        self._bags = iter(job.test)
        self._labels: dict[str, npt.NDArray[Any]] = {}

    def read(self, path: Path) -> Bag:
        """Read a bag and store its labels, so that no test bag is read twice."""
        bag = self._read(path)
        if bag.labels is not None:
            self._labels[str(path)] = bag.labels
        return bag

    def add(self, output: Output) -> None:
        """Measure the output of the next slide."""
        slide, path, _ = next(self._bags)
        labels = self._labels.pop(path, None)
        column = self._job.task.find_true_column(slide.targets)
        if labels is None or column is None:
            return
        scores = output.scores.float().cpu().numpy()
        if output.class_scores is not None and output.class_scores.shape[1] > 1:
            by_class = output.class_scores.float().cpu().numpy()
            scores = self._job.task.combine_scores(by_class)[:, column]
        job = (self._job.fold, self._job.config.seed, self._job.name)
        keys = (slide.slide_id, slide.patient_id, *job)
        found = measure_slide_localization(keys, scores, labels)
        self.rows.append(found)
