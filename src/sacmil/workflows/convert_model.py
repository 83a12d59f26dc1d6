"""Converts official checkpoints of models to model folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacmil.errors import FormatError, MissingExtraError, ModelError, OptionError, UnknownModelError

if TYPE_CHECKING:
    from sacmil.models._reference import LoadedReference


def convert_model(
    checkpoint: str | Path,
    out: str | Path,
    *,
    model: str,
    options: Mapping[str, Any] | None = None,
    overwrite: bool = False,
) -> LoadedReference:
    """Write an official checkpoint as a model folder.

    Args:
        checkpoint: .safetensors, or a file of torch.save with tensors only.
        out: model folder to write.
        model: one of list_models().
        options: options that the shapes do not determine, such as an activation.
        overwrite: replace an existing model.

    Returns:
        The model, and which options were read from the file, given or assumed.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import torch
        >>> shapes = {
        ...     "attention.0.weight": (3, 6),
        ...     "attention.0.bias": (3,),
        ...     "attention.2.weight": (1, 3),
        ...     "attention.2.bias": (1,),
        ...     "classifier.0.weight": (1, 6),
        ...     "classifier.0.bias": (1,),
        ... }
        >>> with TemporaryDirectory() as folder:
        ...     official = {name: torch.zeros(shape) for name, shape in shapes.items()}
        ...     torch.save(official, f"{folder}/abmil.pt")
        ...     converted = convert_model(f"{folder}/abmil.pt", f"{folder}/model", model="abmil")
        >>> converted.from_checkpoint["in_dim"], converted.from_checkpoint["attention_dim"]
        (6, 3)
    """
    try:
        from sacmil.models import save_model
        from sacmil.models._reference import read_reference
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingExtraError("torch", "sacmil.convert_model") from error

    source, target = Path(checkpoint), Path(out)
    _check_paths(source, target, overwrite=overwrite)
    parameters = _load_checkpoint(source)
    try:
        loaded = read_reference(model, parameters, options or {})
    except (UnknownModelError, OptionError):
        raise
    except ModelError as error:
        raise ModelError(f"{source}: {error}") from error
    save_model(target, loaded.model, notes={"converted_from": source.name})
    return loaded


def _check_paths(source: Path, target: Path, *, overwrite: bool) -> None:
    if not source.is_file():
        raise OptionError(f"{source}: is not a file; expected one checkpoint")
    if target.exists() and not overwrite:
        raise OptionError(f"`out` {target} exists; choose another folder, or add `overwrite=True`")


def _load_checkpoint(source: Path) -> Any:
    return (
        _load_safetensors(source) if source.suffix == ".safetensors" else _load_torch_file(source)
    )


def _load_safetensors(source: Path) -> Any:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return load_file(source)
    except (SafetensorError, OSError, ValueError) as error:
        raise FormatError(
            f"{source}: cannot be read as safetensors ({error}); copy it again"
        ) from error


def _load_torch_file(source: Path) -> Any:
    from sacmil.formats._files import load_tensors

    return load_tensors(source)
