"""Chooses the fastest implementation of a SAC block."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sacmil.kernels import chunked_cpu, sac_block


def dispatch_block(block: Any, x: Tensor) -> Tensor | None:
    """Apply a SACBlock with kernels on a GPU or in chunks on a CPU; None if neither supports it."""
    if sac_block.supports(block, x):
        return sac_block.correlate(block, x)
    return chunked_cpu.correlate(block, x) if chunked_cpu.supports(block, x) else None
