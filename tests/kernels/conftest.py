"""Kernels run in Triton's interpreter here, which reads its switch while Triton is imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from sacmil.kernels.config import INTERPRET_VARIABLE, use_fast_path


@pytest.fixture(scope="module")
def interpreter() -> Iterator[None]:
    """The fast path, by Triton anew, interpreted; afterwards what was there before."""
    pytest.importorskip("triton", reason="Triton is made for Linux only")
    before = _taken_out()
    with pytest.MonkeyPatch.context() as patch, use_fast_path():
        patch.setenv(INTERPRET_VARIABLE, "1")
        yield
    _taken_out()
    sys.modules.update(before)


def _taken_out() -> dict[str, ModuleType]:
    """Out of what is imported; not Triton's compiled part, which cannot be imported twice."""
    names = [
        name
        for name in sys.modules
        if name.startswith("sacmil.kernels._triton")
        or (name.partition(".")[0] == "triton" and not name.startswith("triton._C"))
    ]
    return {name: sys.modules.pop(name) for name in names}
