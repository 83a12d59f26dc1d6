"""The interface of encoders: the card that describes one, how to load it, tiles to vectors."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sacmil.errors import EncoderError, suggest_names

_ENGINES = ("onnxruntime", "torch")
Verification = Literal["weights", "architecture", "names", "no"]


@dataclass(frozen=True, kw_only=True)
class EncoderCard:
    """The facts of an encoder that are known before its weights are loaded."""

    name: str
    width: int
    """Length of a feature vector."""
    input_px: int = 224
    """Side of the square image the network takes; tiles of another size are resized to it."""
    resample: str
    """How tiles are resized, as in the official transform: bilinear or bicubic."""
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    """Subtracted from RGB values between 0 and 1; the default is that of ImageNet."""
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)
    """Divides them after that."""
    pooling: str
    """How the network's last feature map or tokens become a vector, in words."""
    mpp: float = 0.5
    """Microns per pixel of the tiles the encoder was trained on."""
    license: str
    gated: bool = False
    """Whether the weights need an account and the acceptance of terms."""
    verified: Verification = "no"
    """What is known to be as published: the features of the published weights; the architecture,
    by its options and sizes or by features with random weights; names and shapes of parameters;
    or nothing."""
    weights: str
    """Where the weights come from, in words: a package, a hub address, a file."""


@dataclass(frozen=True, kw_only=True)
class EncoderRequest:
    """How to load an encoder."""

    weights: str | Path | None = None
    device: str = "cpu"
    engine: str | None = None
    """One of "onnxruntime" and "torch"; None means the fastest that is installed."""
    precision: str | None = None
    """float32, float16 or bfloat16; None means float16 on a GPU and float32 elsewhere."""
    random_weights: bool = False
    download: bool = False

    def __post_init__(self) -> None:
        if self.engine not in (None, *_ENGINES):
            raise EncoderError(
                f"there is no engine {self.engine!r}; {suggest_names(str(self.engine), _ENGINES)}"
            )


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


def check_tiles(
    tiles: npt.NDArray[Any], card: EncoderCard, *, any_side: bool = False
) -> npt.NDArray[np.uint8]:
    """Return the tiles in one writable block of memory, which both engines read fastest."""
    side = tiles.shape[1] if any_side and tiles.ndim == 4 and tiles.shape[1] else card.input_px
    if tiles.dtype != np.uint8 or tiles.shape[1:] != (side, side, 3):
        raise EncoderError(
            f"{card.name} got tiles {tiles.shape} of {tiles.dtype}; "
            f"expected (B, {side}, {side}, 3) of uint8, RGB: resize them first"
        )
    return np.require(tiles, requirements=["C", "W"])
