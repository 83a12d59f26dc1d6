"""What every encoder is: a card that describes it, and a function from tiles to vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class EncoderCard:
    """What is known of an encoder before its weights are loaded."""

    name: str
    width: int
    """Length of a feature vector."""
    input_px: int
    """Side of the square image the network takes; tiles of another size are resized to it."""
    resample: str
    """How they are resized, as the official transform does: bilinear or bicubic."""
    mean: tuple[float, float, float]
    """Subtracted from RGB values between 0 and 1."""
    std: tuple[float, float, float]
    """What they are then divided by."""
    pooling: str
    """How a vector is made of the network's last map or tokens, in words."""
    mpp: float
    """Microns per pixel the encoder was made for."""
    licence: str
    weights: str
    """Where the weights come from, in words: a package, a hub address, a file."""


class Encoder(ABC):
    """An encoder with its weights, on one device. Safe to call from several threads."""

    card: EncoderCard
    hash: str
    """First 16 hex digits of the SHA-256 of the weights."""
    engine: str
    """What computes: "onnxruntime" or "torch"."""
    device: str
    """"cpu", "cuda:0", …"""
    precision: str
    """What it computes in: float32, float16, bfloat16."""

    file_sha256: str | None = None
    """SHA-256 of the file, where no card beside it says which encoder it is."""
    can_resize: bool = False
    """Whether it takes square tiles of any size, and resizes them on its own device."""

    def concurrent_mode(self) -> AbstractContextManager[object]:
        """A time during which several threads call ``encode`` at once, a core for each."""
        return nullcontext()

    def allocate_buffer(self, size: int) -> npt.NDArray[np.uint8]:
        """So many bytes of memory, of the kind that tiles travel to the device from fastest."""
        return np.empty(size, np.uint8)

    @abstractmethod
    def encode(self, tiles: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """(B, input_px, input_px, 3) RGB to (B, width)."""
