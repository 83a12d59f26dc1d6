"""Training configuration, as one YAML file; unknown keys are rejected with a suggestion.

::

    model: sac_mil_near_far a name of `sacmil models`
    options: {k: 16}        of its constructor
    recipe: standard        standard, paper, official, or another the model has
    training: {lr: 2e-4}    fields of the recipe to change
    seed: 0                 of initial weights and of the order of bags
    precision: float32      or bfloat16
    task: {kind: regression, targets: ki67}    what to predict; read by the command line only
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import yaml
from pydantic import Field, field_validator, model_validator

from sacmil.errors import ConfigError, check_type, shorten_value, suggest_names
from sacmil.models import Recipe, describe_model
from sacmil.models._registry import get_recipes, update_key, update_keys, update_model_name
from sacmil.settings import Settings
from sacmil.yaml_values import read_yaml

DEFAULT_MODEL = "sac_mil_near_far"
"""docs/results/near-and-far.md gives the reason for this choice."""

Precision = Literal["float32", "bfloat16"]


class TrainingConfig(Settings):
    """One way to train one model; together with the data it determines the weights."""

    model: str = DEFAULT_MODEL
    options: Mapping[str, Any] = {}
    """Arguments of the model's constructor."""
    recipe: str = "standard"
    """A name among the model's recipes."""
    training: Mapping[str, Any] = {}
    """Fields of the recipe to change."""
    seed: int = Field(0, ge=0)
    precision: Precision = "float32"
    """Of matrix products; weights stay float32."""

    @field_validator("model", mode="before")
    @classmethod
    def _update_model(cls, name: str) -> str:
        return update_model_name(name)

    @field_validator("options", "training")
    @classmethod
    def _update_keys(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        return update_keys(values)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        _check_known(f"option of {self.model}", self.options, describe_model(self.model).options)
        _check_known(f"recipe of {self.model}", [self.recipe], get_recipes(self.model))
        _check_known("setting of training", self.training, _RECIPE_FIELDS)
        self.to_recipe()
        return self

    def to_recipe(self) -> Recipe:
        """Return the recipe with this configuration's changes."""
        given = {"min_steps": 0, **self.training} if "epochs" in self.training else self.training
        return get_recipes(self.model)[self.recipe].replace(**given)

    def model_options(self) -> dict[str, Any]:
        """Return the constructor's arguments: the given options over those of the recipe."""
        return {**self.to_recipe().options, **self.options}

    def to_dict(self) -> dict[str, Any]:
        """Return values that YAML and JSON can hold."""
        return self.model_dump()


_FIELDS = tuple(TrainingConfig.model_fields)
_RECIPE_FIELDS = tuple(name for name in Recipe.model_fields if name not in ("options", "clip"))

Overrides = Mapping[str, Any] | str | Iterable[str]
"""Settings to change: values by key, or texts ``key=value`` whose values are YAML."""

ModelChoice = str | Iterable[str] | Mapping[str, TrainingConfig | Mapping[str, Any]]
"""A model, several, or configurations by the name of their results."""


def resolve_configs(
    models: ModelChoice | None,
    *,
    config: str | Path | Mapping[str, Any] | None = None,
    recipe: str | None = None,
    options: Overrides = (),
    argument: str = "models",
) -> dict[str, TrainingConfig]:
    """Return the configuration of each model, from the arguments of train and cross_validate.

    Args:
        models: names, or configurations by name; None takes those of config, or sac_mil_near_far.
        config: a YAML file or its values: one configuration for all models, or one for each.
        recipe: of all models.
        options: further settings for all models that have the key, ``model.key`` for one.
        argument: that names the models, for messages.
    """
    changes = [("recipe", recipe)] if recipe else []
    changes += _parse_overrides(options)
    if isinstance(models, Mapping):
        if config is not None:
            raise ConfigError(f"`{argument}` and `config` are both configurations; leave one out")
        if not models:
            raise ConfigError(f"`{argument}` has no model; expected at least one")
        return _apply_overrides(dict(map(_get_named_values, models.items())), changes, argument)
    check_type("config", config, (str, Path, Mapping, type(None)), "a YAML file, or its values")
    values = read_config(config) if isinstance(config, str | Path) else dict(config or {})
    values.pop("task", None)  # the dataset has it; the command line reads it from here
    names = _choose_models(models, values, argument)
    return _apply_overrides(_get_values_by_model(names, values), changes, argument)


def make_config(values: Mapping[str, Any], overrides: Overrides = ()) -> TrainingConfig:
    """Return a configuration from the values of a YAML file and overrides.

    Args:
        values: by key; all are optional.
        overrides: a key is one of the configuration, of the recipe or of the model, with or
            without the prefix ``training.`` or ``options.``.
    """
    return _make_config(values, _parse_overrides(overrides))


def make_configs(
    models: Iterable[str], values: Mapping[str, Any], overrides: Overrides = ()
) -> dict[str, TrainingConfig]:
    """Return a configuration per model.

    Args:
        models: their names.
        values: one configuration for all models, or one for each, as in a run's config.yaml.
        overrides: for all models that have the key, ``model.key`` for one.
    """
    return _apply_overrides(_get_values_by_model(models, values), _parse_overrides(overrides))


def _choose_models(
    models: str | Iterable[str] | None, values: Mapping[str, Any], argument: str
) -> list[str]:
    """Return the given models, or those of the configuration, or the default."""
    configured = values.get("model", DEFAULT_MODEL)
    if models is None:
        return list(values) if _has_several_models(values) else [configured]
    given = [models] if isinstance(models, str) or not isinstance(models, Iterable) else [*models]
    if not given or not all(isinstance(name, str) for name in given):
        raise ConfigError(
            f"`{argument}` is {shorten_value(models)}; expected the name of a model, such as "
            f"{DEFAULT_MODEL!r}, or configurations by name"
        )
    others = {*map(update_model_name, given)} - {update_model_name(configured)}
    if isinstance(values.get("model"), str) and others:
        raise ConfigError(
            f"`{argument}` is {', '.join(given)}, but `config` has model: {configured}; expected "
            "the same model: leave one out"
        )
    return list(dict.fromkeys(given))


def _has_several_models(values: Mapping[str, Any]) -> bool:
    return bool(values) and not set(values) & set(_FIELDS)


def _get_named_values(
    item: tuple[str, TrainingConfig | Mapping[str, Any]],
) -> tuple[str, dict[str, Any]]:
    name, given = item
    if not isinstance(name, str):
        raise ConfigError(f"a configuration has the name {shorten_value(name)}; expected text")
    if isinstance(given, TrainingConfig):
        return name, given.to_dict()
    return name, _check_mapping(name, given)


def _get_values_by_model(
    models: Iterable[str], values: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    names = list(models)
    for name in names:
        if not isinstance(name, str):
            raise ConfigError(f"a model is called {shorten_value(name)}; expected the name of one")
    if not _has_several_models(values):
        return {name: {**values, "model": name} for name in names}
    _check_known("model in the configuration", names, values)
    return {name: _check_mapping(name, values[name]) for name in names}


def _apply_overrides(
    values: Mapping[str, dict[str, Any]],
    changes: list[tuple[str, Any]],
    argument: str = "models",
) -> dict[str, TrainingConfig]:
    """Return a configuration for each name; a change that no model has is an error."""
    for key, value in changes:
        if key.rpartition(".")[2] == "model":
            raise ConfigError(
                f"`options` has model={shorten_value(value)}; models are named by `{argument}`"
            )
    configs, used = {}, set()
    for name, own in values.items():
        own = {"model": name, **own}
        mine = [n for n, (key, _) in enumerate(changes) if _is_key_of(key, name, own, values)]
        used |= set(mine)
        pairs = [(changes[n][0].removeprefix(f"{name}."), changes[n][1]) for n in mine]
        configs[name] = _make_config(own, pairs)
    for number, change in enumerate(changes):
        if number not in used:  # no model has the key: raise the error that lists the known ones
            _make_config({"model": next(iter(configs.values())).model}, [change])
    return configs


def _is_key_of(key: str, name: str, own: Mapping[str, Any], names: Iterable[str]) -> bool:
    place = key.partition(".")[0]
    if place in names and place != key:
        return place == name
    known = (*_FIELDS, *_RECIPE_FIELDS, *describe_model(own["model"]).options)
    return update_key(key) in known or place in ("options", "training")


def _make_config(values: Mapping[str, Any], changes: list[tuple[str, Any]]) -> TrainingConfig:
    _check_known("setting", values, _FIELDS)
    merged: dict[str, Any] = {**values}
    for name in ("options", "training"):
        merged[name] = _check_mapping(name, merged.get(name))
    for key, value in changes:
        _set_key(merged, key, value)
    return TrainingConfig(**merged)


def _parse_overrides(overrides: Overrides) -> list[tuple[str, Any]]:
    if isinstance(overrides, str) or not isinstance(overrides, Iterable):
        overrides = [overrides]
    given = overrides if isinstance(overrides, Mapping) else list(overrides)
    for key in given:
        if not isinstance(key, str):
            raise ConfigError(
                f"`options` has {shorten_value(key)}; expected values by name, such as "
                "{'lr': 2e-4}, or texts such as 'lr=2e-4'"
            )
    if isinstance(given, Mapping):
        return list(given.items())
    return [_parse_override(text) for text in given]


def _parse_override(text: str) -> tuple[str, Any]:
    key, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"{text!r}; expected key=value, such as lr=2e-4")
    return key, _parse_yaml(value, text)


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
        options = describe_model(merged.get("model", DEFAULT_MODEL)).options
        _check_known("setting", [key], [*_FIELDS, *_RECIPE_FIELDS, *options])
        merged["options"][key] = value


def _check_mapping(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ConfigError(f"{name} is {shorten_value(value)}; expected keys and values under it")
    return dict(value)


def _check_known(kind: str, given: Iterable[Any], known: Iterable[str]) -> None:
    names = list(known)
    for name in given:
        if name not in names:
            raise ConfigError(
                f"there is no {kind} {shorten_value(name)}; {suggest_names(str(name), names)}"
            )
