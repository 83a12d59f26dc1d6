"""What a caller may give a model as features and coords, and what is wrong with the rest."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sacmil.bag import Bag
from sacmil.errors import BagWarning, InputError

_MAX_ROWS_CHECKED = 256
"""Coordinates that are enough to see a grid of pixels."""
_MIN_POSITIONS = 8
"""Places that are needed: fewer may share a divisor by chance."""
_MIN_TILE_PX = 16
"""Pixels on a side; tiles in patch units do not all lie on multiples of so many tiles."""
_MAX_SLIDE_TILES = 10_000
"""Tiles on a side: along 75 mm of glass each would be smaller than a nucleus."""

_has_warned = False


def to_tensor(name: str, value: object, device: torch.device) -> Tensor:
    """A tensor as it is, an array as a tensor on the device; InputError for anything else."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray):
        raise InputError(_describe_mistake(name, value))
    try:
        # torch warns of arrays that cannot be written to, such as memory-mapped ones
        return torch.from_numpy(np.require(value, requirements=("C", "W"))).to(device)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} are an array of {value.dtype} that torch cannot take ({error}); expected "
            "float32"
        ) from error


def _describe_mistake(name: str, value: object) -> str:
    if isinstance(value, Bag):
        return (
            f"{name} are a Bag; use sacmil.predict(model, bag), or "
            "model(bag.features, bag.patch_coords)"
        )
    found = "None" if value is None else f"a {type(value).__name__}"
    if name == "coords":
        return f"coords are {found}; expected a tensor or array (N, 2), in patch units"
    return (
        f"{name} are {found}; expected a tensor or array (N, D). For a file use "
        "sacmil.predict(model, path), or sacmil.read_bag(path)"
    )


def warn_if_pixels(coords: npt.NDArray[Any]) -> None:
    """Warn once per process of coordinates that cannot be patch units."""
    global _has_warned  # one training loop makes a plan for each of its bags
    if _has_warned or not (_is_on_pixel_grid(coords) or _is_too_wide(coords)):
        return
    warnings.warn(
        f"the coords span {_extent(coords):,.0f} and look like level-0 pixels; expected patch "
        "units: divide them by the patch size, or take bag.patch_coords",
        BagWarning,
        stacklevel=3,
    )
    _has_warned = True


def _is_on_pixel_grid(coords: npt.NDArray[Any]) -> bool:
    """Whether all lie on multiples of more than a few, as corners of tiles in pixels do."""
    rows = np.asarray(coords[:_MAX_ROWS_CHECKED], np.float64)
    steps = rows - rows[:1]
    if not (np.abs(steps) < 2**53).all() or (steps != np.round(steps)).any():
        return False
    divisor = np.gcd.reduce(steps.astype(np.int64), axis=None)
    return bool(divisor >= _MIN_TILE_PX) and len(np.unique(rows, axis=0)) >= _MIN_POSITIONS


def _is_too_wide(coords: npt.NDArray[Any]) -> bool:
    return len(coords) >= _MIN_POSITIONS and _extent(coords) > _MAX_SLIDE_TILES


def _extent(coords: npt.NDArray[Any]) -> float:
    # Column by column: numpy takes seventy times as long along the first axis.
    return max(float(np.ptp(coords[:, axis])) for axis in (0, 1))
