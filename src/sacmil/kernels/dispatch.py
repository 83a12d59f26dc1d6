"""A SAC block by the fastest way there is where it runs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sacmil.kernels import chunked_cpu, sac_block


def dispatch_block(block: Any, x: Tensor) -> Tensor | None:
    """What a SACBlock makes of x: by kernels on a GPU, in pieces on a CPU; None where neither."""
    if sac_block.supports(block, x):
        return sac_block.correlate(block, x)
    return chunked_cpu.correlate(block, x) if chunked_cpu.supports(block, x) else None
