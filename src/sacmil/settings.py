"""Base of settings that users write: frozen pydantic models with our sentences for wrong values."""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, Union, get_args, get_origin

import numpy as np
from annotated_types import Ge, Le
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core.core_schema import ValidationInfo

from sacmil.errors import ConfigError, SacMILError, shorten_value, suggest_names


class Settings(BaseModel):
    """Values that are checked when they are made and never change.

    >>> class Walk(Settings):
    ...     steps: int = 3
    >>> Walk(steps="7"), Walk().replace(steps=5)
    (Walk(steps=7), Walk(steps=5))
    >>> Walk(stepz=7)
    Traceback (most recent call last):
    sacmil.errors.ConfigError: there is no setting 'stepz'; did you mean 'steps'?
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    if not TYPE_CHECKING:  # which takes the fields for the arguments

        def __init__(self, **values: Any) -> None:
            try:
                super().__init__(**values)
            except ValidationError as error:
                raise _explain(error, type(self), values) from None

    @field_validator("*", mode="before")
    @classmethod
    def _to_plain_value(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[info.field_name or ""].annotation
        if isinstance(value, bool) and annotation in (int, float, int | None, float | None):
            raise ValueError("true and false are no numbers")
        return _to_plain_value(value)

    def replace(self, **changes: Any) -> Self:
        """Return the same settings with some changed."""
        return type(self)(**{**dict(self), **changes})


def _to_plain_value(value: Any) -> Any:
    """Return Python's own numbers for those of numpy, which JSON and YAML cannot hold."""
    if isinstance(value, Mapping):
        return {key: _to_plain_value(inner) for key, inner in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def _explain(
    error: ValidationError, kind: type[Settings], values: Mapping[str, Any]
) -> SacMILError:
    problem = error.errors(include_url=False)[0]
    raised = problem.get("ctx", {}).get("error")
    if isinstance(raised, SacMILError):
        return raised
    name, known = str(problem["loc"][0]), kind.model_fields
    if name not in known:
        return ConfigError(f"there is no setting {name!r}; {suggest_names(name, known)}")
    shown = f"{name}={shorten_value(values.get(name))}"
    annotation = known[name].annotation
    if get_origin(annotation) is Literal:
        choices = map(str, get_args(annotation))
        return ConfigError(f"{shown} is not known; {suggest_names(str(values[name]), choices)}")
    return ConfigError(f"{shown}; expected {_describe_values(known[name])}")


def _describe_values(field: FieldInfo) -> str:
    """Return what a field accepts, in words.

    >>> _describe_values(FieldInfo(annotation=tuple[float, float]))
    'a list of 2 numbers'
    """
    words: dict[Any, str] = {
        bool: "true or false",
        int: "a whole number",
        float: "a number",
        str: "text",
    }
    annotation, is_optional = field.annotation, False
    if get_origin(annotation) in (Union, types.UnionType):
        annotation, is_optional = get_args(annotation)[0], True
    parts = get_args(annotation)
    if get_origin(annotation) is tuple:
        found = f"a list of {'some' if parts[-1] is Ellipsis else len(parts)} numbers"
    elif isinstance(annotation, type) and issubclass(annotation, Settings):
        found = f"keys among {', '.join(annotation.model_fields)}"
    else:
        found = words.get(annotation, "keys and values") + _describe_range(field)
    return f"{found}, or null" if is_optional else found


def _describe_range(field: FieldInfo) -> str:
    least = [bound.ge for bound in field.metadata if isinstance(bound, Ge)]
    most = [bound.le for bound in field.metadata if isinstance(bound, Le)]
    if not least:
        return ""
    return f" from {least[0]} to {most[0]:,.12g}" if most else f" from {least[0]} up"
