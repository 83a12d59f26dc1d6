"""Decides whether fast paths are used (wherever possible, unless switched off); launches kernels.

At each launch Triton inspects every argument to select a compiled kernel. On the CPU this takes
longer than the kernel runs for a short bag. Lengths never select a kernel here (see
``_triton.py``), so constants and dtypes identify it, and compiled kernels are cached by them.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from warnings import warn

import torch
from torch import Tensor

KERNELS_VARIABLE = "SACMIL_KERNELS"
"""Environment variable; "off" disables the fast paths."""

INTERPRET_VARIABLE = "TRITON_INTERPRET"
"""Triton's own: if set to 1 before it is imported, kernels run slowly on a CPU; for tests."""

SUPPORTED_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
"""Kernels sum in float32, which is too imprecise for float64 input."""

ALIGNMENT_BYTES = 16
"""Alignment of tensors in bytes; Triton compiles another kernel for unaligned ones."""

_compiled_kernels: dict[Hashable, tuple[Any, tuple[Any, ...]]] = {}
"""Kernels, and their constants in the order of the signature."""

_enabled: bool | None = None
"""Set by the two context managers below; None uses the environment variable."""


def use_fast_path() -> AbstractContextManager[None]:
    """Enable the fast paths in a ``with`` block."""
    return _set_enabled(enabled=True)


def use_plain_path() -> AbstractContextManager[None]:
    """Disable the fast paths in a ``with`` block: the models' own definitions run.

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
    """Whether fast paths are enabled."""
    return os.environ.get(KERNELS_VARIABLE) != "off" if _enabled is None else _enabled


def can_run_kernels(x: Tensor) -> bool:
    """Whether kernels are enabled and support the dtype and device of x."""
    # torch.compile makes its own kernels from the plain path.
    if not is_enabled() or torch.compiler.is_compiling():
        return False
    if x.dtype not in SUPPORTED_DTYPES or not _has_triton():
        return False
    if x.is_cuda:
        return _can_compile_kernels(x.device.index)
    return os.environ.get(INTERPRET_VARIABLE) == "1"


def use_device_of(x: Tensor) -> AbstractContextManager[Any]:
    """Make the device of x the current one, on which kernels are launched."""
    return torch.cuda.device(x.device) if x.is_cuda else nullcontext()


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


@cache
def _can_compile_kernels(index: int) -> bool:
    """Whether Triton can compile for this GPU; it needs a recent GPU and a C compiler."""
    try:
        with torch.cuda.device(index):
            x = torch.zeros(1, 16, device="cuda")
            statistics = torch.empty(1, dtype=torch.int64, device="cuda")
            load_kernels().row_statistics[1,](
                x, None, statistics, 1, 1e-5, D=16, CARRIED=False, ROWS=1, COLUMNS=16
            )
    except Exception as error:  # from Triton, the C compiler or the operating system
        warn(f"SAC-MIL takes its plain path: Triton cannot run here ({error})", stacklevel=2)
        return False
    return True


def load_kernels(module: str = "_triton") -> Any:
    """Import a module of kernels, only when needed: Triton may not be installed."""
    return import_module(f"sacmil.kernels.{module}")


def launch(
    name: str,
    programs: tuple[int, ...],
    tensors: Sequence[Tensor | None],
    scalars: Sequence[float],
    **constants: Any,
) -> None:
    """Launch a kernel on the current device.

    Args:
        name: of a kernel in ``_triton.py``, or with its module, as ``_triton_scan.recur``.
        programs: number of programs along one axis or two.
        tensors: the first arguments, all of them on that device.
        scalars: the arguments that follow; none is specialised.
        constants: the constexpr arguments.
    """
    grid = (*programs, 1, 1)[:3]
    given = [x for x in tensors if x is not None]
    dtypes = (None if x is None else x.dtype for x in tensors)
    key = (name, given[0].device, *dtypes, *constants.values())
    aligned = all(x.data_ptr() % ALIGNMENT_BYTES == 0 for x in given)
    if aligned and (cached := _compiled_kernels.get(key)):
        kernel, in_order = cached
        kernel[grid](*tensors, *scalars, *in_order)
        return
    module, _, function = name.rpartition(".")
    kernel = getattr(load_kernels(module or "_triton"), function)
    compiled = kernel[grid](*tensors, *scalars, **constants)
    if aligned and compiled is not None:  # Triton's interpreter returns None
        in_order = tuple(constants[each] for each in kernel.arg_names if each in constants)
        _compiled_kernels[key] = compiled, in_order


def count_programs(count: int, rows: int) -> int:
    """Return how many programs of ``rows`` rows cover ``count`` rows."""
    return -(-count // rows)


def next_power_of_two(count: int) -> int:
    """Return the smallest power of two that is not below ``count``."""
    return 1 << (count - 1).bit_length()
