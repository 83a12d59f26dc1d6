"""Encodes tiles with torch; on a GPU in half precision and channels-last.

Threads share a GPU: each copies in its own stream, one stream computes. When a batch size comes
twice in a row, its computation is captured as a CUDA graph and replayed. A replay is one call. A
network makes hundreds, and each would wait for the interpreter while other threads hand over
pixels.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from sacmil.encoders._base import Encoder, EncoderCard, EncoderRequest, check_tiles
from sacmil.environment import select_device
from sacmil.errors import EncoderError, suggest_names

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class TileNetwork(nn.Module):
    """A network with its normalisation: uint8 (B, P, P, 3) to float32 (B, width).

    This module is also what is exported, so that both engines start from the same bytes.
    """

    scale: torch.Tensor
    shift: torch.Tensor

    def __init__(self, network: nn.Module, card: EncoderCard) -> None:
        super().__init__()
        self.network = network
        mean, std = (torch.tensor(v).reshape(1, 3, 1, 1) for v in (card.mean, card.std))
        self.register_buffer("scale", 1 / (255 * std))
        self.register_buffer("shift", -mean / std)
        self.dtype = torch.float32
        self.eval().requires_grad_(requires_grad=False)

    def forward(self, tiles: torch.Tensor) -> torch.Tensor:
        """Compute feature vectors of tiles as read from a slide."""
        features: torch.Tensor = self.network(self._normalize(tiles.permute(0, 3, 1, 2)))
        return features.to(torch.float32)

    def _normalize(self, images: torch.Tensor) -> torch.Tensor:
        if self.dtype == torch.float32:
            return images.to(torch.float32) * self.scale + self.shift
        # One pass instead of four: read as bytes, computed in float32, written in half precision.
        out = torch.empty_like(images, dtype=self.dtype)
        return torch.addcmul(self.shift, images, self.scale, out=out)


class TorchEncoder(Encoder):
    """A network on one device."""

    engine = "torch"

    def __init__(
        self, network: nn.Module, card: EncoderCard, weights_hash: str, request: EncoderRequest
    ) -> None:
        self.card = card
        self.hash = weights_hash
        self._device = select_device(request.device)
        self.device = str(self._device)
        self.precision = request.precision or ("float16" if self._is_on_gpu else "float32")
        self.can_resize = self._is_on_gpu  # a GPU has time to spare; on a CPU, Pillow is faster
        self._tiles_to_features = self._prepare(network)
        self._queue = GPUQueue(self._device, self._compute_features) if self._is_on_gpu else None

    @property
    def _is_on_gpu(self) -> bool:
        return self._device.type == "cuda"

    def _prepare(self, network: nn.Module) -> TileNetwork:
        if self.precision not in PRECISIONS:
            known = suggest_names(self.precision, PRECISIONS)
            raise EncoderError(f"there is no precision {self.precision!r}; {known}")
        # Tiles are channels-last in memory already, as tensor cores need them.
        layout = torch.channels_last if self._is_on_gpu else torch.contiguous_format
        dtype = PRECISIONS[self.precision]
        if not self._is_on_gpu:  # on a GPU it makes nothing faster
            network = _fold_batch_norms(network.eval())
        network = network.to(self._device, dtype)
        network = network.to(memory_format=layout)  # type: ignore[call-overload]
        prepared = TileNetwork(network, self.card).to(self._device)
        prepared.dtype = dtype
        return prepared

    @contextmanager
    def concurrent_mode(self) -> Iterator[None]:
        """Limit torch to one thread per caller: more would compete for the same cores."""
        previous = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(previous)

    def allocate_buffer(self, size: int) -> npt.NDArray[np.uint8]:
        """Allocate pinned memory for a GPU; tiles elsewhere would be copied there first."""
        try:
            return torch.empty(size, dtype=torch.uint8, pin_memory=self._is_on_gpu).numpy()
        except RuntimeError:  # the system has no more of it
            return super().allocate_buffer(size)

    @torch.inference_mode()
    def encode(self, tiles: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Encode RGB tiles (B, input_px, input_px, 3) as features (B, width)."""
        tiles = check_tiles(tiles, self.card, any_side=self.can_resize)
        if not len(tiles):
            return np.empty((0, self.card.width), np.float32)
        run = self._queue.run if self._queue else self._compute_features
        return run(torch.from_numpy(tiles)).numpy()

    def _compute_features(self, tiles: torch.Tensor) -> torch.Tensor:
        """Compute features of tiles of any size on the device."""
        side, network = self.card.input_px, self._tiles_to_features
        if tiles.shape[1] != side:
            # bfloat16 holds grey levels, but its resizing weights do not add up to one.
            exact = torch.float32 if network.dtype == torch.float32 else torch.float16
            tiles = resize_tiles(tiles, side, self.card.resample, exact)
        features: torch.Tensor = network(tiles)
        return features


def _fold_batch_norms(network: nn.Module) -> nn.Module:
    """Return the network with each batch normalisation folded into the convolution before it."""
    if not any(isinstance(module, nn.BatchNorm2d) for module in network.modules()):
        return network
    with warnings.catch_warnings():  # the import warns about deprecated modules of torch
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.fx.experimental.optimization import fuse
    try:
        return fuse(network)
    except torch.fx.proxy.TraceError:  # its control flow depends on its input
        return network


def resize_tiles(tiles: torch.Tensor, side: int, mode: str, dtype: torch.dtype) -> torch.Tensor:
    """Resize (B, P, P, 3) to (B, side, side, 3) as Pillow would, by two matrix products.

    The results are whole numbers from 0 to 255, as floats. Pillow resizes along rows first, and
    rounds to whole grey levels in between.

    Args:
        tiles: square, uint8.
        side: the new side.
        mode: bilinear or bicubic.
        dtype: to compute in.
    """
    columns, rows = _make_resize_matrices(tiles.shape[1], side, mode, dtype, tiles.device)
    lines = _round_values(F.linear(tiles.flatten(2).to(dtype), columns), mode)  # (B, P, 3 side)
    images = _round_values(rows.expand(len(tiles), -1, -1) @ lines, mode)
    return images.reshape(len(tiles), side, side, 3)


def _round_values(values: torch.Tensor, mode: str) -> torch.Tensor:
    """Round in place; bicubic values can leave the range and are clamped, bilinear ones cannot."""
    values = values.round_()
    return values if mode == "bilinear" else values.clamp_(0, 255)


@cache
def _make_resize_matrices(
    old_side: int, new_side: int, mode: str, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the resizing matrices of columns, (3 new, 3 old), and of rows, (new, old).

    The first has weight zero between different colours. Multiplying by zeros takes less time on a
    GPU than moving each colour to a plane of its own and back.
    """
    line = torch.eye(old_side)[None, None]
    rows = F.interpolate(line, (new_side, old_side), mode=mode, antialias=True)[0, 0]
    columns = torch.kron(rows, torch.eye(3))
    return columns.to(device, dtype), rows.to(device, dtype)


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
            # a failed capture leaves the GPU's random generator in capture mode
            with torch.cuda.device(self._device):
                generator = torch.cuda.default_generators[torch.cuda.current_device()]
            generator.graphsafe_set_state(generator.clone_state())
            return None
        return _CapturedGraph(graph, inputs, outputs)
