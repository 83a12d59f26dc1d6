"""Training steps recorded as CUDA graphs, one for each shape of bag, and replayed.

A step of a small bag is a matter of launching some hundred kernels, which takes a processor core
ten milliseconds and the GPU one. Recorded, they are launched at once. Bags of a study come in few
shapes, or come often enough.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from sacmil.models import Sample
from sacmil.training.trainer import Trainer

PLAIN = 3
"""Steps taken plainly first: libraries set themselves up, optimisers make what they remember."""

Shape = tuple[Any, ...]


class Recorded:
    """What was done with one bag, to be done again with others of its shape.

    Args:
        call: what to record; what it returns is read after each replay.
        sample: a bag of the shape.
        pool: of memory, shared by recordings that never run at the same time.
    """

    def __init__(
        self, call: Callable[[Sample], dict[str, Tensor]], sample: Sample, pool: Any
    ) -> None:
        self._sample = _copied(sample)
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self._told = call(self._sample)
            finally:
                self._graph.capture_end()

    def __call__(self, sample: Sample) -> dict[str, Tensor]:
        """Do it with another bag."""
        for own, given in zip(_tensors(self._sample), _tensors(sample), strict=True):
            own.copy_(given)
        self._graph.replay()
        return {name: value.clone() for name, value in self._told.items()}


class ReplayTrainer(Trainer):
    """A trainer that records a step when a shape comes for the second time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pool = torch.cuda.graph_pool_handle()
        self._steps: dict[Shape, Recorded] = {}
        self._answers: dict[Shape, Recorded] = {}
        self._seen: Counter[Shape] = Counter()
        self._taken = 0
        device = next(self.model.parameters()).device
        for optimiser in self.optimizers.values():
            for group in optimiser.param_groups:
                group["capturable"] = True
                group["lr"] = torch.tensor(float(group["lr"]), device=device)

    def update_weights(self, samples: Sequence[Sample]) -> dict[str, Tensor]:
        """A step, replayed where it can be."""
        self._taken += 1
        (sample,) = samples
        shape = _shape(sample)
        if shape not in self._steps:
            if self._taken <= PLAIN or not self._came_before(("step", *shape)):
                return super().update_weights(samples)
            self._steps[shape] = self._record(
                lambda one: super(ReplayTrainer, self).update_weights([one]), sample
            )
        return self._steps[shape](sample)

    def predict_probabilities(self, sample: Sample) -> Tensor:
        """The probabilities of a bag."""
        shape = _shape(sample)
        if shape not in self._answers:
            if not self._came_before(("answer", *shape)):
                return super().predict_probabilities(sample)
            asked = super().predict_probabilities
            self._answers[shape] = self._record(lambda one: {"": asked(one)}, sample)
        return self._answers[shape](sample)[""]

    def _came_before(self, shape: Shape) -> bool:
        self._seen[shape] += 1
        return self._seen[shape] > 1

    def _record(self, call: Callable[[Sample], dict[str, Tensor]], sample: Sample) -> Recorded:
        self._forget_gradients()
        recorded = Recorded(call, sample, self._pool)
        self._forget_gradients()  # they lie in the pool, which others use as well
        return recorded

    def _forget_gradients(self) -> None:
        for optimiser in self.optimizers.values():
            optimiser.zero_grad()


def _shape(sample: Sample) -> Shape:
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in _tensors(sample))


def _tensors(sample: Sample) -> list[Tensor]:
    plan = [torch.as_tensor(sample.plan[key]) for key in sorted(sample.plan)]
    return [sample.features, sample.coords, sample.target, *plan]


def _copied(sample: Sample) -> Sample:
    plan = {key: torch.as_tensor(value).clone() for key, value in sample.plan.items()}
    features, coords, target = (sample.features, sample.coords, sample.target)
    return Sample(features.clone(), coords.clone(), plan, target.clone())
