"""A model on disk: a folder of model.safetensors and card.json; never a pickle."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from sacmil.atomic import atomic_directory
from sacmil.card import CARD_FILE, Card, read_card
from sacmil.errors import ModelError, ModelFolderError, OptionError, check_type
from sacmil.models._base import MILModel
from sacmil.models._registry import create_model
from sacmil.tasks import Task, from_card

WEIGHTS = "model.safetensors"


def save_model(
    path: str | Path,
    model: MILModel,
    *,
    classes: Sequence[str] | None = None,
    notes: Mapping[str, Any] | None = None,
    task: Task | None = None,
) -> None:
    """Write a model folder; it appears under its name only when it is complete.

    Args:
        path: the folder; an older model there is replaced, anything else is an error.
        model: what to write.
        classes: names of the classes, in the order of the outputs.
        notes: anything else worth knowing about the model, as JSON can hold it.
        task: what the model predicts, if not classes; None means the task that was set.
    """
    check_type("path", path, (str, os.PathLike), "the path of a folder, before the model")
    path = Path(path)
    _check_replaceable(path)
    files = serialize_model(model, classes, notes, task=task)
    with atomic_directory(path) as partial:
        for name, content in files.items():
            (partial / name).write_bytes(content)


def serialize_model(
    model: MILModel,
    classes: Sequence[str] | None = None,
    notes: Mapping[str, Any] | None = None,
    *,
    task: Task | None = None,
) -> dict[str, bytes]:
    """Return the files of a model folder by name; arguments as for save_model."""
    model = getattr(model, "_orig_mod", model)  # a compiled model's names begin with that
    check_type("model", model, MILModel, "a model, such as load_model('folder')")
    known = task or model.task
    predicted = None if known is None or known.has_classes else known
    if predicted is None:
        _check_classes(model, classes)
    weights = save(_separate_tied_weights(model.state_dict()))
    named = predicted.levels if predicted else classes or model.classes
    card = Card(
        model=model.name,
        options=model.options,
        weights_sha256=hashlib.sha256(weights).hexdigest(),
        classes=tuple(named) if named else None,
        task=asdict(predicted.card) if predicted else None,
        notes=notes or {},
    )
    try:
        text = card.to_json()
    except (TypeError, ValueError) as error:
        raise ModelError(
            f"options and notes of {model.name} cannot be written as JSON ({error}); expected "
            "numbers, text, lists and dictionaries of them"
        ) from error
    return {WEIGHTS: weights, CARD_FILE: text.encode()}


def _separate_tied_weights(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copy tied weights: safetensors cannot share memory, and constructors tie them again."""
    separate: dict[str, Tensor] = {}
    addresses: set[int] = set()
    for name, value in state.items():
        address = value.untyped_storage().data_ptr()
        separate[name] = value.clone() if address in addresses else value.contiguous()
        addresses.add(address)
    return separate


def _check_replaceable(path: Path) -> None:
    if not path.exists():
        return
    if not (path / CARD_FILE).is_file():
        raise ModelFolderError(
            f"{path}: exists and is not a model folder (it has no {CARD_FILE}); choose another path"
        )
    others = sorted({file.name for file in path.iterdir()} - {CARD_FILE, WEIGHTS})
    if others:
        raise ModelFolderError(
            f"{path}: holds more than a model ({', '.join(others)}), which saving here would "
            "remove; choose another path"
        )


def _check_classes(model: MILModel, classes: Sequence[str] | None) -> None:
    counts = {model.num_classes} if model.num_classes > 1 else {1, 2}
    if not classes:
        return
    names = [] if isinstance(classes, str) else [c for c in classes if isinstance(c, str)]
    if len(names) != len(classes) or len(set(names)) not in counts:
        raise ModelError(
            f"classes are {classes!r}; expected {model.num_classes} different names, as text, "
            "one per output"
        )


def load_model(path: str | Path) -> MILModel:
    """Load the model of a folder, on the CPU, in evaluation mode."""
    path = Path(path)
    card = read_card(path)
    weights = _read_weights(path, card.weights_sha256)
    try:
        tensors = load(weights)
        task = from_card(card.task) if card.task else None
        _check_sizes(create_meta_model(card.model, task, **card.options), tensors)
        model = create_model(card.model, **card.options)
        if task is not None:
            model.set_task(task)
        model.load_state_dict(tensors)
    except (ModelError, OptionError, TypeError, RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())
        raise ModelFolderError(
            f"{path}: card and weights do not make a model ({reason}); copy the folder again, or "
            "load it with the sacmil it was saved by"
        ) from error
    model.classes = card.classes
    return model.eval()


class _WithoutNormalValues(TorchFunctionMode):
    """Draws no normal values for tensors without memory; torch loads its compiler to do so."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func in (Tensor.normal_, nn.init.normal_):
            tensor = args[0] if args else given["tensor"]
            if tensor.is_meta:
                return tensor
        return func(*args, **given)


def create_meta_model(name: str, task: Task | None = None, /, **options: Any) -> MILModel:
    """Create a model to check its sizes; its weights take no memory if its constructor allows."""
    try:
        with torch.device("meta"), _WithoutNormalValues():
            model = create_model(name, **options)
    except RuntimeError:  # the constructor reads values of a tensor
        model = create_model(name, **options)
    if task is not None:
        model.set_task(task)
    return model


def _check_sizes(model: MILModel, tensors: Mapping[str, Tensor]) -> None:
    expected = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    found = {name: tuple(value.shape) for name, value in tensors.items()}
    for name in sorted(expected.keys() | found.keys()):
        if expected.get(name) != found.get(name):
            raise ModelError(
                f"{name} is {found.get(name, 'missing')} in the weights, "
                f"{expected.get(name, 'missing')} by the card"
            )


def _read_weights(path: Path, digest: str) -> bytes:
    try:
        weights = (path / WEIGHTS).read_bytes()
    except OSError as error:
        raise ModelFolderError(
            f"{path}: {WEIGHTS} cannot be read ({error.strerror}); copy the folder again"
        ) from error
    if hashlib.sha256(weights).hexdigest() != digest:
        raise ModelFolderError(
            f"{path}: {WEIGHTS} is not the file its card was written for (truncated or replaced); "
            "copy the folder again"
        )
    return weights
