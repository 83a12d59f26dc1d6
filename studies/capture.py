"""Training steps captured as CUDA graphs, one for each shape of bag, and replayed.

A step of a small bag launches some hundred kernels, which takes a processor core ten milliseconds
and the GPU one. Captured, they are launched at once. Bags of a study come in few shapes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sacmil.models import Sample
from sacmil.training.trainer import Bags, Trainer

PLAIN_STEPS = 3
"""Taken without capture first: libraries initialise themselves, optimizers create their state."""
NOT_CAPTURED = ("clam_sb", "clam_mb", "hipt")
"""Models that read numbers from the GPU in the middle of a step, which cannot be captured."""

Shape = tuple[Any, ...]


class CapturedCall:
    """A call with one bag, to be repeated with others of its shape.

    Args:
        call: captured; what it returns is read after each replay.
        sample: a bag of the shape.
        pool: of memory, shared by captures that never run at the same time.
    """

    def __init__(
        self, call: Callable[[Sample], dict[str, Tensor]], sample: Sample, pool: Any
    ) -> None:
        self._sample = _copy(sample)
        self._graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):  # type: ignore[no-untyped-call]
            self._graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                self._returned = call(self._sample)
            finally:
                self._graph.capture_end()

    def __call__(self, sample: Sample) -> dict[str, Tensor]:
        """Repeat it with another bag."""
        for own, given in zip(_list_tensors(self._sample), _list_tensors(sample), strict=True):
            own.copy_(given)
        self._graph.replay()
        return {name: value.clone() for name, value in self._returned.items()}


class CapturingTrainer(Trainer):
    """A trainer that captures a step when a shape comes for the second time."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pool = torch.cuda.graph_pool_handle()
        self._steps: dict[Shape, CapturedCall] = {}
        self._predictions: dict[Shape, CapturedCall] = {}
        self._seen: Counter[Shape] = Counter()
        self._steps_taken = 0
        device = next(self.model.parameters()).device
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                group["capturable"] = True
                group["lr"] = torch.tensor(float(group["lr"]), device=device)

    def update_weights(self, samples: Bags) -> dict[str, Tensor]:
        """Take a step, replayed where its shape was captured."""
        self._steps_taken += 1
        (sample,) = samples
        shape = _get_shape(sample)
        if shape not in self._steps:
            if self._steps_taken <= PLAIN_STEPS or not self._has_come_before(("step", *shape)):
                return super().update_weights(samples)
            self._steps[shape] = self._capture(
                lambda one: super(CapturingTrainer, self).update_weights([one]), sample
            )
        return self._steps[shape](sample)

    def predict(self, sample: Sample) -> Tensor:
        """Return the predictions for a bag."""
        shape = _get_shape(sample)
        if shape not in self._predictions:
            if not self._has_come_before(("prediction", *shape)):
                return super().predict(sample)
            predict = super().predict
            self._predictions[shape] = self._capture(lambda one: {"": predict(one)}, sample)
        return self._predictions[shape](sample)[""]

    def _has_come_before(self, shape: Shape) -> bool:
        self._seen[shape] += 1
        return self._seen[shape] > 1

    def _capture(self, call: Callable[[Sample], dict[str, Tensor]], sample: Sample) -> CapturedCall:
        self._drop_gradients()
        captured = CapturedCall(call, sample, self._pool)
        self._drop_gradients()  # they lie in the pool, which others use as well
        return captured

    def _drop_gradients(self) -> None:
        for optimizer in self.optimizers.values():
            optimizer.zero_grad()


def _get_shape(sample: Sample) -> Shape:
    return tuple((tuple(tensor.shape), tensor.dtype) for tensor in _list_tensors(sample))


def _list_tensors(sample: Sample) -> list[Tensor]:
    plan = [torch.as_tensor(sample.plan[key]) for key in sorted(sample.plan)]
    return [sample.features, sample.coords, sample.target, *plan]


def _copy(sample: Sample) -> Sample:
    plan = {key: torch.as_tensor(value).clone() for key, value in sample.plan.items()}
    features, coords, target = (sample.features, sample.coords, sample.target)
    return Sample(features.clone(), coords.clone(), plan, target.clone())
