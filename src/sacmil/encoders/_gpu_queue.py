"""Lets threads share a GPU: each thread copies in its own stream, one stream computes.

When a batch size comes twice in a row, its computation is captured as a CUDA graph and replayed.
A replay is one call. A network makes hundreds, and each would wait for the interpreter while other
threads hand over pixels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import torch


class _CapturedGraph(NamedTuple):
    """A captured computation at fixed addresses in GPU memory."""

    graph: torch.cuda.CUDAGraph
    inputs: torch.Tensor
    outputs: torch.Tensor

    def replay(self, tiles: torch.Tensor) -> torch.Tensor:
        """Compute the features of as many other tiles."""
        self.inputs.copy_(tiles)
        self.graph.replay()
        return self.outputs.clone()


class GPUQueue:
    """Runs one computation for many threads.

    Args:
        device: the GPU.
        compute: tiles on the GPU to features; its control flow must not depend on values.
    """

    def __init__(
        self, device: torch.device, compute: Callable[[torch.Tensor], torch.Tensor]
    ) -> None:
        self._device, self._compute = device, compute
        self._queue = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._thread_local = threading.local()
        self._lock = threading.Lock()
        self._latest_shape: torch.Size | None = None
        self._captured: _CapturedGraph | None = None
        self._can_capture = True

    def run(self, tiles: torch.Tensor) -> torch.Tensor:
        """Compute the features of tiles; both are in host memory."""
        copies = self._get_copy_stream()
        with torch.cuda.stream(copies):
            block = tiles.pin_memory().to(self._device, non_blocking=True)
            with self._lock:
                self._queue.wait_stream(copies)
                with torch.cuda.stream(self._queue):
                    features = self._compute_features(block)
                copies.wait_stream(self._queue)
            return features.cpu()

    def _get_copy_stream(self) -> torch.cuda.Stream:
        """Return this thread's stream, whose copies overlap with the computation for others."""
        if not hasattr(self._thread_local, "copies"):
            self._thread_local.copies = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        copies: torch.cuda.Stream = self._thread_local.copies
        return copies

    def _compute_features(self, tiles: torch.Tensor) -> torch.Tensor:
        graph = self._captured
        if graph is None or graph.inputs.shape != tiles.shape:
            is_repeated, self._latest_shape = tiles.shape == self._latest_shape, tiles.shape
            is_larger = graph is None or len(tiles) > len(graph.inputs)
            if is_repeated and is_larger and self._can_capture:
                self._captured = graph = self._capture(tiles)
        if graph is None or graph.inputs.shape != tiles.shape:
            return self._compute(tiles)
        return graph.replay(tiles)

    def _capture(self, tiles: torch.Tensor) -> _CapturedGraph | None:
        """Capture the computation; None if that fails, also for lack of memory."""
        # Half precision holds bytes exactly, and the copy into it is the conversion too.
        graph, inputs = torch.cuda.CUDAGraph(), tiles.to(torch.float16)
        self._compute(inputs)  # makes this thread's library handles, which a capture cannot
        try:
            with torch.cuda.graph(graph, stream=self._queue, capture_error_mode="thread_local"):
                outputs = self._compute(inputs)
        except RuntimeError:
            self._can_capture = False
            _end_failed_capture(self._device)
            return None
        return _CapturedGraph(graph, inputs, outputs)


def _end_failed_capture(device: torch.device) -> None:
    """Reset the GPU's random generator, which a failed capture leaves in capture mode."""
    with torch.cuda.device(device):
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())
