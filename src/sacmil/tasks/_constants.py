"""Numbers of a task on a device."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def make_constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return numbers in double precision on a device.

    They are cached, as a copy in each step would make the GPU wait; not while a graph is traced,
    whose tensors have no memory.
    """
    import torch

    make = _make if torch.compiler.is_compiling() else _cached
    return make(values, device)


def _make(values: tuple[float, ...], device: torch.device) -> Tensor:
    import torch

    with torch.inference_mode(mode=False):
        return torch.tensor(values, dtype=torch.float64, device=device)


_cached = lru_cache(maxsize=256)(_make)
