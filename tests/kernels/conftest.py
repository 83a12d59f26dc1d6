"""Kernels run in Triton's interpreter here, which reads its switch while Triton is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from sacmil.kernels.config import INTERPRET_VARIABLE, use_fast_path


@pytest.fixture(scope="module")
def interpreter() -> Iterator[None]:
    """The fast path, by Triton anew, interpreted; afterwards what was there before."""
    pytest.importorskip("triton", reason="Triton is made for Linux only")
    before = _taken_out()
    with pytest.MonkeyPatch.context() as patch, use_fast_path():
        patch.setenv(INTERPRET_VARIABLE, "1")
        triton_interpreter = import_module("triton.runtime.interpreter")
        patch_once = _patch_once(triton_interpreter._patch_lang)
        patch.setattr(triton_interpreter, "_patch_lang", patch_once)
        yield
    _taken_out()
    sys.modules.update(before)


def _patch_once(patch_language: Callable[..., Any]) -> Callable[..., Any]:
    """Patch Triton's language once for each module of kernels and leave it so.

    Triton itself does it for every launch and every call of a helper, a quarter of the time.
    """
    patched: set[str] = set()

    def patch(function: Callable[..., Any]) -> SimpleNamespace:
        if function.__module__ not in patched:
            patch_language(function)
            patched.add(function.__module__)
        return SimpleNamespace(restore=lambda: None)

    return patch


def _taken_out() -> dict[str, ModuleType]:
    """Out of what is imported; not Triton's compiled part, which cannot be imported twice."""
    names = [
        name
        for name in sys.modules
        if name.startswith("sacmil.kernels._triton")
        or (name.partition(".")[0] == "triton" and not name.startswith("triton._C"))
    ]
    return {name: sys.modules.pop(name) for name in names}
