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


class _Recording(NamedTuple):
    """A computation at fixed places in the GPU's memory."""

    graph: torch.cuda.CUDAGraph
    given: torch.Tensor
    made: torch.Tensor

    def replay(self, tiles: torch.Tensor) -> torch.Tensor:
        """Features of other tiles, as many."""
        self.given.copy_(tiles)
        self.graph.replay()
        return self.made.clone()


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
        self._own = threading.local()
        self._turn = threading.Lock()
        self._latest: torch.Size | None = None
        self._recording: _Recording | None = None
        self._records = True

    def run(self, tiles: torch.Tensor) -> torch.Tensor:
        """Features of tiles, both in the machine's memory."""
        copies = self._copies()
        with torch.cuda.stream(copies):
            block = tiles.pin_memory().to(self._device, non_blocking=True)
            with self._turn:
                self._queue.wait_stream(copies)
                with torch.cuda.stream(self._queue):
                    features = self._features(block)
                copies.wait_stream(self._queue)
            return features.cpu()

    def _copies(self) -> torch.cuda.Stream:
        """This thread's own queue: its copies overlap with what is computed for others."""
        if not hasattr(self._own, "copies"):
            self._own.copies = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        copies: torch.cuda.Stream = self._own.copies
        return copies

    def _features(self, tiles: torch.Tensor) -> torch.Tensor:
        known = self._recording
        if known is None or known.given.shape != tiles.shape:
            again, self._latest = tiles.shape == self._latest, tiles.shape
            if again and self._records and (known is None or len(tiles) > len(known.given)):
                self._recording = known = self._recorded(tiles)
        if known is None or known.given.shape != tiles.shape:
            return self._compute(tiles)
        return known.replay(tiles)

    def _recorded(self, tiles: torch.Tensor) -> _Recording | None:
        """None for what cannot be recorded, or needs more memory than there is."""
        # In half precision, which holds bytes exactly: the copy there is the conversion too.
        graph, given = torch.cuda.CUDAGraph(), tiles.to(torch.float16)
        self._compute(given)  # the libraries' handles are each thread's own, and not made below
        try:
            with torch.cuda.graph(graph, stream=self._queue, capture_error_mode="thread_local"):
                made = self._compute(given)
        except RuntimeError:
            self._records = False
            _leave_recording(self._device)
            return None
        return _Recording(graph, given, made)


def _leave_recording(device: torch.device) -> None:
    """Tell the GPU's random generator that no recording is under way: one that failed does not."""
    with torch.cuda.device(device):
        generator = torch.cuda.default_generators[torch.cuda.current_device()]
    generator.graphsafe_set_state(generator.clone_state())
