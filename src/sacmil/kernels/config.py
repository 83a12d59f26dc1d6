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

KERNELS_VARIABLE = "SACMIL_KERNELS"
"""Set to off, the environment variable keeps everything on the plain path."""

INTERPRET_VARIABLE = "TRITON_INTERPRET"
"""Triton's own: set to 1 before it is imported, kernels run on a CPU, slowly; for tests."""

SUPPORTED_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""Of numbers; sums inside a kernel are float32, less than float64 asks for."""

_enabled: bool | None = None
"""By one of the two below; else the environment is looked at."""


def use_fast_path() -> AbstractContextManager[None]:
    """With fast paths, wherever there is one."""
    return _set_enabled(enabled=True)


def use_plain_path() -> AbstractContextManager[None]:
    """Without fast paths: what runs is the definition.

    >>> with use_plain_path():
    ...     can_run_kernels(torch.zeros(1))
    False
    """
    return _set_enabled(enabled=False)


@contextmanager
def _set_enabled(*, enabled: bool) -> Iterator[None]:
    global _enabled  # one switch for the process, as torch's own are
    before, _enabled = _enabled, enabled
    try:
        yield
    finally:
        _enabled = before


def is_enabled() -> bool:
    """Whether fast paths are not switched off."""
    return os.environ.get(KERNELS_VARIABLE) != "off" if _enabled is None else _enabled


def can_run_kernels(x: Tensor) -> bool:
    """Whether x is where a kernel runs, and the fast path is not switched off."""
    if (
        not is_enabled() or torch.compiler.is_compiling()
    ):  # a compiler makes its own of the plain path
        return False
    if x.dtype not in SUPPORTED_DTYPES or not _has_triton():
        return False
    return (
        _can_compile_kernels(x.device.index)
        if x.is_cuda
        else os.environ.get(INTERPRET_VARIABLE) == "1"
    )


def use_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """The device kernels are launched on: that of x, which need not be the current one."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


@cache
def _can_compile_kernels(index: int) -> bool:
    """Whether a kernel can be compiled for this GPU: Triton needs a recent one and a C compiler."""
    try:
        with torch.cuda.device(index):
            x = torch.zeros(1, 16, device="cuda")
            found = torch.empty(1, dtype=torch.int64, device="cuda")
            load_kernels().row_statistics[1,](
                x, None, found, 1, 1e-5, D=16, CARRIED=False, ROWS=1, COLUMNS=16
            )
    except Exception as error:  # of Triton, of the compiler it calls, of the operating system
        warn(f"SAC-MIL takes its plain path: Triton cannot run here ({error})", stacklevel=2)
        return False
    return True


def load_kernels(module: str = "_triton") -> Any:
    """A module of kernels, loaded when the first one is called: Triton may not be there."""
    return import_module(f"sacmil.kernels.{module}")
