"""Names that models, options and settings had in files of earlier versions.

Cards, YAML files and commands may still use them. Fingerprints of training jobs are computed with
them, so that runs of earlier versions are recognized as the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sacmil.errors import OptionError

_MODELS = {"sac_mil_twice": "sac_mil_dual"}
_OPTIONS = {"centres": "centers"}
_SETTINGS = {"optimiser": "optimizer"}
"""Of recipes."""


def update_model_name(name: str) -> str:
    """Today's name of a model.

    >>> update_model_name("sac_mil_twice")
    'sac_mil_dual'
    """
    return _MODELS.get(name, name) if isinstance(name, str) else name


def update_key(key: str) -> str:
    """Today's name of an option or a setting.

    >>> update_key("optimiser")
    'optimizer'
    """
    return _OPTIONS.get(key) or _SETTINGS.get(key) or key


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
        "model": _invert(_MODELS).get(config["model"], config["model"]),
        "options": {_invert(_OPTIONS).get(k, k): v for k, v in config["options"].items()},
        "training": {_invert(_SETTINGS).get(k, k): v for k, v in config["training"].items()},
    }


def _invert(names: Mapping[str, str]) -> dict[str, str]:
    return {new: old for old, new in names.items()}
