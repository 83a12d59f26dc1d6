"""Rotation of channel pairs by an angle, shared by all rotary positions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sacmil.errors import OptionError


def rotate(h: Tensor, angles: Tensor, *, half: bool = False) -> Tensor:
    """Rotate each pair (a, b) of h (N, dim) to (a cos - b sin, a sin + b cos).

    Args:
        h: features.
        angles: (N, dim / 2), float64, within half a turn of zero.
        half: pair channel t with t + dim / 2 instead of 2t with 2t + 1.
    """
    angles = angles.to(torch.promote_types(h.dtype, torch.float32))
    cos, sin = angles.cos().to(h.dtype), angles.sin().to(h.dtype)
    shape, axis = ((-1, 2, angles.shape[1]), 1) if half else ((-1, angles.shape[1], 2), 2)
    a, b = h.reshape(shape).unbind(axis)
    return torch.stack((a * cos - b * sin, a * sin + b * cos), dim=axis).flatten(1)


def wrap_angles(angles: Tensor) -> Tensor:
    """Wrap float64 angles to [-pi, pi], so that a later cast to float32 stays precise."""
    turns: Tensor = angles * (1 / (2 * math.pi))
    return turns.sub_(turns.round()).mul_(2 * math.pi)


def polar_angle(positions: Tensor) -> Tensor:
    """Return the angle of positions (N, 2), (N, 1); float32 in exports, for onnxruntime's atan."""
    if torch.compiler.is_compiling():
        positions = positions.float()
    return torch.atan2(positions[:, 1:], positions[:, :1])


def frequencies(count: int, base: float, device: torch.device) -> Tensor:
    """Return base^(-t / count), (count,), float64."""
    t = torch.arange(count, dtype=torch.float64, device=device)
    return torch.pow(base, -t / count)


def count_channel_pairs(dim: int, encoding: str, *, axes: int = 1) -> int:
    """Return the number of channel pairs per axis."""
    if dim % (2 * axes):
        raise OptionError(
            f"dim={dim}; {encoding} rotates pairs of channels, expected "
            + ("an even dim" if axes == 1 else f"a multiple of {2 * axes}")
        )
    return dim // (2 * axes)
