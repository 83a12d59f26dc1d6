"""A SAC block by the fastest way there is where it runs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from sacmil.kernels import pieces, sac_block


def quickly(block: Any, x: Tensor) -> Tensor | None:
    """What a SACBlock makes of x: by kernels on a GPU, in pieces on a CPU; None where neither."""
    if sac_block.serves(block, x):
        return sac_block.correlate(block, x)
    return pieces.correlate(block, x) if pieces.serves(block, x) else None
