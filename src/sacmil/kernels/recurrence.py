"""A linear recurrence in place, in one pass with many steps in parallel."""

from __future__ import annotations

from torch import Tensor

from sacmil.kernels.config import use_device_of
from sacmil.kernels.launch import launch
from sacmil.kernels.sac_block import count_programs

ROWS, COLUMNS = 32, 32
"""Steps and states that a program processes at once."""


def advance(a: Tensor, s: Tensor) -> None:
    """Compute s[t] += a[t] * s[t - 1] for t = 1, 2, …; both (steps, …), float32, contiguous."""
    _recur(a, s, back=False)


def retreat(a: Tensor, g: Tensor) -> None:
    """Compute g[t] += a[t + 1] * g[t + 1] for t = last - 1, …"""
    _recur(a, g, back=True)


def _recur(a: Tensor, s: Tensor, *, back: bool) -> None:
    width = s[0].numel()
    sizes = {"WIDTH": width, "BACK": back, "ROWS": ROWS, "COLUMNS": COLUMNS}
    with use_device_of(s):
        launch("_triton_scan.recur", (count_programs(width, COLUMNS),), (a, s), (len(s),), **sizes)
