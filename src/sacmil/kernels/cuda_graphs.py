"""Calls captured as CUDA graphs, and replayed.

A training step of a short bag launches some hundred kernels. That takes a processor core five
milliseconds, and the GPU one. Captured, they are launched at once. The numbers are those of the
plain call: random numbers come from the same generator, in the same order.
"""

from __future__ import annotations

import gc
import logging
import os
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import torch
from torch import Tensor

CAPTURE_VARIABLE = "SACMIL_CAPTURE"
"""Environment variable; "off" takes plain steps on a GPU."""

MAX_GRAPHS = 4096
"""Of a cache; each takes about a megabyte of the GPU's memory besides what it computes."""
STALE_REPLAYS = 4 * MAX_GRAPHS
"""A graph gives way to another if so many others were replayed since."""
_MEMORY_SHARE = 0.5
"""Share of the GPU memory that is free at the start that graphs may take."""
_SPARE_SHARE = 0.05
"""Share of the GPU's memory below which graphs are dropped: other jobs need it."""
_MAX_FAILURES = 3
"""Captures that fail before none is tried again: a kernel may be compiled in the first."""
_ALIGNMENT = 256
"""Of every tensor, in bytes: kernels and the rounding of sums depend on it."""

Key = tuple[Hashable, ...]
Tensors = Mapping[str, Tensor]
Call = Callable[[Tensors], dict[str, Tensor]]

_log = logging.getLogger(__name__)


def is_capture_enabled(device: torch.device) -> bool:
    """Whether calls on the device are captured where they can be."""
    return device.type == "cuda" and os.environ.get(CAPTURE_VARIABLE) != "off"


@contextmanager
def watch_obstacles(device: torch.device) -> Iterator[list[str]]:
    """Collect what plain calls do that captured ones cannot.

    A captured call cannot wait for the GPU, and would repeat random numbers of the CPU.
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
        obstacles.append(f"it waits for the GPU ({waits[0].filename}:{waits[0].lineno})")
    if not torch.equal(before, torch.get_rng_state()):
        obstacles.append("it draws random numbers on the CPU")


class Field(NamedTuple):
    """A tensor, and where it is in a block of bytes."""

    name: str
    dtype: torch.dtype
    shape: torch.Size
    start: int
    stop: int


def list_fields(tensors: Tensors) -> tuple[Field, ...]:
    """Return where each tensor is in a block that holds them all."""
    fields, end = [], 0
    for name, tensor in tensors.items():
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = start + tensor.numel() * tensor.element_size()
        fields.append(Field(name, tensor.dtype, tensor.shape, start, end))
    return tuple(fields)


def view_fields(block: Tensor, fields: tuple[Field, ...]) -> dict[str, Tensor]:
    """Return the tensors by name; they share the block's memory."""
    return {
        name: block[start:stop].view(dtype).view(shape)
        for name, dtype, shape, start, stop in fields
    }


def describe_shapes(tensors: Tensors) -> Key:
    """Return what tensors have in common that can share a graph."""
    return tuple((name, tuple(t.shape), t.dtype) for name, t in tensors.items())


class CapturedCall(NamedTuple):
    """A captured call."""

    graph: Any
    """Of CUDA."""
    own: Tensors
    """What the graph reads."""
    is_shared: bool
    """Whether others are copied to what it reads."""
    returned: dict[str, Tensor]
    """What the call returned; every replay writes it again."""
    cost: int
    """Bytes of the GPU's memory."""

    def replay(self, given: Tensors) -> dict[str, Tensor]:
        """Repeat the call with tensors of the same shapes."""
        if self.is_shared:
            for name, tensor in self.own.items():
                tensor.copy_(given[name])
        self.graph.replay()
        return {name: value.clone() for name, value in self.returned.items()}


class GraphCache:
    """Captured calls. Those used least recently are dropped when memory is short.

    They share a pool of memory, as they are replayed one after the other: it is as large as what
    the largest of them needs.

    Args:
        device: the GPU.
        obstacle: why nothing can be captured, if that is known.
    """

    def __init__(self, device: torch.device, obstacle: str = "") -> None:
        self.obstacle = obstacle
        """Why nothing is captured; empty if it can be."""
        self._failures = 0
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

    def run(
        self, key: Key, call: Call, given: Tensors, *, is_shared: bool = False
    ) -> dict[str, Tensor]:
        """Replay a call; or make it, and capture it before if its key came already.

        Args:
            key: of the call.
            call: what to compute.
            given: what it reads.
            is_shared: as for ``capture``.
        """
        graph = self.get(key)
        if graph is None and not self.obstacle and self.should_capture(key):
            try:
                graph = self.capture(key, call, given, is_shared=is_shared)
            except RuntimeError as error:
                self._failures += 1
                if self._failures == _MAX_FAILURES:
                    self.stop(str(error).splitlines()[0])
        return call(given) if graph is None else graph.replay(given)

    def stop(self, obstacle: str) -> None:
        """Capture nothing from now on, and free the memory."""
        _log.debug("nothing is captured: %s", obstacle)
        self.obstacle = obstacle
        self.clear()

    def get(self, key: Key) -> CapturedCall | None:
        """Return a captured call."""
        self._replays += 1
        graph = self._graphs.get(key)
        if graph:
            self._graphs.move_to_end(key)
            self._last_used[key] = self._replays
        return graph

    def has_seen(self, key: Key) -> bool:
        """Whether a call has come before."""
        return key in self._seen

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
        if self._replays - self._last_used[oldest] < STALE_REPLAYS:
            return False
        self._drop(oldest)
        return True

    def capture(
        self, key: Key, call: Call, given: Tensors, *, is_shared: bool = False
    ) -> CapturedCall | None:
        """Capture a call; None if memory is short.

        Args:
            key: of the call.
            call: what to capture.
            given: what it reads.
            is_shared: whether others of the same shapes will be given; otherwise the call is
                captured with these tensors, where they are.
        """
        own = self._make_own(given) if is_shared else given
        free = self._find_free()
        try:
            graph, returned = self._record(call, own)
        except torch.OutOfMemoryError:
            self.clear()
            self._rejected.add(key)
            return None
        captured = CapturedCall(graph, own, is_shared, returned, max(0, free - self._find_free()))
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

    def _record(self, call: Call, own: Tensors) -> tuple[Any, dict[str, Tensor]]:
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
                    returned = call(own)
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

    def _make_own(self, given: Tensors) -> Tensors:
        """Return tensors of these shapes in the memory that others are copied to."""
        fields = list_fields(given)
        size = fields[-1].stop
        if self._block is None or len(self._block) < size:
            # older graphs keep the smaller one
            self._block = torch.empty(2 * size, dtype=torch.uint8, device=self._device)
        return view_fields(self._block, fields)

    def _drop(self, key: Key) -> None:
        del self._graphs[key], self._last_used[key]

    def _find_free(self) -> int:
        return torch.cuda.mem_get_info(self._device)[0]

    def _find_total(self) -> int:
        return torch.cuda.mem_get_info(self._device)[1]
