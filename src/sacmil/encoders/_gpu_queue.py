"""The way to a GPU and back that threads share: each copies on its own, one queue computes.

What is done to a batch is recorded when its size comes a second time in a row, and then replayed:
one call instead of the hundreds that make up a network, each of which would have to wait for its
turn at the interpreter while other threads hand over pixels.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

import torch


class _CapturedGraph(NamedTuple):
    """A computation at fixed places in the GPU's memory."""

    graph: torch.cuda.CUDAGraph
    inputs: torch.Tensor
    outputs: torch.Tensor

    def replay(self, tiles: torch.Tensor) -> torch.Tensor:
        """Features of other tiles, as many."""
        self.inputs.copy_(tiles)
        self.graph.replay()
        return self.outputs.clone()


class GPUQueue:
    """Runs one computation for many threads.

    Args:
        device: the GPU.
        compute: tiles on the GPU to features, which must not look at values on the way.
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
        """Features of tiles, both in the machine's memory."""
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
        """This thread's own queue: its copies overlap with what is computed for others."""
        if not hasattr(self._thread_local, "copies"):
            self._thread_local.copies = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        copies: torch.cuda.Stream = self._thread_local.copies
        return copies

    def _compute_features(self, tiles: torch.Tensor) -> torch.Tensor:
        known = self._captured
        if known is None or known.inputs.shape != tiles.shape:
            again, self._latest_shape = tiles.shape == self._latest_shape, tiles.shape
            if again and self._can_capture and (known is None or len(tiles) > len(known.inputs)):
                self._captured = known = self._capture(tiles)
        if known is None or known.inputs.shape != tiles.shape:
            return self._compute(tiles)
        return known.replay(tiles)

    def _capture(self, tiles: torch.Tensor) -> _CapturedGraph | None:
        """None for what cannot be recorded, or needs more memory than there is."""
        # In half precision, which holds bytes exactly: the copy there is the conversion too.
        graph, given = torch.cuda.CUDAGraph(), tiles.to(torch.float16)
        self._compute(given)  # the libraries' handles are each thread's own, and not made below
        try:
            with torch.cuda.graph(graph, stream=self._queue, capture_error_mode="thread_local"):
                made = self._compute(given)
        except RuntimeError:
            self._can_capture = False
            _end_failed_capture(self._device)
            return None
        return _CapturedGraph(graph, given, made)


def _end_failed_capture(device: torch.device) -> None:
    """Tell the GPU's random generator that no recording is under way: one that failed does not."""
    with torch.cuda.device(device):
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())
