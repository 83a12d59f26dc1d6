"""Launching of Triton kernels, with a cache of the compiled ones.

At each launch Triton inspects every argument to select a compiled kernel. On the CPU this takes
longer than the kernel runs for a short bag. Lengths never select a kernel here (see
``_triton.py``), so constants and dtypes identify it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from sacmil.kernels.config import load_kernels

ALIGNMENT_BYTES = 16
"""Alignment of tensors in bytes; Triton compiles another kernel for unaligned ones."""


class _CompiledKernel(NamedTuple):
    kernel: Any
    constants: tuple[Any, ...]
    """In the order of the kernel's signature."""


_compiled_kernels: dict[Hashable, _CompiledKernel] = {}


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
        cached.kernel[grid](*tensors, *scalars, *cached.constants)
        return
    module, _, function = name.rpartition(".")
    kernel = getattr(load_kernels(module or "_triton"), function)
    compiled = kernel[grid](*tensors, *scalars, **constants)
    if aligned and compiled is not None:  # Triton's interpreter returns None
        in_order = (constants[each] for each in kernel.arg_names if each in constants)
        _compiled_kernels[key] = _CompiledKernel(compiled, tuple(in_order))
