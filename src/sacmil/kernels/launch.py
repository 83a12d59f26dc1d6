"""Launching a kernel: what was compiled is kept, and started without being looked for.

At each launch Triton looks at every argument to find out which of its compiled kernels is meant,
which takes a processor longer than the kernel of a short bag runs. No length chooses one here (see
``_triton.py``), so that constants and kinds of numbers tell.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from sacmil.kernels.config import load_kernels

ALIGNMENT_BYTES = 16
"""Bytes at whose multiples tensors must begin: Triton compiles another kernel for others."""


class _CompiledKernel(NamedTuple):
    kernel: Any
    constants: tuple[Any, ...]
    """In the kernel's own order."""


_compiled_kernels: dict[Hashable, _CompiledKernel] = {}


def launch(
    name: str,
    programs: tuple[int, ...],
    tensors: Sequence[Tensor | None],
    scalars: Sequence[float],
    **constants: Any,
) -> None:
    """Start a kernel on the current device.

    Args:
        name: in ``_triton.py``, or with its module, as ``_triton_scan.recur``.
        programs: how many, along one axis or two.
        tensors: its first arguments, all of them on that device.
        scalars: those that follow, none of which is specialised.
        constants: the others.
    """
    grid = (*programs, 1, 1)[:3]
    given = [x for x in tensors if x is not None]
    kinds = (None if x is None else x.dtype for x in tensors)
    key = (name, given[0].device, *kinds, *constants.values())
    aligned = all(x.data_ptr() % ALIGNMENT_BYTES == 0 for x in given)
    if aligned and (known := _compiled_kernels.get(key)):
        known.kernel[grid](*tensors, *scalars, *known.constants)
        return
    module, _, own = name.rpartition(".")
    kernel = getattr(load_kernels(module or "_triton"), own)
    made = kernel[grid](*tensors, *scalars, **constants)
    if aligned and made is not None:  # Triton's interpreter makes nothing
        in_order = (constants[each] for each in kernel.arg_names if each in constants)
        _compiled_kernels[key] = _CompiledKernel(made, tuple(in_order))
