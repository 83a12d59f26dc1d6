"""Checks of constructor options and of a bag's tensors: what was found, what was expected."""

from __future__ import annotations

import inspect
import math
import numbers
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sacmil.bag import Bag
from sacmil.errors import BagWarning, InputError, OptionError, shorten_value, suggest_names

Check = Callable[[str, Any], object]

_MAX_ROWS_CHECKED = 256
"""Number of coordinates that suffices to recognise a grid of pixels."""
_MIN_POSITIONS = 8
"""Number of distinct positions required: fewer may share a divisor by chance."""
_MIN_TILE_PX = 16
"""Smallest grid step taken for pixels; patch units do not all share so large a divisor."""
_MAX_SLIDE_TILES = 10_000
"""Tiles along a slide: with more, each tile of a 75 mm slide is smaller than a nucleus."""

_has_warned = False

# --- options of a constructor ---------------------------------------------------------------------


def check_choice(name: str, value: str, known: Iterable[str]) -> str:
    """Return the value if it is one of the known ones.

    >>> check_choice("pool", "maen", ["mean", "max"])
    Traceback (most recent call last):
    sacmil.errors.OptionError: pool='maen' is not known; did you mean 'mean'?
    """
    names = list(known)
    if value not in names:
        raise OptionError(
            f"{name}={shorten_value(value)} is not known; {suggest_names(str(value), names)}"
        )
    return value


def check_at_least(name: str, value: int, minimum: int) -> int:
    """Return the value if it is a whole number of at least the minimum."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < minimum:
        raise OptionError(
            f"{name}={shorten_value(value)}; expected a whole number of at least {minimum}"
        )
    return int(value)


def check_divisor(name: str, value: int, number: int, *, number_name: str = "dim") -> int:
    """Return the value if it divides a number without remainder.

    >>> check_divisor("heads", 3, 16)
    Traceback (most recent call last):
    sacmil.errors.OptionError: heads=3 does not divide dim=16; expected a divisor of it
    """
    if number % check_at_least(name, value, 1):
        raise OptionError(
            f"{name}={value} does not divide {number_name}={number}; expected a divisor of it"
        )
    return int(value)


def check_finite(name: str, value: float) -> float:
    """Return the value if it is a finite number."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real) or not math.isfinite(value):
        raise OptionError(f"{name}={shorten_value(value)}; expected a number")
    return float(value)


def check_positive(name: str, value: float) -> float:
    """Return the value if it is a finite number above zero."""
    if check_finite(name, value) <= 0:
        raise OptionError(f"{name}={shorten_value(value)}; expected a number above 0")
    return float(value)


def check_fraction(name: str, value: float) -> float:
    """Return the value if it is a number from 0 to 1."""
    if not 0 <= check_finite(name, value) <= 1:
        raise OptionError(f"{name}={shorten_value(value)}; expected a number from 0 to 1")
    return float(value)


def check_flag(name: str, value: bool) -> bool:  # noqa: FBT001 - the boolean is what is checked
    """Return the value if it is True or False."""
    if not isinstance(value, bool):
        raise OptionError(f"{name}={shorten_value(value)}; expected True or False")
    return value


Size = Annotated[int, partial(check_at_least, minimum=1)]
"""Annotation of an option that is a whole number above zero."""
Count = Annotated[int, partial(check_at_least, minimum=0)]
"""Annotation of an option that is a whole number, or zero."""
Fraction = Annotated[float, check_fraction]
"""Annotation of an option that is a number from 0 to 1."""


def one_of(known: Iterable[str]) -> Check:
    """The check of an option that is a name: ``Annotated[str, one_of(POOLS)]``."""
    return partial(check_choice, known=known)


def check_options(model: type, options: Mapping[str, Any]) -> None:
    """Check the arguments of a constructor by its annotations, such as ``Size | None``."""
    for name, (check, is_optional) in _find_checks(model).items():
        if name in options and not (is_optional and options[name] is None):
            check(name, options[name])


@cache
def _find_checks(model: type) -> dict[str, tuple[Check, bool]]:
    """The check of each option, and whether it may be None; of plain types bool is checked."""
    try:
        hints = get_type_hints(inspect.getattr_static(model, "__init__"), include_extras=True)
    except NameError:  # a model of another package, with imports for type checkers only
        return {}
    checks: dict[str, tuple[Check, bool]] = {}
    for name, hint in hints.items():
        types = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
        for each in types:
            metadata = (check_flag,) if each is bool else getattr(each, "__metadata__", ())
            if metadata:
                checks[name] = (metadata[0], NoneType in types)
    return checks


# --- tensors of a bag -----------------------------------------------------------------------------


def to_tensor(name: str, value: object, device: torch.device) -> Tensor:
    """Return a tensor as it is, or an array as a tensor on the device; else raise InputError."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray):
        raise InputError(_describe_mistake(name, value))
    try:
        # torch warns about read-only arrays, such as memory-mapped ones
        return torch.from_numpy(np.require(value, requirements=("C", "W"))).to(device)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"{name} are {describe_value(value)}, which torch cannot take; expected float32: "
            f"{name}.astype('float32')"
        ) from error


def check_inputs(features: Tensor, coords: Tensor, in_dim: int, model_name: str) -> None:
    """Reject tensors that are not one bag for this model; looks at shapes and types only."""
    if features.ndim != 2 or features.shape[0] == 0:
        raise _make_shape_error("features", features, f"(N, {in_dim}) with N >= 1")
    if coords.ndim != 2 or coords.shape[1] != 2:
        raise _make_shape_error("coords", coords, "(N, 2), in patch units")
    if features.shape[1] != in_dim:
        raise InputError(
            f"features are {features.shape[1]} wide; this {model_name} expects "
            f"{in_dim}: use bags of the encoder it was trained on, or "
            f"create_model({model_name!r}, in_dim={features.shape[1]}, ...)"
        )
    if not features.is_floating_point():
        raise InputError(
            f"features are {_describe_dtype(features)}; expected floats: convert a tensor with "
            "features.float(), an array with features.astype('float32')"
        )
    if coords.is_complex() or coords.dtype == torch.bool:
        raise InputError(
            f"coords are {_describe_dtype(coords)}; expected whole numbers or floats, in patch "
            "units"
        )
    if coords.shape[0] != features.shape[0]:
        raise InputError(
            f"there are {coords.shape[0]} coordinates for {features.shape[0]} instances; "
            "expected one (x, y) per feature row"
        )


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    """Reject a tensor that is not on the device of the model."""
    if tensor.device != device:
        raise InputError(
            f"{name} are on {tensor.device}, the model is on {device}; expected one device: give "
            f"{name}.to('{device}'), or move the model"
        )


def describe_value(value: object) -> str:
    """Return the type of a value for a message, with dtype and shape where it has them.

    >>> describe_value(np.ones((2, 3))), describe_value((1, 2)), describe_value(None)
    ('an array of float64, shape (2, 3)', 'a tuple of length 2', 'None')
    """
    if isinstance(value, Tensor):
        return f"a tensor of {_describe_dtype(value)}"
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}, shape {value.shape}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of length {len(value)}"
    return "None" if value is None else f"a {type(value).__name__}"


def _describe_dtype(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}, shape {tuple(tensor.shape)}"


def _make_shape_error(name: str, tensor: Tensor, expected: str) -> InputError:
    fix_hint = ""
    if tensor.ndim == 3:
        fix_hint = f": give {name}[0]" if tensor.shape[0] == 1 else ": call the model for each bag"
    return InputError(
        f"{name} have shape {tuple(tensor.shape)}; expected {expected}, one bag without a batch "
        f"axis{fix_hint}"
    )


def _describe_mistake(name: str, value: object) -> str:
    if isinstance(value, Bag):
        return (
            f"{name} are a Bag; use sacmil.predict(model, bag), or "
            "model(bag.features, bag.patch_coords)"
        )
    if isinstance(value, str | Path):
        return (
            f"{name} are a {type(value).__name__}; expected a tensor or array. Read the file "
            "first: sacmil.read_bag(path), or use sacmil.predict(model, path)"
        )
    expected = "(N, 2), in patch units" if name == "coords" else "(N, D)"
    fix_hint = "" if value is None else f": np.asarray({name}, 'float32')"
    return f"{name} are {describe_value(value)}; expected a tensor or array {expected}{fix_hint}"


def warn_if_pixels(coords: npt.NDArray[Any]) -> None:
    """Warn once per process about coordinates that cannot be patch units."""
    global _has_warned  # training makes a plan for each bag
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
    """Whether all coordinates are multiples of a large number, as tile corners in pixels are."""
    rows = np.asarray(coords[:_MAX_ROWS_CHECKED], np.float64)
    steps = rows - rows[:1]
    if not (np.abs(steps) < 2**53).all() or (steps != np.round(steps)).any():
        return False
    divisor = np.gcd.reduce(steps.astype(np.int64), axis=None)
    return bool(divisor >= _MIN_TILE_PX) and len(np.unique(rows, axis=0)) >= _MIN_POSITIONS


def _is_too_wide(coords: npt.NDArray[Any]) -> bool:
    return len(coords) >= _MIN_POSITIONS and _extent(coords) > _MAX_SLIDE_TILES


def _extent(coords: npt.NDArray[Any]) -> float:
    # By column: along the first axis numpy takes seventy times as long.
    return max(float(np.ptp(coords[:, axis])) for axis in (0, 1))
