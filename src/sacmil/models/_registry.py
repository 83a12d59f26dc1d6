"""Models by name. Every public file of this folder is imported once; its decorator names it."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

import sacmil.models
from sacmil.errors import ModelError, OptionError, UnknownModelError, shorten_value, suggest_names
from sacmil.models._base import MILModel, to_json_value
from sacmil.models._recipe import PAPER, STANDARD, Recipe
from sacmil.plugins import BUILT_IN, load_plugins

_MODELS: dict[str, type[MILModel]] = {}
_ORIGINS: dict[str, str] = {}
"""Of models that other packages add."""

_MAX_OPTION = 1_000_000
"""Of whole-number options; a product of two, as float32, still fits 64 bits."""
_MAX_DEPTH = 1_000
"""Of options called depth: every layer is made one by one."""

Model = TypeVar("Model", bound=MILModel)


def register_model(name: str) -> Callable[[type[Model]], type[Model]]:
    """Give a model class its public name."""

    def register(model: type[Model]) -> type[Model]:
        if name in _MODELS:
            raise ModelError(f"two models are called {name!r}: {_MODELS[name]} and {model}")
        model.name = name
        _MODELS[name] = model
        return model

    return register


@cache
def _import_all() -> None:
    for module in pkgutil.iter_modules(sacmil.models.__path__):
        if not module.name.startswith("_"):
            importlib.import_module(f"sacmil.models.{module.name}")
    for plugin in load_plugins("models"):
        module = getattr(plugin.value, "__module__", plugin.value.__name__)
        for name, model in _MODELS.items():
            if model.__module__.partition(".")[0] == module.partition(".")[0]:
                _ORIGINS[name] = plugin.origin


def list_models() -> list[str]:
    """Names that create_model takes."""
    _import_all()
    return sorted(_MODELS)


def get_model_class(name: str) -> type[MILModel]:
    """The class behind a name."""
    _import_all()
    if not isinstance(name, str):
        raise UnknownModelError(
            f"a model is called {shorten_value(name)}; expected the name of one"
        )
    name = update_model_name(name)
    if name not in _MODELS:
        raise UnknownModelError(
            f"there is no model {shorten_value(name)}; {suggest_names(name, _MODELS)}"
        )
    return _MODELS[name]


class ModelDescription(NamedTuple):
    """A model in words."""

    summary: str
    options: dict[str, Any]
    """What can be set, with the defaults."""
    help: dict[str, str]
    """What each option means."""
    recipes: dict[str, dict[str, Any]]
    """By name, what each way of training it sets differently from the paper's."""
    training_notes: str
    """What a training loop of your own must do besides cross-entropy on the logits; or nothing."""
    origin: str
    """The package it is from: sacmil, or the name and version of another."""


def describe_model(name: str) -> ModelDescription:
    """What a model is and what can be set on it, from its docstring and its constructor."""
    model = get_model_class(name)
    parameters = inspect.signature(model).parameters.values()
    options = {p.name: p.default for p in parameters if p.name not in ("in_dim", "num_classes")}
    text = inspect.getdoc(model) or ""
    found = re.findall(r"^    (\w+): (.+(?:\n {8}.+)*)$", text, flags=re.MULTILINE)
    help_ = {option: " ".join(meaning.split()) for option, meaning in found}
    recipes = {key: _list_differences(recipe) for key, recipe in get_recipes(name).items()}
    notes, origin = _describe_training(model), _ORIGINS.get(model.name, BUILT_IN)
    return ModelDescription(text.split("\n")[0], options, help_, recipes, notes, origin)


def _describe_training(model: type[MILModel]) -> str:
    notes = []
    if model.needs_losses:
        modules = ", ".join(sorted(model.needs_losses))
        notes.append(
            f"Train with model.losses: cross-entropy on logits leaves {modules} without gradient."
        )
    elif model.losses is not MILModel.losses:
        notes.append("Train with model.losses: it is not cross-entropy on logits.")
    if model.parameter_groups is not MILModel.parameter_groups:
        notes.append("model.parameter_groups says which of the losses trains which parameters.")
    if model.stages is not MILModel.stages:
        notes.append("Train the models of model.stages one after the other.")
    return " ".join(notes)


def get_recipes(name: str) -> dict[str, Recipe]:
    """The ways of training a model: the one they all have, and its own."""
    return {"standard": STANDARD, **get_model_class(name).recipes}


def _list_differences(recipe: Recipe) -> dict[str, Any]:
    return {name: value for name, value in recipe if value != getattr(PAPER, name)}


def create_model(name: str, *, in_dim: int, num_classes: int, **options: Any) -> MILModel:
    """Make a model with fresh weights.

    Args:
        name: one of list_models().
        in_dim: width of a feature vector.
        num_classes: outputs; 1 means a single sigmoid.
        options: arguments of the model's constructor.
    """
    known = describe_model(name).options
    options = {key: to_json_value(value) for key, value in update_keys(options).items()}
    for option in options:
        if option not in known:
            raise OptionError(f"{name} has no option {option!r}; {suggest_names(option, known)}")
        _check_magnitude(option, options[option])
    return get_model_class(name)(in_dim=in_dim, num_classes=num_classes, **options)


def _check_magnitude(option: str, value: Any) -> None:
    """Reject sizes that no machine holds before anything is made of them."""
    most = _MAX_DEPTH if option == "depth" else _MAX_OPTION
    if isinstance(value, int) and abs(value) > most:
        raise OptionError(f"{option}={shorten_value(value)}; expected at most {most:,}")


_OLD_MODELS = {"sac_mil_twice": "sac_mil_dual"}
_OLD_OPTIONS = {"centres": "centers"}
_OLD_SETTINGS = {"optimiser": "optimizer"}
"""Of recipes."""


def update_model_name(name: str) -> str:
    """Today's name of a model.

    >>> update_model_name("sac_mil_twice")
    'sac_mil_dual'
    """
    return _OLD_MODELS.get(name, name) if isinstance(name, str) else name


def update_key(key: str) -> str:
    """Today's name of an option or a setting.

    >>> update_key("optimiser")
    'optimizer'
    """
    return _OLD_OPTIONS.get(key) or _OLD_SETTINGS.get(key) or key


def update_keys(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options or settings under today's names.

    Raises:
        OptionError: one is given under both names.
    """
    both = [key for key in values if update_key(key) != key and update_key(key) in values]
    if both:
        raise OptionError(f"{both[0]} is the old name of {update_key(both[0])}; give one of them")
    return {update_key(key): value for key, value in values.items()}


def restore_old_names(config: Mapping[str, Any]) -> dict[str, Any]:
    """A training configuration under the names that fingerprints are computed with."""
    return {
        **config,
        "model": _invert(_OLD_MODELS).get(config["model"], config["model"]),
        "options": {_invert(_OLD_OPTIONS).get(k, k): v for k, v in config["options"].items()},
        "training": {_invert(_OLD_SETTINGS).get(k, k): v for k, v in config["training"].items()},
    }


def _invert(names: Mapping[str, str]) -> dict[str, str]:
    return {new: old for old, new in names.items()}
