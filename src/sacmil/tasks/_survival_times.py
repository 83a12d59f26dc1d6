"""Chooses round times at which survival is predicted and reported."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

YEAR = {"days": 365.0, "weeks": 52.0, "months": 12.0, "years": 1.0}
_STEPS = {
    "days": (7.0, 30.0, 91.0, 182.0, 365.0, 730.0),
    "weeks": (1.0, 4.0, 13.0, 26.0, 52.0, 104.0),
    "months": (1.0, 3.0, 6.0, 12.0, 24.0),
    "years": (0.25, 0.5, 1.0, 2.0),
}
_MAX_TIMES = 12
_HORIZON_YEARS = (1, 3, 5)


def format_number(time: float) -> str:
    """Return a time in its shortest form.

    >>> format_number(12.0), format_number(0.5)
    ('12', '0.5')
    """
    return repr(float(time)).removesuffix(".0")


def choose_curve_times(times: Floats, unit: str) -> tuple[float, ...]:
    """Return at most twelve multiples of a round step, up to the largest time.

    >>> choose_curve_times(np.array([7.0, 40.0]), "months")
    (6.0, 12.0, 18.0, 24.0, 30.0, 36.0, 42.0)
    """
    largest = float(times.max())
    least = largest / _MAX_TIMES
    decade = 10.0 ** np.floor(np.log10(least))
    round_steps = [float(f"{factor * decade:.2g}") for factor in (1, 2, 2.5, 5, 10)]
    steps = [*_STEPS.get(unit, ()), *round_steps]
    step = next(step for step in steps if step >= least * (1 - 1e-12))
    return tuple(step * number for number in range(1, int(np.ceil(largest / step)) + 1))


def choose_horizons(times: Floats, events: Floats, unit: str) -> tuple[float, ...]:
    """Return 1, 3 and 5 years, as far as a tenth of the patients is seen longer.

    Without a unit these are the quartiles of the times of events, rounded to two digits.

    >>> choose_horizons(np.array([7.0, 40.0]), np.ones(2), "months")
    (12.0, 36.0)
    """
    limit = float(np.quantile(times, 0.9))
    round_times = [years * YEAR[unit] for years in _HORIZON_YEARS] if unit in YEAR else []
    chosen = tuple(time for time in round_times if time < limit)
    if chosen:
        return chosen
    own = times[events == 1]
    quartiles = np.quantile(own if len(own) else times, (0.25, 0.5, 0.75))
    return tuple(sorted({float(f"{time:.2g}") for time in quartiles if time > 0}))
