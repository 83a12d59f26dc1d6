"""Checks of constructor options. Errors state the value, and what was expected."""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable

from sacmil.errors import OptionError, shorten_value, suggest_names


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
