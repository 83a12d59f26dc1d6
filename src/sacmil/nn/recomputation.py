"""Gradient checkpointing: intermediate values are recomputed in the backward pass, not stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch.utils.checkpoint import checkpoint

T = TypeVar("T")


def recompute_in_backward(function: Callable[..., T], *arguments: object) -> T:
    """Return function(*arguments); the recomputation uses the same random numbers.

    Without gradients, and in an export, the function is simply called.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return function(*arguments)
    value: T = checkpoint(function, *arguments, use_reentrant=False)
    return value
