"""One optimisation step, the same for every model: it knows the hooks and nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.optim import Optimizer

from sacmil.models import MILModel, Recipe, Sample
from sacmil.training.optimiser import (
    SlowWeights,
    learning_rate,
    make_optimiser,
    set_learning_rate,
)


class Trainer:
    """A model with its optimisers; ``step`` learns from a few bags."""

    def __init__(self, model: MILModel, recipe: Recipe) -> None:
        self.model = model
        self.recipe = recipe
        self.rate = learning_rate(recipe)
        self.groups = model.parameter_groups()
        self.optimisers: dict[str, Optimizer] = {
            name: make_optimiser(parameters, recipe) for name, parameters in self.groups.items()
        }
        self.slow = (
            SlowWeights(list(model.parameters()), recipe.lookahead) if recipe.lookahead else None
        )

    def step(self, samples: Sequence[Sample], epoch: float = 0.0) -> dict[str, float]:
        """Learn from some bags at once; the mean of each loss over them.

        Args:
            samples: the bags of one step; the recipe's ``accumulate`` says how many.
            epoch: epochs done so far, fractions included: it sets the learning rate.
        """
        self.model.train()
        for optimiser in self.optimisers.values():
            set_learning_rate(optimiser, self.rate(epoch))
            optimiser.zero_grad()
        totals = dict.fromkeys(self.optimisers, 0.0)
        for sample in samples:
            for group, loss in self._backward(sample, len(samples)).items():
                totals[group] += loss / len(samples)
        self._clip()
        for optimiser in self.optimisers.values():
            optimiser.step()
        if self.slow:
            self.slow.step()
        return totals

    def _backward(self, sample: Sample, count: int) -> dict[str, float]:
        output = self.model(sample.features, sample.coords, sample.plan)
        losses = self.model.losses(output, sample.target)
        for position, (group, loss) in enumerate(losses.items(), start=1):
            # A group's loss trains that group alone: DTFD's second tier never moves its first.
            torch.autograd.backward(
                loss / count,
                inputs=[p for p in self.groups[group].values() if p.requires_grad],
                retain_graph=position < len(losses),
            )
        return {group: loss.item() for group, loss in losses.items()}

    def _clip(self) -> None:
        named = dict(self.model.named_parameters())
        for prefix, norm in self.recipe.clip.items():
            chosen = [parameter for name, parameter in named.items() if name.startswith(prefix)]
            nn.utils.clip_grad_norm_(chosen, norm)
