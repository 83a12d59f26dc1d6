"""Epochs over bags: shuffle, step, look at the validation part, choose, remember.

What an epoch draws is a function of (seed, stage, epoch) alone, so a run taken up again goes on
as if it had never stopped.
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
from sacmil.training.checkpoint import Checkpoint, Epoch, Progress, copied
from sacmil.training.samples import Samples
from sacmil.training.step import Trainer, infer

Tell = Callable[[Epoch], None]
"""Called after each epoch."""


@dataclass(frozen=True)
class Fitted:
    """What training came to."""

    model: MILModel
    """With the weights of the chosen epoch, ready to predict."""
    epoch: int
    """The chosen one, from 1."""
    history: list[Epoch]


def fit(
    model: MILModel,
    training: Samples,
    recipe: Recipe,
    *,
    validation: Samples | None = None,
    seed: int = 0,
    precision: torch.dtype = torch.float32,
    checkpoint: Checkpoint | None = None,
    fingerprint: str = "",
    tell: Tell | None = None,
    trainer: type[Trainer] = Trainer,
) -> Fitted:
    """Train a model, stage by stage; the same seed, the same weights.

    Args:
        model: trained in place.
        training: what it learns from.
        recipe: how to train.
        validation: what chooses the epoch, where the recipe asks for a choice.
        seed: of everything that is drawn.
        precision: what matrix products are taken in.
        checkpoint: where to remember every epoch, and to go on from.
        fingerprint: of what is trained on what; tells one checkpoint from another.
        tell: told of every epoch, of those done before too.
        trainer: what takes the steps.
    """
    _check_can_choose(recipe, validation)
    recipe = recipe.for_bags(len(training))
    progress = (checkpoint.read(fingerprint) if checkpoint else None) or Progress(fingerprint)
    if tell:
        for line in progress.history:
            tell(line)
    run = _Run(training, validation, recipe, seed, precision, checkpoint, tell, progress, trainer)
    run.over_stages(model)
    return Fitted(model.eval(), progress.best_epoch, progress.history)


def _check_can_choose(recipe: Recipe, validation: Samples | None) -> None:
    if recipe.monitor == "last":
        return
    classes = len(np.unique(validation.targets)) if validation else 0
    if classes < (2 if recipe.monitor == "val_auc" else 1):
        found = "holds one class only" if classes else "is empty"
        raise SacMILError(
            f"the recipe chooses its epoch by {recipe.monitor}, and the validation part {found}; "
            "expected another split, or monitor=last"
        )


@dataclass
class _Run:
    """Training under way: what it works with, and where it stands."""

    training: Samples
    validation: Samples | None
    recipe: Recipe
    seed: int
    precision: torch.dtype
    checkpoint: Checkpoint | None
    tell: Tell | None
    progress: Progress
    trainer: type[Trainer]

    def over_stages(self, model: MILModel) -> None:
        _draw_from(self.seed, 0, 0)
        for number, stage in enumerate(model.stages(self.training)):
            if number < self.progress.stage:
                stage.load_state_dict(_of_stage(self.progress.finished, number))
            else:
                self._over_epochs(number, stage)
            # What a model does between its stages must not depend on how the last one ended.
            _draw_from(self.seed, number + 1, 0)

    def _over_epochs(self, number: int, model: MILModel) -> None:
        trainer = self.trainer(
            model,
            self.recipe,
            class_weights=_class_weights(self.training, self.recipe, model),
            precision=self.precision,
        )
        self._begin(number, trainer)
        while not self._is_over():
            epoch = self.progress.epoch + 1
            line = self._epoch(number, epoch, trainer)
            self._remember(line, trainer)
        model.load_state_dict(self.progress.best)
        self.progress.finished |= {f"{number}/{k}": v for k, v in self.progress.best.items()}

    def _begin(self, number: int, trainer: Trainer) -> None:
        """Take up this stage where it was left, or from its start."""
        if self.progress.stage == number and self.progress.epoch:
            trainer.model.load_state_dict(self.progress.weights)
            trainer.restore(self.progress.optimisers)
            return
        self.progress.stage, self.progress.epoch = number, 0
        self.progress.best, self.progress.best_epoch = {}, 0

    def _is_over(self) -> bool:
        done, recipe = self.progress.epoch, self.recipe
        if done >= recipe.epochs:
            return True
        if recipe.patience is None or done < recipe.min_epochs or not self.progress.best_epoch:
            return False
        return done - self.progress.best_epoch >= recipe.patience

    def _epoch(self, number: int, epoch: int, trainer: Trainer) -> Epoch:
        began = time.monotonic()
        random = _draw_from(self.seed, number, epoch)
        losses = [
            torch.stack(list(trainer.step(batch, epoch - 1 + done).values())).sum() * len(batch)
            for done, batch in _batches(self.training, self.recipe, random)
        ]
        loss = float(torch.stack(losses).sum()) / len(self.training)
        val_loss, val_auc = None, None
        if self.validation and self.recipe.monitor != "last":
            val_loss, val_auc = validate(trainer.answer, self.validation)
        if not math.isfinite(loss):
            precise = "" if self.precision == torch.float32 else ", or precision float32"
            raise SacMILError(
                f"the loss of epoch {epoch} is {loss}; expected a number: look for features that "
                f"are far too large, or try a smaller lr{precise}"
            )
        seconds = time.monotonic() - began
        return Epoch(number, epoch, loss, trainer.rate(epoch - 1), val_loss, val_auc, seconds)

    def _remember(self, line: Epoch, trainer: Trainer) -> None:
        progress = self.progress
        progress.epoch = line.epoch
        progress.history.append(line)
        if self._is_best(line):
            progress.best, progress.best_epoch = copied(trainer.model.state_dict()), line.epoch
        if self.checkpoint:
            progress.weights = copied(trainer.model.state_dict())
            progress.optimisers = copied(trainer.state())
            self.checkpoint.write(progress)
        if self.tell:
            self.tell(line)

    def _is_best(self, line: Epoch) -> bool:
        if self.recipe.monitor == "last":
            return line.epoch == self.recipe.epochs
        if line.epoch <= self.recipe.monitor_from * self.recipe.epochs:
            return False
        best = self.progress.best_line
        return best is None or self._merit(line) > self._merit(best)

    def _merit(self, line: Epoch) -> tuple[float, ...]:
        """What the monitor says of an epoch; more is better.

        A small validation part is often ranked without a fault from the first epochs on: of
        equals in AUC the one with the lowest loss has learnt most.
        """
        assert line.val_loss is not None
        assert line.val_auc is not None
        by_loss = (-line.val_loss,)
        by_auc = (round(line.val_auc, 12), *by_loss)  # equal but for rounding is equal
        return by_loss if self.recipe.monitor == "val_loss" else by_auc


Answer = Callable[[Sample], torch.Tensor]
"""From a bag to its probabilities."""


@torch.inference_mode()
def predicted(
    model: MILModel,
    samples: Samples,
    precision: torch.dtype = torch.float32,
    *,
    on_output: Callable[[Output], None] | None = None,
) -> npt.NDArray[np.float64]:
    """(bags, C), the probabilities of each bag; a single output becomes two columns.

    Args:
        model: its weights are used as in evaluation.
        samples: the bags.
        precision: what matrix products are taken in.
        on_output: called with the output of each bag, in their order.
    """

    def predict(sample: Sample) -> torch.Tensor:
        output = infer(model, sample, precision)
        if on_output:
            on_output(output)
        return model.probabilities(output).float()

    return _table(predict, samples)


def validate(ask: Answer, samples: Samples) -> tuple[float, float]:
    """Mean cross-entropy and AUC over bags; instance losses are left out, as they are no claim."""
    table = _table(ask, samples)
    of_truth = table[np.arange(len(samples)), samples.targets]
    loss = -np.log(np.maximum(of_truth, np.finfo(np.float32).tiny)).mean()
    return float(loss), METRICS["auc"](samples.targets, table)


def _table(ask: Answer, samples: Samples) -> npt.NDArray[np.float64]:
    found = [ask(sample) for sample in samples]
    table = torch.stack(found).cpu().numpy().astype(np.float64)
    return np.concatenate([1 - table, table], axis=1) if table.shape[1] == 1 else table


def _draw_from(seed: int, stage: int, epoch: int) -> np.random.Generator:
    """Seed torch, and give a generator of numpy's, both for this epoch."""
    sequence = np.random.SeedSequence([seed, stage, epoch])
    torch.manual_seed(int(sequence.generate_state(1, np.uint64)[0] >> 1))
    return np.random.default_rng(sequence)


def _batches(
    samples: Samples, recipe: Recipe, random: np.random.Generator
) -> Iterator[tuple[float, list[Sample]]]:
    order = _order(samples.targets, recipe, random)
    batch: list[Sample] = []
    for position, sample in enumerate(samples.in_order(order), start=1):
        batch.append(sample)
        if len(batch) == recipe.accumulate or position == len(order):
            yield (position - len(batch)) / len(order), batch
            batch = []


def _order(
    targets: npt.NDArray[np.int64], recipe: Recipe, random: np.random.Generator
) -> npt.NDArray[np.int64]:
    if recipe.sampler == "shuffle":
        return random.permutation(len(targets))
    weights = 1.0 / np.bincount(targets)[targets]
    return random.choice(len(targets), len(targets), p=weights / weights.sum())


def _class_weights(samples: Samples, recipe: Recipe, model: MILModel) -> torch.Tensor | None:
    if recipe.class_weights == "none":
        return None
    counts = np.bincount(samples.targets, minlength=max(2, model.num_classes))
    present = np.count_nonzero(counts)
    weights = len(samples) / (present * np.maximum(counts, 1))
    return torch.tensor(weights, dtype=torch.float32, device=samples.device)


def _of_stage(finished: dict[str, torch.Tensor], number: int) -> dict[str, torch.Tensor]:
    mark = f"{number}/"
    return {k.removeprefix(mark): v for k, v in finished.items() if k.startswith(mark)}
