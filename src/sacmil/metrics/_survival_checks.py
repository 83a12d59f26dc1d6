"""Validates the arrays that metrics of survival take: a clear error instead of a wrong number."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


def check_follow_up(
    times: npt.ArrayLike, events: npt.ArrayLike, of: str = ""
) -> tuple[Floats, Flags]:
    """Return times (n,) as floats and events (n,) as booleans.

    Args:
        times: of the event or of the last contact, 0 or more.
        events: 1 if the event happened, 0 if the patient is censored.
        of: whose they are, for messages: "training ".
    """
    checked = check_times(times, f"{of}times")
    flags = check_column(events, f"{of}events", len(checked))
    _reject((flags != 0) & (flags != 1), flags, f"{of}events", "1 (happened) or 0 (censored)")
    return checked, flags == 1


def check_training(times: npt.ArrayLike, events: npt.ArrayLike) -> tuple[Floats, Flags]:
    """Return times and events of at least one training patient."""
    return check_follow_up(check_training_times(times), events, "training ")


def check_training_times(times: npt.ArrayLike) -> Floats:
    """Return times of at least one training patient."""
    checked = check_times(times, "training times")
    if not len(checked):
        raise ValueError("training times: found no patient, expected at least one")
    return checked


def check_times(times: npt.ArrayLike, name: str = "times") -> Floats:
    """Return numbers of 0 or more: (n,)."""
    checked = check_column(times, name)
    _reject(checked < 0, checked, name, "numbers of 0 or more")
    return checked


def check_column(values: npt.ArrayLike, name: str, length: int | None = None) -> Floats:
    """Return one finite number per patient as floats: (n,)."""
    column = _to_floats(values, name)
    if column.ndim != 1:
        raise ValueError(
            f"{name}: found an array of shape {column.shape}, expected one value per patient"
        )
    if length is not None and len(column) != length:
        raise ValueError(f"{name}: found {len(column)} values, expected {length}, one per time")
    _reject(~np.isfinite(column), column, name, "finite numbers")
    return column


def check_table(values: npt.ArrayLike, name: str, shape: tuple[int, int]) -> Floats:
    """Return a finite number per patient and time as floats: (n, m)."""
    table = _to_floats(values, name)
    if table.shape != shape:
        raise ValueError(
            f"{name}: found an array of shape {table.shape}, expected {shape}, "
            "a row per patient and a column per time"
        )
    _reject(~np.isfinite(table), table, name, "finite numbers")
    return table


def check_probabilities(values: npt.ArrayLike, name: str, shape: tuple[int, int]) -> Floats:
    """Return a probability per patient and time: (n, m)."""
    table = check_table(values, name, shape)
    rounding = 1e-6
    outside = (table < -rounding) | (table > 1 + rounding)
    _reject(outside, table, name, "probabilities from 0 to 1")
    return np.clip(table, 0, 1)


def check_moments(at: npt.ArrayLike) -> Floats:
    """Return times at which something is evaluated: (m,), at least one."""
    moments = check_column(np.atleast_1d(_to_floats(at, "at")), "at")
    if not len(moments):
        raise ValueError("at: found no time, expected at least one")
    return moments


def check_increasing_moments(at: npt.ArrayLike, least: int = 1) -> Floats:
    """Return times at which something is evaluated, each later than the one before: (m,)."""
    moments = check_moments(at)
    if len(moments) < least or (np.diff(moments) <= 0).any():
        raise ValueError(f"at: found {moments}, expected {least} or more increasing times")
    return moments


def check_weights(weights: npt.ArrayLike, length: int) -> Floats:
    """Return how often each patient is in each resample: (B, n)."""
    table = _to_floats(weights, "weights")
    if table.ndim != 2 or table.shape[1] != length:
        raise ValueError(
            f"weights: found an array of shape {table.shape}, expected {length} columns, "
            "a row per resample and a column per patient"
        )
    if not (np.isfinite(table) & (table >= 0)).all():
        raise ValueError("weights: found negative or missing ones, expected numbers of 0 or more")
    return table


def _to_floats(values: npt.ArrayLike, name: str) -> Floats:
    try:
        return np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: found values that are not numbers ({error})") from error


def _reject(wrong: Flags, values: Floats, name: str, expected: str) -> None:
    """Raise if any value is wrong, with how many are and the first of them."""
    if wrong.any():
        first = tuple(map(int, np.argwhere(wrong)[0]))
        raise ValueError(
            f"{name}: found {values[first]} in row {first[0]}, expected {expected}; "
            f"{int(wrong.sum())} of {wrong.size} values are invalid"
        )
