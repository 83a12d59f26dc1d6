"""Time for memory: a step's inner values are made anew in the backward pass, not remembered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch.utils.checkpoint import checkpoint

T = TypeVar("T")


def recompute_in_backward(function: Callable[..., T], *arguments: object) -> T:
    """function(*arguments); what is drawn at random is drawn the same again.

    Without gradients, or in an export, there is nothing to remember.
    """
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return function(*arguments)
    value: T = checkpoint(function, *arguments, use_reentrant=False)
    return value
