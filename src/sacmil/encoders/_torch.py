"""Encodes tiles with torch: normalised on the device, half precision and channels-last on a GPU."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn import functional as F

from sacmil.encoders._base import EncoderCard, TileEncoder
from sacmil.encoders._tiles import check_tiles
from sacmil.errors import EncoderError, suggestion

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

PRECISIONS = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


class TileNetwork(nn.Module):
    """A network with its normalisation: uint8 (B, P, P, 3) to float32 (B, width).

    This is also what is exported, so that both engines start from the same bytes.
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

    def forward(self, tiles: torch.Tensor) -> torch.Tensor:
        """Tiles as they come from a slide, to feature vectors."""
        images = tiles.permute(0, 3, 1, 2).to(torch.float32) * self.scale + self.shift
        features: torch.Tensor = self.network(images.to(self.dtype))
        return features.to(torch.float32)


class TorchEncoder(TileEncoder):
    """A network on one device."""

    engine = "torch"

    def __init__(
        self,
        network: nn.Module,
        card: EncoderCard,
        *,
        weights_hash: str,
        device: str = "cpu",
        precision: str | None = None,
    ) -> None:
        self.card = card
        self.hash = weights_hash
        self._device = _usable(device)
        self.device = str(self._device)
        self.precision = precision or ("float16" if self._on_gpu else "float32")
        self.resizes = self._on_gpu  # which has time to spare; on a CPU, Pillow is faster
        self._tiles_to_features = self._prepare(network)
        self._own = threading.local()

    @property
    def _on_gpu(self) -> bool:
        return self._device.type == "cuda"

    def _prepare(self, network: nn.Module) -> TileNetwork:
        if self.precision not in PRECISIONS:
            known = suggestion(self.precision, PRECISIONS)
            raise EncoderError(f"there is no precision {self.precision!r}; {known}")
        # Tiles lie channels-last in memory already, and tensor cores want them so.
        layout = torch.channels_last if self._on_gpu else torch.contiguous_format
        dtype = PRECISIONS[self.precision]
        if not self._on_gpu:  # where it makes nothing faster
            network = _folded(network.eval())
        network = network.to(self._device, dtype)
        network = network.to(memory_format=layout)  # type: ignore[call-overload]
        prepared = (
            TileNetwork(network, self.card)
            .to(self._device)
            .eval()
            .requires_grad_(requires_grad=False)
        )
        prepared.dtype = dtype
        return prepared

    @contextmanager
    def side_by_side(self) -> Iterator[None]:
        """One thread of torch's for each of ours: more would fight over the same cores."""
        usual = torch.get_num_threads()
        torch.set_num_threads(usual if self._on_gpu else 1)
        try:
            yield
        finally:
            torch.set_num_threads(usual)

    @torch.inference_mode()
    def encode(self, tiles: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """(B, input_px, input_px, 3) RGB to (B, width)."""
        tiles = check_tiles(tiles, self.card, any_side=self.resizes)
        if not len(tiles):
            return np.empty((0, self.card.width), np.float32)
        block = torch.from_numpy(tiles)
        with self._stream():
            if self._on_gpu:
                block = block.pin_memory().to(self._device, non_blocking=True)
            features = self._tiles_to_features(self._resized(block))
            return features.cpu().numpy()  # type: ignore[no-any-return]

    def _resized(self, block: torch.Tensor) -> torch.Tensor:
        """As Pillow would, up to the rounding of its two passes."""
        side = self.card.input_px
        if block.shape[1] == side:
            return block
        images = block.permute(0, 3, 1, 2).to(self._tiles_to_features.dtype, copy=True)
        weights = _resampling(block.shape[1], side, self.card.resample).to(images)
        # Two matrix products take half the time of torch's own interpolation. Pillow goes along
        # rows first, and keeps whole grey levels in between.
        images = (images.contiguous() @ weights.T).round_().clamp_(0, 255)
        images = (weights @ images).round_().clamp_(0, 255)
        return images.to(torch.uint8).permute(0, 2, 3, 1)

    def _stream(self) -> AbstractContextManager[object]:
        """A queue of the GPU per thread: one thread's copies overlap with another's kernels."""
        if not self._on_gpu:
            return nullcontext()
        if not hasattr(self._own, "stream"):
            self._own.stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        return torch.cuda.stream(self._own.stream)


@cache
def _resampling(before: int, after: int, mode: str) -> torch.Tensor:
    """(after, before), what each pixel of a resized row takes of the row's pixels."""
    rows = torch.eye(before)[None, None]
    return F.interpolate(rows, (after, before), mode=mode, antialias=True)[0, 0]


def _folded(network: nn.Module) -> nn.Module:
    """The network with every batch normalisation made part of the convolution before it."""
    if not any(isinstance(module, nn.BatchNorm2d) for module in network.modules()):
        return network
    with warnings.catch_warnings():  # importing it warns of torch's own older parts
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch.fx.experimental.optimization import fuse
    try:
        return fuse(network)
    except torch.fx.proxy.TraceError:  # its path depends on its input
        return network


def _usable(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise EncoderError(
            f"the device {name!r} cannot be used ({reason}); expected cpu or cuda:0, cuda:1, …: "
            "`sacmil doctor` lists what is here"
        ) from error
    return device
