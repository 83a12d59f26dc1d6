"""Epochs over bags in memory: shuffle, step, tell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from sacmil.bag import Bag
from sacmil.models import MILModel, Recipe, Sample
from sacmil.training.step import Trainer

Progress = Callable[[int, float], None]
"""Called after each epoch with its number, from 1, and its mean loss."""


def to_sample(model: MILModel, bag: Bag, label: int) -> Sample:
    """A bag as training sees it, with the model's plan made once."""
    coords = bag.patch_coords
    plan = model.plan(coords, bag.features)
    return Sample(
        features=torch.from_numpy(bag.features),
        coords=torch.from_numpy(coords),
        plan={key: torch.from_numpy(value) for key, value in plan.items()},
        target=torch.tensor(label),
    )


def fit(
    model: MILModel,
    bags: Sequence[Bag],
    labels: Sequence[int],
    recipe: Recipe,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> MILModel:
    """Train a model, stage by stage, to the recipe's last epoch; the same seed, the same weights.

    Args:
        model: trained in place.
        bags: all of them in memory.
        labels: the class of each bag.
        recipe: how to train.
        seed: of the order of the bags.
        progress: told of every epoch.
    """
    torch.manual_seed(seed)
    samples = [to_sample(model, bag, label) for bag, label in zip(bags, labels, strict=True)]
    for stage in model.stages(samples):
        _fit_stage(stage, samples, recipe, np.random.default_rng(seed), progress)
    return model.eval()


def _fit_stage(
    model: MILModel,
    samples: Sequence[Sample],
    recipe: Recipe,
    random: np.random.Generator,
    progress: Progress | None,
) -> None:
    trainer = Trainer(model, recipe)
    for epoch in range(recipe.epochs):
        losses = [
            sum(trainer.step(batch, epoch + done).values())
            for done, batch in _batches(samples, recipe, random)
        ]
        if progress:
            progress(epoch + 1, float(np.mean(losses)))


def _batches(
    samples: Sequence[Sample], recipe: Recipe, random: np.random.Generator
) -> Iterator[tuple[float, list[Sample]]]:
    order = _order(samples, recipe, random)
    for first in range(0, len(order), recipe.accumulate):
        yield first / len(order), [samples[i] for i in order[first : first + recipe.accumulate]]


def _order(
    samples: Sequence[Sample], recipe: Recipe, random: np.random.Generator
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if recipe.sampler == "shuffle":
        return random.permutation(len(samples))
    targets = np.array([int(sample.target) for sample in samples])
    _, classes, counts = np.unique(targets, return_inverse=True, return_counts=True)
    weights = 1.0 / counts[classes]
    return random.choice(len(samples), len(samples), p=weights / weights.sum())
