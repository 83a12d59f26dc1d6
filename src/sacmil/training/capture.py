"""Training steps captured as CUDA graphs.

A bag that stays on the GPU is captured where it is. Other bags of one shape share a graph, which
reads them from a block of memory that they are copied to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sacmil.kernels.cuda_graphs import GraphCache, Key, Tensors, describe_shapes, watch_obstacles
from sacmil.models import Sample
from sacmil.training.packing import make_sample, name_tensors
from sacmil.training.trainer import Bags, Trainer, average_losses

_PLAIN_STEPS = 3
"""Taken first: libraries initialise themselves, optimizers create their state."""

Compute = Callable[[Sample], dict[str, Tensor]]


class CapturingTrainer(Trainer):
    """A trainer that replays captured steps; what cannot be captured takes plain steps."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._device = next(self.model.parameters()).device
        self._steps_taken = 0
        self._is_ready = False
        """Whether steps may be captured from now on."""
        self._graphs = GraphCache(self._device, self._find_obstacle())
        self._places: dict[Key, int] = {}
        """Where the first bag of each shape stays."""
        if self._device.type == "cuda":
            self._move_learning_rates()

    @property
    def obstacle(self) -> str:
        """Why steps are not captured; empty if they can be."""
        return self._graphs.obstacle

    def _move_learning_rates(self) -> None:
        """Move learning rates to the GPU, where a captured step reads them."""
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["capturable"] = True
                group["lr"] = torch.tensor(float(group["lr"]), device=self._device)

    def _find_obstacle(self) -> str:
        if self.task.needs_batch:
            return "its loss needs several bags"
        if self.recipe.instance_dropout:
            return "instances are left out at random, so that no shape comes twice"
        return ""

    def update_weights(self, samples: Bags) -> dict[str, Tensor]:
        """Take a step, replayed where it was captured."""
        self._steps_taken += 1
        if self.obstacle:
            return super().update_weights(samples)
        if not self._is_ready:
            return self._take_plain_step(samples)
        count = len(samples)
        if self.recipe.accumulate == 1:
            losses = [self._run(("step",), one, self._take_whole_step) for one in samples]
        else:
            losses = [self._run(("part", count), one, self._backward_of(count)) for one in samples]
            self._graphs.run(("update",), lambda _: self._update(), {})
        if self.slow_weights:
            self.slow_weights.step()
        return average_losses(losses)

    @torch.inference_mode()
    def predict(self, sample: Sample) -> Tensor:
        """Return the predictions for a bag, replayed where they were captured."""
        if not self._is_ready:
            return super().predict(sample)
        predict = super().predict
        return self._run(("predict",), sample, lambda one: {"": predict(one)})[""]

    def release(self) -> None:
        """Free the memory of captured steps."""
        self._graphs.clear()

    def _take_plain_step(self, samples: Bags) -> dict[str, Tensor]:
        """Take a plain step, and look for what cannot be captured."""
        with watch_obstacles(self._device) as found:
            losses = super().update_weights(samples)
        if self._steps_taken < _PLAIN_STEPS:
            return losses  # libraries may still initialise themselves
        if found:
            self._graphs.stop(found[0])
        else:
            self._is_ready = True
            if self.recipe.accumulate > 1:  # parts of a step are added where gradients stay
                for parameter in self.model.parameters():
                    if parameter.grad is not None:
                        parameter.grad = torch.zeros_like(parameter)
        return losses

    def _take_whole_step(self, sample: Sample) -> dict[str, Tensor]:
        """Take a step on one bag; its gradients begin anew, and no two are added."""
        self.model.train()
        self._forget_gradients()
        losses = self._backward(sample, 1)
        self._move_weights()
        return losses

    def _backward_of(self, count: int) -> Compute:
        """Return a function that adds the gradients of one of so many bags."""

        def backward(sample: Sample) -> dict[str, Tensor]:
            self.model.train()
            return self._backward(sample, count)

        return backward

    def _update(self) -> dict[str, Tensor]:
        """Move the weights, and set the gradients to zero where they are."""
        self._move_weights()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        torch._foreach_zero_(gradients)
        return {}

    def _run(self, kind: Key, sample: Sample, compute: Compute) -> dict[str, Tensor]:
        """Compute something of a bag, replayed if this was captured."""
        tensors = name_tensors(sample)
        place = self._find_place(sample, tensors)
        key = (*kind, place, *describe_shapes(tensors))
        return self._graphs.run(
            key, lambda own: compute(make_sample(own)), tensors, is_shared=place is None
        )

    def _find_place(self, sample: Sample, tensors: Tensors) -> int | None:
        """Return where a bag is captured in place; None if it shares a graph with others.

        Of the bags that stay, the first of a shape is captured in place. A copy of the others
        takes less time than capturing each.
        """
        if not sample.resident:
            return None
        place = sample.features.data_ptr()
        first = self._places.setdefault(describe_shapes(tensors), place)
        return place if first == place else None
