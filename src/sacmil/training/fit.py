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
from sacmil.evaluation.metrics import METRICS
from sacmil.models import MILModel, Output, Recipe, Sample
from sacmil.training.checkpoint import Checkpoint, EpochMetrics, TrainingState, copy_to_cpu
from sacmil.training.loading import SampleLoader
from sacmil.training.trainer import Trainer, compute_output, select_prefix

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
    validation: SampleLoader | None = None,
    seed: int = 0,
    precision: torch.dtype = torch.float32,
    checkpoint: Checkpoint | None = None,
    fingerprint: str = "",
    on_epoch: EpochCallback | None = None,
    trainer_class: type[Trainer] = Trainer,
) -> FitResult:
    """Train a model, stage by stage. The same seed gives the same weights.

    Args:
        model: trained in place.
        training: the training set.
        recipe: how to train.
        validation: the validation set; needed unless the recipe keeps the last epoch.
        seed: of all random numbers.
        precision: of matrix products.
        checkpoint: written after every epoch, and resumed from.
        fingerprint: identifies model, settings and data; another checkpoint is not resumed.
        on_epoch: called with every epoch, those before a resume included.
        trainer_class: takes the optimisation steps.
    """
    _check_validation_set(recipe, validation)
    recipe = recipe.adapt_to_bags(len(training))
    progress = (checkpoint.read(fingerprint) if checkpoint else None) or TrainingState(fingerprint)
    if on_epoch:
        for line in progress.history:
            on_epoch(line)
    run = _TrainingLoop(
        training, validation, recipe, seed, precision, checkpoint, on_epoch, progress, trainer_class
    )
    run.run_stages(model)
    return FitResult(model.eval(), progress.best_epoch, progress.history)


def _check_validation_set(recipe: Recipe, validation: SampleLoader | None) -> None:
    if recipe.monitor == "last":
        return
    classes = len(np.unique(validation.targets)) if validation else 0
    if classes < (2 if recipe.monitor == "val_auc" else 1):
        found = "holds one class only" if classes else "is empty"
        raise SacMILError(
            f"the recipe chooses the best epoch by {recipe.monitor}, but the validation set "
            f"{found}; use another split, or monitor=last"
        )


@dataclass
class _TrainingLoop:
    """A training run with its settings and its current state."""

    training: SampleLoader
    validation: SampleLoader | None
    recipe: Recipe
    seed: int
    precision: torch.dtype
    checkpoint: Checkpoint | None
    on_epoch: EpochCallback | None
    state: TrainingState
    trainer_class: type[Trainer]

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
        trainer = self.trainer_class(
            model,
            self.recipe,
            class_weights=_compute_class_weights(self.training, self.recipe, model),
            precision=self.precision,
        )
        self._start_or_resume_stage(stage, trainer)
        while not self._is_finished():
            self._record_epoch(self._run_epoch(stage, self.state.epoch + 1, trainer), trainer)
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
        losses = [
            torch.stack(list(trainer.step(batch, epoch - 1 + done).values())).sum() * len(batch)
            for done, batch in _iter_batches(self.training, self.recipe, random)
        ]
        loss = float(torch.stack(losses).sum()) / len(self.training)
        val_loss, val_auc = None, None
        if self.validation and self.recipe.monitor != "last":
            val_loss, val_auc = validate(trainer.predict_probabilities, self.validation)
        if not math.isfinite(loss):
            precise = "" if self.precision == torch.float32 else ", or precision float32"
            raise SacMILError(
                f"the loss of epoch {epoch} is {loss}; expected a finite number. Check the "
                f"features for extreme values, or try a smaller lr{precise}"
            )
        lr, seconds = trainer.lr_at(epoch - 1), time.monotonic() - started
        return EpochMetrics(stage, epoch, loss, lr, val_loss, val_auc, seconds)

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
        assert metrics.val_auc is not None
        if self.recipe.monitor == "val_loss":
            return (-metrics.val_loss,)
        return (round(metrics.val_auc, 12), -metrics.val_loss)  # ignore rounding errors


PredictFunction = Callable[[Sample], torch.Tensor]
"""Maps a bag to its probabilities."""


@torch.inference_mode()
def predict_samples(
    model: MILModel,
    samples: SampleLoader,
    precision: torch.dtype = torch.float32,
    *,
    on_output: Callable[[Output], None] | None = None,
) -> npt.NDArray[np.float64]:
    """Return the probabilities of each bag, (bags, C); a single output becomes two columns.

    Args:
        model: set to evaluation mode.
        samples: the bags.
        precision: of matrix products.
        on_output: called with the output of each bag, in order.
    """

    def predict(sample: Sample) -> torch.Tensor:
        output = compute_output(model, sample, precision)
        if on_output:
            on_output(output)
        return model.probabilities(output).float()

    return _predict_table(predict, samples)


def validate(predict: PredictFunction, samples: SampleLoader) -> tuple[float, float]:
    """Return mean cross-entropy and AUC over bags, without the model's instance losses."""
    table = _predict_table(predict, samples)
    of_target = table[np.arange(len(samples)), samples.targets]
    loss = -np.log(np.maximum(of_target, np.finfo(np.float32).tiny)).mean()
    return float(loss), METRICS["auc"](samples.targets, table)


def _predict_table(predict: PredictFunction, samples: SampleLoader) -> npt.NDArray[np.float64]:
    predictions = [predict(sample) for sample in samples]
    table = torch.stack(predictions).cpu().numpy().astype(np.float64)
    return np.concatenate([1 - table, table], axis=1) if table.shape[1] == 1 else table


def _seed_epoch(seed: int, stage: int, epoch: int) -> np.random.Generator:
    """Seed torch for this epoch, and return a NumPy generator for it."""
    sequence = np.random.SeedSequence([seed, stage, epoch])
    torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))
    return np.random.default_rng(sequence)


def _iter_batches(
    samples: SampleLoader, recipe: Recipe, random: np.random.Generator
) -> Iterator[tuple[float, list[Sample]]]:
    order = _draw_order(samples.targets, recipe, random)
    batch: list[Sample] = []
    for position, sample in enumerate(samples.iter_samples(order), start=1):
        batch.append(sample)
        if len(batch) == recipe.accumulate or position == len(order):
            yield (position - len(batch)) / len(order), batch
            batch = []


def _draw_order(
    targets: npt.NDArray[np.int64], recipe: Recipe, random: np.random.Generator
) -> npt.NDArray[np.int64]:
    if recipe.sampler == "shuffle":
        return random.permutation(len(targets))
    weights = 1.0 / np.bincount(targets)[targets]
    return random.choice(len(targets), len(targets), p=weights / weights.sum())


def _compute_class_weights(
    samples: SampleLoader, recipe: Recipe, model: MILModel
) -> torch.Tensor | None:
    if recipe.class_weights == "none":
        return None
    counts = np.bincount(samples.targets, minlength=max(2, model.num_classes))
    present = np.count_nonzero(counts)
    weights = len(samples) / (present * np.maximum(counts, 1))
    return torch.tensor(weights, dtype=torch.float32, device=samples.device)
