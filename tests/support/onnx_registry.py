"""torch's table of ONNX functions, made once: torch makes it for every export, a second each."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import pytest


@contextmanager
def reused_registry() -> Iterator[None]:
    """Give every export a copy of the first table; exports add translations to theirs."""
    try:
        from torch.onnx._internal.exporter._registration import ONNXRegistry as registry_class
    except ImportError:  # another torch, or no onnxscript: exports are slower, or not tested
        yield
        return
    make = cache(registry_class.from_torchlib)

    def copy_registry(*arguments: Any, **options: Any) -> Any:
        made = copy.copy(make(*arguments, **options))
        made.functions = {target: list(found) for target, found in made.functions.items()}
        return made

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(registry_class, "from_torchlib", staticmethod(copy_registry))
        yield
