"""Training configuration, as one YAML file; unknown keys are rejected with a suggestion.

::

    model: sac_mil_local    a name of `sacmil models`
    options: {k: 16}        of its constructor
    recipe: standard        standard, paper, official, or another the model has
    training: {lr: 2e-4}    fields of the recipe to change
    seed: 0                 of initial weights and of the order of bags
    precision: float32      or bfloat16
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

from sacmil.errors import ConfigError, shorten_value, suggest_names
from sacmil.models import Recipe, describe_model
from sacmil.models._old_names import update_key, update_keys, update_model_name
from sacmil.models._recipe import Lookahead
from sacmil.models._registry import get_recipes
from sacmil.yaml_values import read_yaml

DEFAULT_MODEL = "sac_mil_local"
"""docs/results.md gives the reason for this choice."""

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, kw_only=True)
class TrainingConfig:
    """One way to train one model; together with the data it determines the weights."""

    model: str = DEFAULT_MODEL
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the model's constructor."""
    recipe: str = "standard"
    """A name among the model's recipes."""
    training: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the recipe to change."""
    seed: int = 0
    precision: Precision = "float32"
    """Of matrix products; weights stay float32."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", update_model_name(self.model))
        for name in ("options", "training"):
            object.__setattr__(self, name, update_keys(getattr(self, name)))
        options = describe_model(self.model).options
        _check_known(f"option of {self.model}", self.options, options)
        _check_known(f"recipe of {self.model}", [self.recipe], get_recipes(self.model))
        _check_known("setting of training", self.training, _RECIPE_FIELDS)
        for name in ("seed", "precision"):
            object.__setattr__(self, name, _convert_value(name, getattr(self, name), _HINTS[name]))
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed}; expected a whole number from 0 up")
        self.to_recipe()

    def to_recipe(self) -> Recipe:
        """Return the recipe with this configuration's changes."""
        given = {k: _convert_value(k, v, _RECIPE_HINTS[k]) for k, v in self.training.items()}
        if "epochs" in given:  # exactly this number
            given = {"min_steps": 0, **given}
        return dataclasses.replace(get_recipes(self.model)[self.recipe], **given)

    def model_options(self) -> dict[str, Any]:
        """Return the constructor's arguments: the given options over those of the recipe."""
        return {**self.to_recipe().options, **self.options}

    def to_dict(self) -> dict[str, Any]:
        """Return values that YAML and JSON can hold."""
        return {
            "model": self.model,
            "options": dict(self.options),
            "recipe": self.recipe,
            "training": dict(self.training),
            "seed": self.seed,
            "precision": self.precision,
        }


_HINTS = get_type_hints(TrainingConfig)
_FIELDS = tuple(_HINTS)
_RECIPE_HINTS = get_type_hints(Recipe)
_RECIPE_FIELDS = tuple(name for name in _RECIPE_HINTS if name not in ("options", "clip"))


def make_config(values: Mapping[str, Any], overrides: Iterable[str] = ()) -> TrainingConfig:
    """Return a configuration from the values of a YAML file and overrides.

    Args:
        values: by key; all are optional.
        overrides: ``key=value``; a key of the configuration, of the recipe or of the model, with
            or without the prefix ``training.`` or ``options.``.
    """
    _check_known("setting", values, _FIELDS)
    merged: dict[str, Any] = {**values}
    for name in ("options", "training"):
        merged[name] = _check_mapping(name, merged.get(name))
    for text in overrides:
        key, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{text!r}; expected key=value, such as lr=2e-4")
        _set_key(merged, key, _parse_yaml(value, text))
    return TrainingConfig(**merged)


def make_configs(
    models: Iterable[str], values: Mapping[str, Any], overrides: Iterable[str] = ()
) -> dict[str, TrainingConfig]:
    """Return a configuration per model.

    Args:
        models: their names.
        values: one configuration for all models, or one for each, as in a run's config.yaml.
        overrides: ``key=value`` for all models that have the key, ``model.key=value`` for one.
    """
    names, given = list(models), list(overrides)
    for text in given:
        if text.partition("=")[0].rpartition(".")[2] == "model":
            raise ConfigError(f"-o {text}: models are named by --model or --models")
    several = bool(values) and not set(values) & set(_FIELDS)
    if several:
        _check_known("model in the configuration", names, values)
    configs, used = {}, set()
    for name in names:
        own = _check_mapping(name, values[name]) if several else {**values, "model": name}
        model = own.setdefault("model", name)
        mine = [text for text in given if _is_override_for(text, name, model, names)]
        used |= set(mine)
        configs[name] = make_config(own, [text.removeprefix(f"{name}.") for text in mine])
    for text in given:
        if text not in used:  # no model has the key: raise the error that lists the known ones
            make_config({"model": configs[names[0]].model}, [text])
    return configs


def _is_override_for(text: str, name: str, model: str, names: list[str]) -> bool:
    key = text.partition("=")[0]
    place = key.partition(".")[0]
    if place in names:
        return place == name
    known = (*_FIELDS, *_RECIPE_FIELDS, *describe_model(model).options)
    return update_key(key) in known or place in ("options", "training") or "=" not in text


def read_config(path: str | Path) -> dict[str, Any]:
    """Read a YAML file for make_config."""
    try:
        found = _parse_yaml(Path(path).read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read ({error})") from error
    if found is not None and not isinstance(found, dict):
        raise ConfigError(f"{path}: holds {type(found).__name__}; expected keys and values")
    return found or {}


def _parse_yaml(text: str, where: str) -> Any:
    try:
        return read_yaml(text)
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{where}: is not YAML ({reason}); expected key: value") from error


def _set_key(merged: dict[str, Any], key: str, value: Any) -> None:
    """Set one key; a name without prefix is looked up in all sections."""
    key = update_key(key)
    place, dot, name = key.partition(".")
    if dot and place in ("options", "training"):
        merged[place][name] = value
    elif key in _FIELDS:
        merged[key] = value
    elif key in _RECIPE_FIELDS:
        merged["training"][key] = value
    else:
        options = describe_model(merged.get("model", TrainingConfig.model)).options
        _check_known("setting", [key], [*_FIELDS, *_RECIPE_FIELDS, *options])
        merged["options"][key] = value


def _check_mapping(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is {shorten_value(value)}; expected keys and values under it")
    return dict(value)


def _check_known(kind: str, given: Iterable[Any], known: Iterable[str]) -> None:
    names = list(known)
    for name in given:
        if name not in names:
            raise ConfigError(
                f"there is no {kind} {shorten_value(name)}; {suggest_names(str(name), names)}"
            )


def _convert_value(name: str, value: Any, hint: Any) -> Any:
    """Convert a value to its annotated type: YAML has no tuples, and callers may pass text."""
    origin, choices = get_origin(hint), get_args(hint)
    if origin is Literal:
        if value not in choices:
            raise ConfigError(
                f"{name}={shorten_value(value)} is not known; "
                f"{suggest_names(str(value), map(str, choices))}"
            )
        return value
    if origin in (Union, types.UnionType):
        return None if value is None else _convert_value(name, value, choices[0])
    if hint is Lookahead:
        return _convert_lookahead(name, value)
    if origin is tuple:
        return _convert_tuple(name, value, choices)
    return _convert_number(name, value, hint)


def _convert_number(name: str, value: Any, kind: type) -> Any:
    wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
    if isinstance(value, bool) == (kind is bool):
        try:
            number = kind(value) if not isinstance(value, list | dict) else None
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is not None and (kind is float or number == value):
            return number
    raise ConfigError(f"{name}={shorten_value(value)}; expected {wanted}")


def _convert_tuple(name: str, value: Any, kinds: tuple[Any, ...]) -> tuple[Any, ...]:
    length = None if kinds[-1] is Ellipsis else len(kinds)
    if not isinstance(value, list | tuple) or (length is not None and len(value) != length):
        raise ConfigError(
            f"{name}={shorten_value(value)}; expected a list of {length or 'some'} numbers"
        )
    return tuple(_convert_value(name, item, kinds[0]) for item in value)


def _convert_lookahead(name: str, value: Any) -> Lookahead:
    fields = Lookahead._fields
    if not isinstance(value, dict) or set(value) - set(fields):
        raise ConfigError(
            f"{name}={shorten_value(value)}; expected keys among {', '.join(fields)}, or null"
        )
    hints = get_type_hints(Lookahead)
    return Lookahead(**{key: _convert_value(key, item, hints[key]) for key, item in value.items()})
