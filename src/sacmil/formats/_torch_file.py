"""Files of torch.save, read without running anything they contain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.errors import FormatError, MissingExtraError

SUFFIXES = (".pt", ".pth")
_FEATURES = ("features", "feats")


def load(path: Path) -> Any:
    """What was saved: tensors, and containers of them; anything else is refused."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", f"reading {path.name}") from error

    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    # A damaged file makes torch raise nearly anything: zip, pickle, storage and memory errors.
    except Exception as error:
        detail = " ".join(str(error).split()).split(". ")[0] or type(error).__name__
        raise FormatError(
            f"{path}: cannot be read as tensors ({detail[:200]}); expected a file of torch.save "
            "that holds tensors only, write or copy it again"
        ) from error


def load_features(path: Path) -> npt.NDArray[Any]:
    """The one array in the file: a bare tensor, or one called features or feats."""
    found = load(path)  # says how to get torch where it is missing
    import torch

    if isinstance(found, dict):
        found = next((found[name] for name in _FEATURES if name in found), found)
    if not isinstance(found, torch.Tensor):
        names = f" of {', '.join(map(str, list(found)[:4]))}" if isinstance(found, dict) else ""
        raise FormatError(
            f"{path}: holds a {type(found).__name__}{names}; expected a tensor of features (N, D)"
        )
    return _numpy(path, found)


def _numpy(path: Path, tensor: Any) -> npt.NDArray[Any]:
    if str(tensor.dtype) == "torch.bfloat16":  # which numpy does not have
        tensor = tensor.float()
    try:
        return np.asarray(tensor.detach().numpy())
    except (TypeError, RuntimeError, NotImplementedError) as error:  # sparse, quantised, meta
        raise FormatError(f"{path}: holds {tensor.dtype} in an unusual form ({error})") from error
