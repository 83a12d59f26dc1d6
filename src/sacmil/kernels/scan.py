"""Mamba's selective scan with Triton: all tiles of steps in parallel, then a scan over the tiles.

Decays and states never leave a tile (``_triton_scan.py``). Only the state at the end of each tile
is saved for the gradients.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sacmil.kernels.config import count_programs, launch, next_power_of_two, use_device_of

STEPS, CHANNELS = 16, 16
"""Per tile."""
WARPS = 2
"""Per tile."""
RECUR_ROWS, RECUR_COLUMNS = 32, 32
"""Steps and states that a program of the recurrence processes at once."""


def scan_forward(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> tuple[Tensor, Tensor]:
    """Return y (N, channels), and the state at the end of each tile.

    Args:
        u: (N, channels), float32 and contiguous, like all others.
        dt: (N, channels).
        A: (state, channels).
        B: (N, state).
        C: (N, state).
    """
    y = torch.empty_like(u)
    ends, decays = (A.new_empty(count_programs(len(u), STEPS), *A.shape) for _ in range(2))
    _launch("end_states", (u, dt, A, B, ends, decays), u, A)
    recur(decays, ends)
    _launch("outputs", (u, dt, A, B, C, ends, y), u, A)
    return y, ends


def scan_backward(
    grad_y: Tensor, ends: Tensor, u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor
) -> tuple[Tensor, ...]:
    """Return the gradients of u, dt, A, B and C."""
    tiles, blocks = len(ends), count_programs(u.shape[1], CHANNELS)
    grad_ends, decays = torch.empty_like(ends), A.new_empty(tiles + 1, *A.shape)
    # A gradient is multiplied by the decay of its own tile: that of tile t is at index t + 1.
    _launch("end_gradients", (grad_y, dt, A, C, grad_ends, decays[1:]), u, A)
    recur(decays, grad_ends, back=True)
    grad_u, grad_dt, grad_A = torch.empty_like(u), torch.empty_like(u), torch.empty_like(ends)
    grad_B, grad_C = (u.new_empty(blocks, *B.shape) for _ in range(2))
    tensors = (u, dt, A, B, C, ends, grad_ends, grad_y, grad_u, grad_dt, grad_A, grad_B, grad_C)
    _launch("gradients", tensors, u, A, tiles)
    return grad_u, grad_dt, grad_A.sum(0), grad_B.sum(0), grad_C.sum(0)


def _launch(name: str, tensors: tuple[Tensor, ...], u: Tensor, A: Tensor, *numbers: int) -> None:
    (n, channels), state = u.shape, len(A)
    sizes: dict[str, Any] = {"D": channels, "S": state, "STEPS": STEPS, "CHANNELS": CHANNELS}
    sizes |= {"STATES": next_power_of_two(state), "num_warps": WARPS}
    grid = (count_programs(n, STEPS), count_programs(channels, CHANNELS))
    with use_device_of(u):
        launch(f"_triton_scan.{name}", grid, tensors, (n, *numbers), **sizes)


def recur(a: Tensor, s: Tensor, *, back: bool = False) -> None:
    """Compute s[t] += a[t] * s[t - 1] for t = 1, 2, … in place, with many steps in parallel.

    Back: s[t] += a[t + 1] * s[t + 1] for t = last - 1, … Both are (steps, …), float32, contiguous.
    """
    width = s[0].numel()
    sizes = {"WIDTH": width, "BACK": back, "ROWS": RECUR_ROWS, "COLUMNS": RECUR_COLUMNS}
    grid = (count_programs(width, RECUR_COLUMNS),)
    with use_device_of(s):
        launch("_triton_scan.recur", grid, (a, s), (len(s),), **sizes)
