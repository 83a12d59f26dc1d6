"""Loads official checkpoints into our models.

A model defines how in its own file, by ``reference``: which options the shapes imply, and our name
of each official parameter.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from sacmil.errors import ModelError, OptionError
from sacmil.models._base import MILModel, Reference
from sacmil.models._folder import create_meta_model
from sacmil.models._registry import create_model, get_model_class, list_models
from sacmil.nn._reference import (
    FlatCheckpoint,
    find_mismatches,
    flatten_checkpoint,
    list_names,
    load_parameters,
)
from sacmil.nn._reference import RenamedState as RenamedState
from sacmil.nn._reference import get_shape as get_shape
from sacmil.nn._reference import read_sizes as read_sizes

SIGMOIDS_NOTE = (
    "The official model has a sigmoid per class. With loss=bce these are divided by their sum, so "
    "that probabilities sum to one; output.logits.sigmoid() gives the official ones."
)
"""Note for a checkpoint of several classes that was trained by a binary loss per class."""


class LoadedReference(NamedTuple):
    """Our model with official weights, and the source of its options."""

    model: MILModel
    from_checkpoint: dict[str, Any]
    """Options that the checkpoint implies."""
    from_caller: dict[str, Any]
    """Options the caller set."""
    assumed: dict[str, Any]
    """Options that the checkpoint does not show: the official ones, or our defaults."""
    notes: tuple[str, ...]
    """What to know about predictions of this model, as sentences."""


def load_reference(name: str, state_dict: Mapping[str, Any], **options: Any) -> MILModel:
    """Return our model with the weights of the official implementation, in evaluation mode.

    Args:
        name: one of list_models().
        state_dict: parameters under the official repository's names. Several state dicts in one,
            and the prefixes of DataParallel, torch.compile and Lightning, are understood.
        options: what cannot be read from shapes, such as an activation.
    """
    return read_reference(name, state_dict, options).model


def read_reference(name: str, checkpoint: Any, options: Mapping[str, Any]) -> LoadedReference:
    """Do the same as load_reference, and return the source of the options too."""
    get_model_class(name)  # an unknown name is an error of its own
    try:
        found = flatten_checkpoint(checkpoint)
    except ModelError as error:
        raise ModelError(f"this is not an official {name}: {error}") from error
    try:
        reference = _parse_checkpoint(name, found)
        model = _make_model(name, reference, options)
        if all(value.dtype == torch.float64 for value in reference.state.values()):
            model = model.double()  # nothing of what was given is rounded
        load_parameters(model, reference.state, found.names_in_file)
    except ModelError as error:
        raise ModelError(
            f"this is not an official {name}: {error}; the checkpoint has "
            f"{list_names(found.names_in_file.values())}; {_suggest_fix(found, name)}"
        ) from error
    read = {key: value for key, value in reference.options.items() if key not in options}
    assumed = {k: v for k, v in model.options.items() if k not in read and k not in options}
    return LoadedReference(model.eval(), read, dict(options), assumed, reference.notes)


def _parse_checkpoint(name: str, found: FlatCheckpoint) -> Reference:
    try:
        return get_model_class(name).reference(found.state)
    except (ValueError, IndexError, KeyError, RuntimeError) as error:
        # a parameter with the right name and too few or too many axes
        raise ModelError(f"its parameters have other shapes ({error})") from error


def _make_model(name: str, reference: Reference, options: Mapping[str, Any]) -> MILModel:
    implied = {**reference.options, **reference.assumed}
    try:
        return create_model(name, **implied | dict(options))
    except OptionError as error:
        if options:
            raise
        raise ModelError(f"its sizes do not fit ({error})") from error


def _suggest_fix(found: FlatCheckpoint, wanted: str) -> str:
    names = [name for name in list_models() if _can_load(name, found)]
    if wanted in names:
        return f"it fits {wanted} with the options that the file implies: leave yours out"
    if names:
        return f"it fits {' or '.join(names)}: name that model instead"
    return "expected all parameters of the official model: check the model's name and the file"


def _can_load(name: str, found: FlatCheckpoint) -> bool:
    try:
        reference = _parse_checkpoint(name, found)
        model = create_meta_model(name, **reference.options, **reference.assumed)
    except (ModelError, OptionError):
        return False
    return not find_mismatches(model, reference.state, {})
