"""A predicted curve as the page of a slide and the viewer draw it."""

from __future__ import annotations

from typing import NamedTuple, Self

from sacmil.results import StoredPrediction
from sacmil.tasks import Curve, Task

_MAX_TICKS = 6
_DIGITS = 4
"""Of shares, which is finer than a screen."""


class DrawnCurve(NamedTuple):
    """A curve with those of an ensemble's members, and what its picture says."""

    x_title: str
    y_title: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    """Between 0 and 1."""
    members: tuple[tuple[float, ...], ...]
    """The same of each member; empty for a single model."""
    ticks: tuple[float, ...]
    """Positions of the numbers below it."""
    text: str
    """The values in words, for readers who do not see the picture."""
    note: str
    """What the lines are; empty for a single model."""

    @classmethod
    def from_prediction(cls, task: Task, prediction: StoredPrediction) -> Self | None:
        """Return the curve of a prediction; None if it has none."""
        curve = task.get_curve(prediction)
        if curve is None:
            return None
        found = task.get_member_curves(prediction)
        count = len(found)
        members = tuple(_round(member.y) for member in found)
        note = f"Thick line: the mean. Thin lines: its {count} members." if count else ""
        drawn = (curve.x_title, curve.y_title, curve.x, _round(curve.y))
        return cls(*drawn, members, choose_ticks(curve.x), describe_curve(curve), note)


def choose_ticks(x: tuple[float, ...]) -> tuple[float, ...]:
    """Return the first of the values and others that are far enough apart for numbers.

    >>> choose_ticks((0.0, 6.0, 12.0, 18.0, 24.0, 30.0, 36.0, 42.0))
    (0.0, 12.0, 24.0, 36.0)
    """
    least = (x[-1] - x[0]) / _MAX_TICKS * (1 - 1e-9)
    chosen = [x[0]]
    for value in x[1:]:
        if value - chosen[-1] >= least:
            chosen.append(value)
    return tuple(chosen)


def describe_curve(curve: Curve) -> str:
    """Return the values of a curve in words.

    >>> describe_curve(Curve("time (months)", "survival", (0.0, 12.0), (1.0, 0.85)))
    'survival by time (months): 100% at 0, 85% at 12'
    """
    points = (f"{y:.0%} at {x:g}" for x, y in zip(curve.x, curve.y, strict=True))
    return f"{curve.y_title} by {curve.x_title}: {', '.join(points)}"


def _round(values: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(round(value, _DIGITS) for value in values)
