"""Encodes tiles with torch; on a GPU in half precision and channels-last."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from sacmil.encoders._base import Encoder, EncoderCard
from sacmil.encoders._gpu_queue import GPUQueue
from sacmil.encoders._resize import resize_tiles
from sacmil.encoders._tiles import check_tiles
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
        self._device = select_device(device)
        self.device = str(self._device)
        self.precision = precision or ("float16" if self._is_on_gpu else "float32")
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
        prepared = (
            TileNetwork(network, self.card)
            .to(self._device)
            .eval()
            .requires_grad_(requires_grad=False)
        )
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
