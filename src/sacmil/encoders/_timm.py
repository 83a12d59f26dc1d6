"""Imports timm even if torchvision's compiled operators cannot be loaded.

timm imports torchvision. The wheel of torchvision on the package index is linked against CUDA.
With a CPU-only torch its operators do not load, and its import fails while describing two of them
("operator torchvision::nms does not exist"). Nothing here uses either, so declaring their
signatures is enough.
"""

from __future__ import annotations

import importlib
import threading
from typing import Any

from sacmil.errors import MissingExtraError

_SIGNATURES = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)
_declared_libraries: list[Any] = []
"""Kept until the process ends: torch drops the declarations of a collected library."""
_import_lock = threading.Lock()


def import_timm() -> Any:
    """Return the package timm."""
    with _import_lock:
        try:
            _import_torchvision()
            return importlib.import_module("timm")
        except ImportError as error:
            raise MissingExtraError("encoders", "building this encoder") from error


def _import_torchvision() -> None:
    try:
        importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        _declare_operators()
        importlib.import_module("torchvision")


def _declare_operators() -> None:
    import torch

    if not _declared_libraries:
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for signature in _SIGNATURES:
            library.define(signature)  # type: ignore[no-untyped-call]
        _declared_libraries.append(library)
