"""Which models are compared, and the options that make the comparison theirs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.accuracy._tasks import Size
from sacmil.models import list_models

CLOSER = ("sac_mil", "sac_mil_local", "mean_pool", "abmil_gated", "transmil")
"""Looked at more closely than the others, with the best of the others beside them."""


def everyone(size: Size) -> dict[str, Mapping[str, Any]]:
    """Every registered model with its own defaults, by the name it has in tables."""
    return {name: options_of(name, size) for name in list_models()}


def options_of(name: str, size: Size) -> Mapping[str, Any]:
    """Of a model's constructor: none, unless the study is a tiny one."""
    return (size.options or {}) if name.startswith("sac_mil") else {}
