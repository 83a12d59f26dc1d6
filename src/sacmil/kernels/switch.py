"""Whether the fast paths are taken: wherever they can be, unless that is switched off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from warnings import warn

import torch
from torch import Tensor

VARIABLE = "SACMIL_KERNELS"
"""Set to off, the environment variable keeps everything on the plain path."""

INTERPRET = "TRITON_INTERPRET"
"""Triton's own: set to 1 before it is imported, kernels run on a CPU, slowly; for tests."""

KINDS = (torch.bfloat16, torch.float16, torch.float32)
"""Of numbers; sums inside a kernel are float32, less than float64 asks for."""

_asked: bool | None = None
"""By one of the two below; else the environment is looked at."""


def fast_path() -> AbstractContextManager[None]:
    """With fast paths, wherever there is one."""
    return _asking(asked=True)


def plain_path() -> AbstractContextManager[None]:
    """Without fast paths: what runs is the definition.

    >>> with plain_path():
    ...     fast(torch.zeros(1))
    False
    """
    return _asking(asked=False)


@contextmanager
def _asking(*, asked: bool) -> Iterator[None]:
    global _asked  # one switch for the process, as torch's own are
    before, _asked = _asked, asked
    try:
        yield
    finally:
        _asked = before


def wanted() -> bool:
    """Whether fast paths are not switched off."""
    return os.environ.get(VARIABLE) != "off" if _asked is None else _asked


def fast(x: Tensor) -> bool:
    """Whether x is where a kernel runs, and the fast path is not switched off."""
    if not wanted() or torch.compiler.is_compiling():  # a compiler makes its own of the plain path
        return False
    if x.dtype not in KINDS or not _present():
        return False
    return _runs(x.device.index) if x.is_cuda else os.environ.get(INTERPRET) == "1"


def where(x: Tensor) -> AbstractContextManager[Any]:
    """The device kernels are launched on: that of x, which need not be the current one."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


@cache
def _present() -> bool:
    return find_spec("triton") is not None


@cache
def _runs(index: int) -> bool:
    """Whether a kernel can be compiled for this GPU: Triton needs a recent one and a C compiler."""
    try:
        with torch.cuda.device(index):
            x = torch.zeros(1, 16, device="cuda")
            found = torch.empty(1, dtype=torch.int64, device="cuda")
            kernels().row_statistics[1,](
                x, None, found, 1, 1e-5, D=16, CARRIED=False, ROWS=1, COLUMNS=16
            )
    except Exception as error:  # of Triton, of the compiler it calls, of the operating system
        warn(f"SAC-MIL takes its plain path: Triton cannot run here ({error})", stacklevel=2)
        return False
    return True


def kernels(module: str = "_triton") -> Any:
    """A module of kernels, loaded when the first one is called: Triton may not be there."""
    return import_module(f"sacmil.kernels.{module}")
