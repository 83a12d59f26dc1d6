"""Plans in files: what takes long to compute is computed once for all folds and seeds of a run."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt

from sacmil._version import __version__
from sacmil.plans.planners import Plan, Planner, make_plan

Array = npt.NDArray[Any]

_SLOW_PLANNERS = frozenset({"arrangement", "tissue_graph"})
"""Planners that take longer than reading a file."""
_USE_FEATURES = frozenset({"tissue_graph"})


@dataclass(frozen=True)
class PlanFolder:
    """A folder of plans; several processes may read and write it at the same time.

    A file that is missing or damaged costs time only: its plan is made again.
    """

    folder: Path

    def make(self, planner: Planner, coords: Array, features: Array) -> None:
        """Make the plan of a bag and store it, unless it is stored already or quickly made."""
        self.fetch(
            planner,
            coords,
            features,
            lambda: make_plan(planner.name, planner.options, coords, features),
        )

    def fetch(
        self, planner: Planner, coords: Array, features: Array, make: Callable[[], Plan]
    ) -> Plan:
        """Return the plan of a bag as it was stored, or make and store it.

        Args:
            planner: how it is made.
            coords: (N, 2), in patch units.
            features: (N, D).
            make: returns the plan.
        """
        if planner.name not in _SLOW_PLANNERS:
            return make()
        path = self.folder / f"{_name_plan(planner, coords, features)}.npz"
        stored = _read(path)
        if stored is not None:
            return stored
        plan = make()
        _write(path, plan)
        return plan


def _name_plan(planner: Planner, coords: Array, features: Array) -> str:
    """Return a name that is the same only for the same plan."""
    how = json.dumps([__version__, planner.name, dict(planner.options)], sort_keys=True)
    found = hashlib.sha256(how.encode())
    for values in (coords, features) if planner.name in _USE_FEATURES else (coords,):
        found.update(f"{values.dtype} {values.shape}".encode())
        found.update(np.ascontiguousarray(values).data)
    return found.hexdigest()


def _read(path: Path) -> Plan | None:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name].astype(np.int64) for name in stored.files}
    except (OSError, ValueError, EOFError, KeyError, BadZipFile):
        return None


def _write(path: Path, plan: Plan) -> None:
    """Write whole numbers in as few bytes as they need; a full disk costs time only."""
    partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("wb") as file:
                arrays: dict[str, Any] = {name: _shorten(values) for name, values in plan.items()}
                np.savez(file, **arrays)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def _shorten(values: Array) -> Array:
    return values.astype(np.min_scalar_type(values.max(initial=0)))
