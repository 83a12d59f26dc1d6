"""Whether the fast paths are taken: by themselves where they can be, unless switched off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

VARIABLE = "SACMIL_KERNELS"
"""Set to off, the environment variable keeps the plain path everywhere."""

INTERPRET = "TRITON_INTERPRET"
"""Triton's own: set to 1 before it is imported, kernels run on a CPU, slowly; for tests."""

KINDS = (torch.bfloat16, torch.float16, torch.float32)
"""Of numbers; sums inside a kernel are float32, less than float64 asks for."""

_plain = False


@contextmanager
def plain_path() -> Iterator[None]:
    """Without fast paths: what runs is the definition.

    >>> with plain_path():
    ...     fast(torch.zeros(1))
    False
    """
    global _plain  # one switch for the process, as torch's own are
    before, _plain = _plain, True
    try:
        yield
    finally:
        _plain = before


def fast(x: Tensor) -> bool:
    """Whether x is where a kernel runs, and one may."""
    if _plain or torch.compiler.is_compiling():  # a compiler makes its own of the plain path
        return False
    there = (x.is_cuda or os.environ.get(INTERPRET) == "1") and x.dtype in KINDS and _present()
    return there and os.environ.get(VARIABLE) != "off"


def where(x: Tensor) -> AbstractContextManager[Any]:
    """The device kernels are launched on: that of x, which need not be the current one."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


@cache
def _present() -> bool:
    return find_spec("triton") is not None


def kernels() -> Any:
    """The module of kernels, loaded when the first one is called: Triton may not be there."""
    return import_module("sacmil.kernels._triton")
