"""Read files of torch.save, without running any code in them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.errors import FormatError, MissingExtraError
from sacmil.limits import check_declared_size, check_zip_size

SUFFIXES = (".pt", ".pth")
_FEATURE_KEYS = ("features", "feats")


def load(path: Path) -> Any:
    """Return the saved tensors, or containers of them; anything else is rejected."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingExtraError("torch", f"reading {path.name}") from error

    check_zip_size(path)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    # torch can raise almost any error for a damaged file: zip, pickle, storage, memory.
    except Exception as error:
        raise FormatError(f"{path}: {_describe_failure(path, error)}") from error


def _describe_failure(path: Path, error: Exception) -> str:
    expected = "expected a file of torch.save that holds tensors only"
    if isinstance(error, FileNotFoundError | PermissionError | IsADirectoryError):
        return f"cannot be read ({error.strerror or error}); check the path"
    if not _begins_as_checkpoint(path):
        return f"this is not a PyTorch checkpoint; {expected}, check the path"
    detail = " ".join(str(error).split()).split(". ")[0][:200]
    if isinstance(error, pickle.UnpicklingError) and "Weights only" in detail:
        return f"holds other things than tensors, or is damaged ({detail}); {expected}"
    return f"this PyTorch checkpoint is incomplete or damaged; {expected}, write or copy it again"


def _begins_as_checkpoint(path: Path) -> bool:
    """Whether a file begins like one of the two formats of torch.save."""
    with path.open("rb") as file:
        return file.read(1) in (b"P", b"\x80")  # a zip archive, a pickle


def load_features(path: Path) -> npt.NDArray[Any]:
    """Return the array in the file: a bare tensor, or one called features or feats."""
    found = load(path)  # its error explains how to install torch
    import torch

    if isinstance(found, dict):
        found = next((found[name] for name in _FEATURE_KEYS if name in found), found)
    if not isinstance(found, torch.Tensor):
        names = f" of {', '.join(map(str, list(found)[:4]))}" if isinstance(found, dict) else ""
        raise FormatError(
            f"{path}: holds a {type(found).__name__}{names}; expected a tensor of features (N, D)"
        )
    return _to_numpy(path, found)


def _to_numpy(path: Path, tensor: Any) -> npt.NDArray[Any]:
    import torch

    if tensor.layout is torch.strided:  # an expanded tensor is larger than its storage
        declared = tensor.numel() * tensor.element_size()
        check_declared_size(path, "the tensor", declared, tensor.untyped_storage().nbytes())
    if str(tensor.dtype) == "torch.bfloat16":  # which numpy does not have
        tensor = tensor.float()
    try:
        return np.asarray(tensor.detach().numpy())
    except (TypeError, RuntimeError, NotImplementedError) as error:  # sparse, quantised, meta
        raise FormatError(f"{path}: holds {tensor.dtype} in an unusual form ({error})") from error
