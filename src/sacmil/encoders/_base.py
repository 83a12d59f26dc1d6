"""The interface of encoders: a card that describes one, and a method from tiles to vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True)
class EncoderCard:
    """The facts of an encoder that are known before its weights are loaded."""

    name: str
    width: int
    """Length of a feature vector."""
    input_px: int
    """Side of the square image the network takes; tiles of another size are resized to it."""
    resample: str
    """How tiles are resized, as in the official transform: bilinear or bicubic."""
    mean: tuple[float, float, float]
    """Subtracted from RGB values between 0 and 1."""
    std: tuple[float, float, float]
    """Divides them after that."""
    pooling: str
    """How the network's last feature map or tokens become a vector, in words."""
    mpp: float
    """Microns per pixel of the tiles the encoder was trained on."""
    license: str
    weights: str
    """Where the weights come from, in words: a package, a hub address, a file."""


class Encoder(ABC):
    """An encoder with its weights, on one device. Safe to call from several threads."""

    card: EncoderCard
    hash: str
    """First 16 hex digits of the SHA-256 of the weights."""
    engine: str
    """The library that computes: "onnxruntime" or "torch"."""
    device: str
    """"cpu", "cuda:0", …"""
    precision: str
    """Number format of the computation: float32, float16 or bfloat16."""

    file_sha256: str | None = None
    """SHA-256 of an ONNX file without a card; None for other encoders."""
    can_resize: bool = False
    """Whether it takes square tiles of any size and resizes them on its device."""

    def concurrent_mode(self) -> AbstractContextManager[object]:
        """Return a context in which several threads call ``encode`` at once, one core each."""
        return nullcontext()

    def allocate_buffer(self, size: int) -> npt.NDArray[np.uint8]:
        """Allocate ``size`` bytes, in the kind of memory that is copied to the device fastest."""
        return np.empty(size, np.uint8)

    @abstractmethod
    def encode(self, tiles: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
        """Encode RGB tiles (B, input_px, input_px, 3) as features (B, width)."""
