"""Planners by name: each public file of this folder is one."""

from __future__ import annotations

import importlib
import math
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy.typing as npt

import sacmil.plans
from sacmil.errors import InputError, OptionError, suggest_names

Array = npt.NDArray[Any]
Plan = dict[str, Array]

_MAX_PATCHES = 2**31


@dataclass(frozen=True)
class Planner:
    """How a model's plans are made, as data that a card can store."""

    name: str = "nothing"
    """A file of sacmil.plans."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of its ``make`` besides the bag; numbers, text and lists of them."""
    trace_options: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    """Two sets of options to trace the ONNX graph with, whose plans differ in every dynamic axis.
    Needed where the plan of a small bag has dynamic axes of length one."""


def list_planners() -> list[str]:
    """List the names of planners."""
    modules = pkgutil.iter_modules(sacmil.plans.__path__)
    return sorted(module.name for module in modules if not module.name.startswith("_"))


def make_plan(
    name: str, options: Mapping[str, Any], coords: Array, features: Array | None = None
) -> Plan:
    """Make the plan of a bag.

    Args:
        name: one of list_planners().
        options: arguments of the planner's ``make``.
        coords: (N, 2), in patch units.
        features: (N, D); not all planners need them.

    Raises:
        InputError: coordinates are not finite, or farther apart than tiles of a slide can be.
    """
    _check_coords(coords)
    make = _load_planner(name).make
    try:
        plan: Plan = make(coords, features, **options)
    except TypeError as error:
        raise OptionError(
            f"the planner {name!r} does not accept {dict(options)} ({error}); expected the "
            "options that the model was saved with"
        ) from error
    return plan


def _check_coords(coords: Array) -> None:
    """Reject coordinates that overflow: planners square them in whole numbers."""
    lowest, highest = (float(end) for end in (coords.min(initial=0), coords.max(initial=0)))
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        raise InputError(
            "coordinates hold NaN or infinity; expected patch units (level-0 pixels / patch size): "
            "drop those instances or repair the file"
        )
    farthest = highest if highest > -lowest else lowest
    if abs(farthest) > _MAX_PATCHES:
        raise InputError(
            f"coordinates reach {farthest:g}; expected patch units (level-0 pixels / patch size), "
            f"at most {_MAX_PATCHES:,}: check the file for outliers"
        )


def _load_planner(name: str) -> ModuleType:
    known = list_planners()
    if name not in known:  # a card must not import anything but a planner
        raise OptionError(f"there is no planner {name!r}; {suggest_names(name, known)}")
    return importlib.import_module(f"sacmil.plans.{name}")
