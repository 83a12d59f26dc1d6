"""The training loop: shuffle, step, validate, choose the best epoch, write a checkpoint.

All randomness of an epoch follows from (seed, stage, epoch), so a resumed run continues as if it
had never stopped.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from sacmil.errors import SacMILError
from sacmil.kernels.cuda_graphs import is_capture_enabled
from sacmil.models import MILModel, Output, Recipe, Sample
from sacmil.tasks import Targets, Task
from sacmil.training.capture import CapturingTrainer
from sacmil.training.checkpoint import Checkpoint, EpochMetrics, TrainingState, copy_to_cpu
from sacmil.training.loading import SampleLoader
from sacmil.training.trainer import Bags, Trainer, compute_output, select_prefix

EpochCallback = Callable[[EpochMetrics], None]
"""Called after each epoch."""


@dataclass(frozen=True)
class FitResult:
    """The trained model and its history."""

    model: MILModel
    """With the weights of the best epoch, in evaluation mode."""
    best_epoch: int
    """Counted from 1."""
    history: list[EpochMetrics]


def fit(
    model: MILModel,
    training: SampleLoader,
    recipe: Recipe,
    *,
    task: Task | None = None,
    validation: SampleLoader | None = None,
    seed: int = 0,
    precision: torch.dtype = torch.float32,
    checkpoint: Checkpoint | None = None,
    fingerprint: str = "",
    on_epoch: EpochCallback | None = None,
) -> FitResult:
    """Train a model, stage by stage. The same seed gives the same weights.

    Args:
        model: trained in place.
        training: the training set.
        recipe: how to train.
        task: what is predicted; it must have learned from the training set. None means classes.
        validation: the validation set; needed unless the recipe keeps the last epoch.
        seed: of all random numbers.
        precision: of matrix products.
        checkpoint: written after every epoch, and resumed from.
        fingerprint: identifies model, settings and data; another checkpoint is not resumed.
        on_epoch: called with every epoch, those before a resume included.
    """
    task = task or fit_task(model.known_task, training, recipe)
    targets = validation.targets if validation else np.empty((0, 0))
    if problem := find_validation_problem(recipe, task, targets):
        raise SacMILError(problem)
    recipe = recipe.adapt_to_bags(len(training))
    progress = (checkpoint.read(fingerprint) if checkpoint else None) or TrainingState(fingerprint)
    if on_epoch:
        for line in progress.history:
            on_epoch(line)
    run = _TrainingLoop(
        training,
        validation,
        recipe,
        task,
        seed,
        precision,
        checkpoint,
        on_epoch,
        progress,
    )
    run.run_stages(model)
    return FitResult(model.eval(), progress.best_epoch, progress.history)


def choose_trainer(device: torch.device) -> type[Trainer]:
    """Return the fastest trainer for a device."""
    return CapturingTrainer if is_capture_enabled(device) else Trainer


def fit_task(task: Task, training: SampleLoader, recipe: Recipe) -> Task:
    """Return the task with what it learns from the training set."""
    return task.fitted(
        training.targets,
        label_smoothing=recipe.label_smoothing,
        class_weights=recipe.class_weights,
    )


def find_validation_problem(recipe: Recipe, task: Task, targets: Targets) -> str:
    """Return why a validation set cannot choose the epoch; empty if it can.

    Args:
        recipe: how to train.
        task: what is predicted.
        targets: of the bags of the validation set (n, T).
    """
    if recipe.monitor == "last":
        return ""
    found = "is empty"
    if len(targets):
        by_metric = recipe.monitor != "val_loss"
        found = task.find_untestable(targets) if by_metric else ""
    return found and (
        f"the recipe chooses the best epoch by {recipe.monitor}, but the validation set {found}; "
        "use another split, or monitor=last"
    )


@dataclass
class _TrainingLoop:
    """A training run with its settings and its current state."""

    training: SampleLoader
    validation: SampleLoader | None
    recipe: Recipe
    task: Task
    seed: int
    precision: torch.dtype
    checkpoint: Checkpoint | None
    on_epoch: EpochCallback | None
    state: TrainingState

    def run_stages(self, model: MILModel) -> None:
        _seed_epoch(self.seed, 0, 0)
        for number, stage in enumerate(model.stages(self.training)):
            if number < self.state.stage:
                stage.load_state_dict(select_prefix(self.state.finished, f"{number}/"))
            else:
                self._run_epochs(number, stage)
            # What a model does between its stages must not depend on how the last one ended.
            _seed_epoch(self.seed, number + 1, 0)

    def _run_epochs(self, stage: int, model: MILModel) -> None:
        make_trainer = choose_trainer(self.training.device)
        trainer = make_trainer(model, self.recipe, task=self.task, precision=self.precision)
        self._start_or_resume_stage(stage, trainer)
        while not self._is_finished():
            self._record_epoch(self._run_epoch(stage, self.state.epoch + 1, trainer), trainer)
        trainer.release()
        model.load_state_dict(self.state.best)
        self.state.finished |= {f"{stage}/{k}": v for k, v in self.state.best.items()}

    def _start_or_resume_stage(self, stage: int, trainer: Trainer) -> None:
        """Restore the weights of an interrupted stage, or start a new one."""
        if self.state.stage == stage and self.state.epoch:
            trainer.model.load_state_dict(self.state.weights)
            trainer.load_state_dict(self.state.optimizers)
            return
        self.state.stage, self.state.epoch = stage, 0
        self.state.best, self.state.best_epoch = {}, 0

    def _is_finished(self) -> bool:
        done, recipe = self.state.epoch, self.recipe
        if done >= recipe.epochs:
            return True
        if recipe.patience is None or done < recipe.min_epochs or not self.state.best_epoch:
            return False
        return done - self.state.best_epoch >= recipe.patience

    def _run_epoch(self, stage: int, epoch: int, trainer: Trainer) -> EpochMetrics:
        started = time.monotonic()
        random = _seed_epoch(self.seed, stage, epoch)
        losses: list[torch.Tensor] = []
        counts: list[int] = []
        for done, batch in _iter_batches(self.training, self.recipe, self.task, random):
            found = list(trainer.step(batch, epoch - 1 + done).values())
            losses.append(found[0] if len(found) == 1 else torch.stack(found).sum())
            counts.append(len(batch))
        # left on the device until here, so that no step waits for it
        total = (torch.stack(losses) * torch.tensor(counts, device=losses[0].device)).sum()
        loss = float(total) / len(self.training)
        val_loss, val_metric = None, None
        if self.validation and self.recipe.monitor != "last":
            val_loss, val_metric = validate(trainer.predict, self.validation, self.task)
        if not math.isfinite(loss):
            precise = "" if self.precision == torch.float32 else ", or precision float32"
            raise SacMILError(
                f"the loss of epoch {epoch} is {loss}; expected a finite number. Check the "
                f"features for extreme values, or try a smaller lr{precise}"
            )
        lr, seconds = trainer.lr_at(epoch - 1), time.monotonic() - started
        return EpochMetrics(stage, epoch, loss, lr, val_loss, val_metric, seconds)

    def _record_epoch(self, metrics: EpochMetrics, trainer: Trainer) -> None:
        progress = self.state
        progress.epoch = metrics.epoch
        progress.history.append(metrics)
        if self._is_best(metrics):
            progress.best = copy_to_cpu(trainer.model.state_dict())
            progress.best_epoch = metrics.epoch
        if self.checkpoint:
            progress.weights = copy_to_cpu(trainer.model.state_dict())
            progress.optimizers = copy_to_cpu(trainer.state_dict())
            self.checkpoint.write(progress)
        if self.on_epoch:
            self.on_epoch(metrics)

    def _is_best(self, metrics: EpochMetrics) -> bool:
        if self.recipe.monitor == "last":
            return metrics.epoch == self.recipe.epochs
        if metrics.epoch <= self.recipe.monitor_from * self.recipe.epochs:
            return False
        best = self.state.best_metrics
        return best is None or self._monitor_key(metrics) > self._monitor_key(best)

    def _monitor_key(self, metrics: EpochMetrics) -> tuple[float, ...]:
        """Return what epochs are compared by; larger is better.

        On a small validation set many epochs reach the same AUC, often a perfect one. The lowest
        loss decides between them.
        """
        assert metrics.val_loss is not None
        assert metrics.val_metric is not None
        if self.recipe.monitor == "val_loss":
            return (-metrics.val_loss,)
        value = metrics.val_metric
        if self.task.get_metric(self.task.headline).lower_is_better:
            value = -value
        if math.isnan(value):  # of constant predictions, as in a first epoch
            value = -math.inf
        return (round(value, 12), -metrics.val_loss)  # ignore rounding errors


PredictFunction = Callable[[Sample], torch.Tensor]
"""Maps a bag to its predictions."""


@torch.inference_mode()
def predict_samples(
    model: MILModel,
    samples: SampleLoader,
    precision: torch.dtype = torch.float32,
    *,
    task: Task | None = None,
    on_output: Callable[[Output], None] | None = None,
) -> npt.NDArray[np.float64]:
    """Return the predictions for each bag, (bags, P); a sigmoid's become two columns.

    Args:
        model: set to evaluation mode.
        samples: the bags.
        precision: of matrix products.
        task: what is predicted; None means classes.
        on_output: called with the output of each bag, in order.
    """
    known = task or model.known_task

    def predict(sample: Sample) -> torch.Tensor:
        output = compute_output(model, sample, precision)
        if on_output:
            on_output(output)
        return model.activate(output, known).float()

    return _predict_table(predict, samples, known)


def validate(predict: PredictFunction, samples: SampleLoader, task: Task) -> tuple[float, float]:
    """Return mean loss and headline metric over bags, without the model's instance losses."""
    table = _predict_table(predict, samples, task)
    loss = task.validation_loss(samples.targets, table)
    return loss, task.get_metric(task.headline).compute(samples.targets, table)


def _predict_table(
    predict: PredictFunction, samples: SampleLoader, task: Task
) -> npt.NDArray[np.float64]:
    predictions = [predict(sample) for sample in samples]
    table = torch.stack(predictions).cpu().numpy().astype(np.float64)
    is_sigmoid = table.shape[1] == 1 and len(task.prediction_columns) == 2
    return np.concatenate([1 - table, table], axis=1) if is_sigmoid else table


def _seed_epoch(seed: int, stage: int, epoch: int) -> np.random.Generator:
    """Seed torch for this epoch, and return a NumPy generator for it."""
    sequence = np.random.SeedSequence([seed, stage, epoch])
    torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))
    return np.random.default_rng(sequence)


class _Batch:
    """The bags of a step that are read whenever they are iterated over."""

    def __init__(self, samples: SampleLoader, indices: npt.NDArray[np.int64]) -> None:
        self.samples, self.indices = samples, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __iter__(self) -> Iterator[Sample]:
        return self.samples.iter_samples(self.indices)


def _iter_batches(
    samples: SampleLoader, recipe: Recipe, task: Task, random: np.random.Generator
) -> Iterator[tuple[float, Bags]]:
    """Yield the share of the epoch that is done, and the bags of the next step."""
    if task.needs_batch:
        size = max(recipe.accumulate, task.min_batch)
        order = _spread_strata(task.strata(samples.targets), random)
        done = 0
        for indices in np.array_split(order, max(1, len(order) // size)):
            yield done / len(order), _Batch(samples, indices)
            done += len(indices)
        return
    order = _draw_order(samples.targets, recipe, task, random)
    batch: list[Sample] = []
    for position, sample in enumerate(samples.iter_samples(order), start=1):
        batch.append(sample)
        if len(batch) == recipe.accumulate or position == len(order):
            yield (position - len(batch)) / len(order), batch
            batch = []


def _spread_strata(
    strata: npt.NDArray[np.int64], random: np.random.Generator
) -> npt.NDArray[np.int64]:
    """Return a random order in which each part has about the same share of each stratum."""
    position = np.empty(len(strata))
    for stratum in np.unique(strata):
        members = np.flatnonzero(strata == stratum)
        places = random.permutation(len(members)) + random.random(len(members))
        position[members] = places / len(members)
    return np.argsort(position, kind="stable")


def _draw_order(
    targets: npt.NDArray[np.float64], recipe: Recipe, task: Task, random: np.random.Generator
) -> npt.NDArray[np.int64]:
    if recipe.sampler == "shuffle":
        return random.permutation(len(targets))
    groups = np.unique(task.strata(targets), return_inverse=True)[1]
    weights = 1.0 / np.bincount(groups)[groups]
    return random.choice(len(targets), len(targets), p=weights / weights.sum())
