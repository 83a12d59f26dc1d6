"""Attaches the fast paths of sacmil.kernels to SAC-MIL, whose own file is only the paper.

A fast path gives the same numbers. It returns None where it does not apply, and the plain method
runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import Tensor

from sacmil.kernels import sac_mil as kernels
from sacmil.models.sac_mil import PROPE, SACMIL, SACBlock
from sacmil.models.sac_mil_local import LocalSACMIL
from sacmil.models.sac_mil_near_far import NearBlock
from sacmil.nn.pooling import MeanPool


def attach_fast_path(owner: type, method: str, fast: Callable[..., Any]) -> None:
    """Let a method try a faster function first.

    Args:
        owner: the class.
        method: its name.
        fast: takes what the method takes; None says that it does not apply.
    """
    plain = getattr(owner, method)

    @wraps(plain)
    def run(self: Any, *arguments: Any) -> Any:
        found = fast(self, *arguments)
        return plain(self, *arguments) if found is None else found

    setattr(owner, method, run)


def _embed_instances(model: Any, features: Tensor, coords: Tensor, order: Tensor) -> Tensor | None:
    if not isinstance(model.position, PROPE) or not kernels.supports_prope(model.project, features):
        return None
    scale = model.position.scale
    return kernels.project_and_rotate(model.project, features, order, coords, scale)


def _see_region(block: Any, y: Tensor, coords: Tensor) -> Tensor | None:
    return kernels.see_region(block, y)


def _correlate_and_pool(model: Any, h: Tensor, order: Tensor) -> tuple[Tensor, Tensor] | None:
    if not isinstance(model.pool, MeanPool):
        return None
    return kernels.correlate_and_pool(model.blocks, h, order)


attach_fast_path(SACBlock, "forward", kernels.dispatch_block)
attach_fast_path(NearBlock, "see_context", _see_region)
attach_fast_path(SACMIL, "correlate_and_pool", _correlate_and_pool)
for _model in (SACMIL, LocalSACMIL):
    attach_fast_path(_model, "embed_instances", _embed_instances)
