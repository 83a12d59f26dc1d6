"""Training steps captured as CUDA graphs, and replayed.

A step of a short bag launches some hundred kernels. That takes a processor core five milliseconds,
and the GPU one. Captured, they are launched at once. The numbers are those of plain steps: random
numbers come from the same generator, in the same order.

A bag that stays on the GPU is captured where it is. Other bags of one shape share a graph, which
reads them from a block of memory that they are copied to.
"""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

from sacmil.models import Sample
from sacmil.training.packing import PackedSample, list_fields, name_tensors
from sacmil.training.trainer import Bags, Trainer, average_losses

CAPTURE_VARIABLE = "SACMIL_CAPTURE"
"""Environment variable; "off" takes plain training steps on a GPU."""

MAX_GRAPHS = 4096
"""Of a trainer; each takes about a megabyte of the GPU's memory besides what it computes."""
_STALE_REPLAYS = 4 * MAX_GRAPHS
"""A graph gives way to another if so many others were replayed since."""
_MEMORY_SHARE = 0.5
"""Share of the GPU memory that is free at the start that graphs may take."""
_SPARE_SHARE = 0.05
"""Share of the GPU's memory below which graphs are dropped: other jobs need it."""
_MAX_FAILURES = 3
"""Captures that fail before none is tried again: a kernel may be compiled in the first."""
_PLAIN_STEPS = 3
"""Taken first: libraries initialise themselves, optimizers create their state."""

Key = tuple[Hashable, ...]
Call = Callable[[Sample], dict[str, Tensor]]

_log = logging.getLogger(__name__)


def is_capture_enabled() -> bool:
    """Whether steps on a GPU are captured where they can be."""
    return os.environ.get(CAPTURE_VARIABLE) != "off"


class CapturingTrainer(Trainer):
    """A trainer that replays captured steps; what cannot be captured takes plain steps."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._device = next(self.model.parameters()).device
        self._steps_taken, self._failures = 0, 0
        self._is_ready = False
        """Whether steps may be captured from now on."""
        self.obstacle = self._find_obstacle()
        """Why steps are not captured; empty if they can be."""
        self._graphs = GraphCache(self._device)
        if self._device.type == "cuda":
            self._move_learning_rates()

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
            self._run(("update",), None, lambda _: self._update())
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
        with _watch_obstacles(self._device) as found:
            losses = super().update_weights(samples)
        if self._steps_taken < _PLAIN_STEPS:
            return losses  # libraries may still initialise themselves
        if found:
            self._stop_capturing(found[0])
        else:
            self._is_ready = True
            if self.recipe.accumulate > 1:  # parts of a step are added where gradients stay
                for parameter in self.model.parameters():
                    if parameter.grad is not None:
                        parameter.grad = torch.zeros_like(parameter)
        return losses

    def _stop_capturing(self, reason: str) -> None:
        _log.debug("%s takes plain steps: %s", self.model.name, reason)
        self.obstacle, self._is_ready = reason, False
        self.release()

    def _take_whole_step(self, sample: Sample) -> dict[str, Tensor]:
        """Take a step on one bag; its gradients begin anew, and no two are added."""
        self.model.train()
        self._forget_gradients()
        losses = self._backward(sample, 1)
        self._move_weights()
        return losses

    def _backward_of(self, count: int) -> Call:
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

    def _run(self, kind: Key, sample: Sample | None, call: Any) -> dict[str, Tensor]:
        """Replay a call, or capture it if it will come again."""
        key = (*kind, *_identify(sample)) if sample else kind
        graph = self._graphs.get(key)
        may_capture = graph is None and not self.obstacle
        if may_capture and self._graphs.should_capture(key):
            try:
                graph = self._graphs.capture(key, call, sample)
            except RuntimeError as error:
                self._failures += 1
                if self._failures == _MAX_FAILURES:
                    self._stop_capturing(str(error).splitlines()[0])
        if graph is None:
            found: dict[str, Tensor] = call(sample)
            return found
        return graph.replay(sample)


def _identify(sample: Sample) -> Key:
    """Return a key of a bag that stays where it is, or of all bags of this shape."""
    place = sample.features.data_ptr() if sample.resident else None
    shapes = ((tuple(t.shape), t.dtype) for t in name_tensors(sample).values())
    return (place, *shapes)


@contextmanager
def _watch_obstacles(device: torch.device) -> Iterator[list[str]]:
    """Collect what plain steps do that a captured one cannot.

    A captured step cannot wait for the GPU, and would repeat random numbers of the CPU.
    """
    obstacles: list[str] = []
    before, mode = torch.get_rng_state(), torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield obstacles
        finally:
            torch.cuda.set_sync_debug_mode(mode)
    waits = [w for w in seen if "synchronizing CUDA operation" in str(w.message)]
    for warning in seen:
        if warning not in waits and "Synchronization debug mode" not in str(warning.message):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
    if waits:
        obstacles.append(f"a step waits for the GPU ({waits[0].filename}:{waits[0].lineno})")
    if not torch.equal(before, torch.get_rng_state()):
        obstacles.append("a step draws random numbers on the CPU")


class CapturedCall(NamedTuple):
    """A captured call."""

    graph: Any
    """Of CUDA."""
    own: Sample | None
    """What the graph reads."""
    returned: dict[str, Tensor]
    """What the call returned; every replay writes it again."""
    cost: int
    """Bytes of the GPU's memory."""

    def replay(self, sample: Sample | None) -> dict[str, Tensor]:
        """Repeat the call with a bag."""
        if self.own and sample and not sample.resident:
            given = name_tensors(sample)
            for name, tensor in name_tensors(self.own).items():
                tensor.copy_(given[name])
        self.graph.replay()
        return {name: value.clone() for name, value in self.returned.items()}


class GraphCache:
    """Captured calls. Those used least recently are dropped when memory is short.

    They share a pool of memory, as they are replayed one after the other: it is as large as what
    the largest of them needs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._graphs: OrderedDict[Key, CapturedCall] = OrderedDict()
        self._last_used: dict[Key, int] = {}
        self._seen: set[Key] = set()
        self._rejected: set[Key] = set()
        self._replays = 0
        self._pool: Any = None
        self._stream: Any = None
        self._block: Tensor | None = None
        self._budget = self._find_free() * _MEMORY_SHARE

    def __len__(self) -> int:
        return len(self._graphs)

    @property
    def cost(self) -> int:
        """Bytes of the GPU's memory that all graphs take."""
        return sum(graph.cost for graph in self._graphs.values())

    def get(self, key: Key) -> CapturedCall | None:
        """Return a captured call."""
        self._replays += 1
        graph = self._graphs.get(key)
        if graph:
            self._graphs.move_to_end(key)
            self._last_used[key] = self._replays
        return graph

    def should_capture(self, key: Key) -> bool:
        """Whether to capture a call: when its key comes for the second time.

        The first time bags are read, and threads that do so would slow down a capture.
        """
        is_known = key in self._seen
        self._seen.add(key)
        if not is_known or key in self._rejected:
            return False
        if self._find_free() < _SPARE_SHARE * self._find_total():
            self.clear()  # other jobs need the memory
            return False
        if len(self._graphs) < MAX_GRAPHS:
            return True
        oldest = next(iter(self._graphs))
        if self._replays - self._last_used[oldest] < _STALE_REPLAYS:
            return False
        self._drop(oldest)
        return True

    def capture(self, key: Key, call: Call, sample: Sample | None) -> CapturedCall | None:
        """Capture a call; None if memory is short."""
        own = self._make_own(sample) if sample and not sample.resident else sample
        free = self._find_free()
        try:
            graph, returned = self._record(call, own)
        except torch.OutOfMemoryError:
            self.clear()
            self._rejected.add(key)
            return None
        captured = CapturedCall(graph, own, returned, max(0, free - self._find_free()))
        self._graphs[key], self._last_used[key] = captured, self._replays
        while self.cost > self._budget and len(self._graphs) > 1:
            self._drop(next(iter(self._graphs)))
        if captured.cost > self._budget:
            self._rejected.add(key)
        return captured

    def clear(self) -> None:
        """Drop all graphs and their memory."""
        self._graphs.clear()
        self._last_used.clear()
        self._pool = self._block = None
        if self._device.type == "cuda":
            torch.cuda.empty_cache()

    def _record(self, call: Call, sample: Sample | None) -> tuple[Any, dict[str, Tensor]]:
        """Return a graph of the call, and what the call returned."""
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
            # one stream for all: memory of the pool is not shared between streams
            self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        graph = torch.cuda.CUDAGraph()
        gc.disable()  # what it frees may be in use by the stream
        try:
            with torch.cuda.stream(self._stream):
                # other threads copy bags meanwhile
                graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
                try:
                    returned = call(sample)  # type: ignore[arg-type]
                finally:
                    graph.capture_end()
        except RuntimeError:
            self._repair()
            raise
        finally:
            gc.enable()
        return graph, returned

    def _repair(self) -> None:
        """Take out of a capture that failed what torch leaves in it."""
        index = self._device.index or 0
        generator = torch.cuda.default_generators[index]
        generator.graphsafe_set_state(generator.clone_state())
        with suppress(RuntimeError):  # the memory is given back already
            torch._C._cuda_endAllocateToPool(index, self._pool)
        self._pool = None

    def _make_own(self, sample: Sample) -> Sample:
        """Return a sample of this shape in the memory that bags are copied to."""
        fields = list_fields(name_tensors(sample))
        size = fields[-1].stop
        if self._block is None or len(self._block) < size:
            # older graphs keep the smaller one
            self._block = torch.empty(2 * size, dtype=torch.uint8, device=self._device)
        return PackedSample(self._block[:size], fields).unpack()

    def _drop(self, key: Key) -> None:
        del self._graphs[key], self._last_used[key]

    def _find_free(self) -> int:
        return torch.cuda.mem_get_info(self._device)[0]

    def _find_total(self) -> int:
        return torch.cuda.mem_get_info(self._device)[1]
