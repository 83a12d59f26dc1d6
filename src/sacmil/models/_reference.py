"""Official checkpoints: their parameter names in, our model out.

A model that can read them says how in its own file, by ``reference``: which options the shapes
imply, and what each official name is called here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from sacmil.errors import ModelError
from sacmil.models._base import MILModel
from sacmil.models._registry import create_model, model_class

_WRAPPERS = ("module.", "model.")
"""What DataParallel and Lightning put before every name."""


def load_reference(
    name: str, state_dict: Mapping[str, Tensor | npt.NDArray[Any]], **options: Any
) -> MILModel:
    """Our model with the weights of the official implementation, ready to predict.

    Args:
        name: one of list_models().
        state_dict: parameters under the official repository's names.
        options: what cannot be read from shapes, such as an activation.
    """
    state = _unwrapped({key: torch.as_tensor(value) for key, value in state_dict.items()})
    try:
        found = model_class(name).reference(state)
    except ModelError as error:
        raise ModelError(f"this is not an official {name}: {error}") from error
    model = create_model(name, **found.options | options)
    if all(value.dtype == torch.float64 for value in found.state.values()):
        model = model.double()  # nothing of what was given is rounded
    load_named(model, found.state, f"an official {name}")
    return model.eval()


def load_named(module: torch.nn.Module, state: Mapping[str, Tensor], what: str) -> None:
    """Fill a module, saying which parameters are missing, unknown or of another size."""
    own = {key: tuple(value.shape) for key, value in module.state_dict().items()}
    given = {key: tuple(value.shape) for key, value in state.items()}
    problems = [f"{key} is missing" for key in own if key not in given]
    problems += [f"{key} is not known" for key in given if key not in own]
    problems += [
        f"{key} is {given[key]} instead of {own[key]}"
        for key in own
        if key in given and given[key] != own[key]
    ]
    if problems:
        raise ModelError(f"this is not {what}: {'; '.join(problems[:4])}")
    module.load_state_dict(dict(state))


def renamed(
    state: Mapping[str, Tensor], names: Mapping[str, str], ignored: Iterable[str] = ()
) -> dict[str, Tensor]:
    """Parameters under our names.

    Args:
        state: parameters under official names.
        names: official prefix to our prefix; whole path components only.
        ignored: official prefixes that carry nothing we need.
    """
    out = {}
    for key, value in state.items():
        if any(_begins(key, prefix) for prefix in ignored):
            continue
        prefix = next((prefix for prefix in names if _begins(key, prefix)), None)
        out[key if prefix is None else names[prefix] + key[len(prefix) :]] = value
    return out


def shape(state: Mapping[str, Tensor], name: str) -> torch.Size:
    """The shape of a parameter that an official checkpoint has to have."""
    if name not in state:
        raise ModelError(f"{name} is missing")
    return state[name].shape


def _begins(key: str, prefix: str) -> bool:
    return key == prefix or key.startswith(prefix + ".")


def _unwrapped(state: dict[str, Tensor]) -> dict[str, Tensor]:
    for wrapper in _WRAPPERS:
        if state and all(key.startswith(wrapper) for key in state):
            state = {key[len(wrapper) :]: value for key, value in state.items()}
    return state
