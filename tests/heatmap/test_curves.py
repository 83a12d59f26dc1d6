"""What pictures of curves show and say."""

from __future__ import annotations

import numpy as np
import pytest

from sacmil.heatmap.curves import DrawnCurve, choose_ticks, describe_curve
from sacmil.results import StoredPrediction
from sacmil.tasks import Curve, Regression, Survival

TASK = Survival("months", "death", curve_times=(12, 24.5))


def test_a_single_model_has_one_line() -> None:
    found = StoredPrediction("m", (0.1, 0.4, 0.81234, 0.5), members=((0.1, 0.4, 0.81234, 0.5),))
    drawn = DrawnCurve.from_prediction(TASK, found)
    assert drawn == DrawnCurve(
        x_title="time",
        y_title="survival",
        x=(0.0, 12.0, 24.5),
        y=(1.0, 0.8123, 0.5),
        members=(),
        ticks=(0.0, 12.0, 24.5),
        text="survival by time: 100% at 0, 81% at 12, 50% at 24.5",
        note="",
    )


def test_members_keep_their_order() -> None:
    members = ((0.1, 0.4, 0.9, 0.5), (0.3, 0.4, 0.7, 0.6))
    drawn = DrawnCurve.from_prediction(TASK, StoredPrediction("m", members[0], members=members))
    assert drawn.members == ((1.0, 0.9, 0.5), (1.0, 0.7, 0.6))
    assert drawn.note == "Thick line: the mean. Thin lines: its 2 members."


def test_a_number_has_no_curve() -> None:
    assert DrawnCurve.from_prediction(Regression("ki67"), StoredPrediction("m", (23.0,))) is None


@pytest.mark.parametrize("count", [1, 2, 6, 7, 12, 13, 200])
@pytest.mark.parametrize("power", [1.0, 1.7])
def test_ticks_are_times_of_the_curve_and_have_room(count: int, power: float) -> None:
    x = tuple(float(value) for value in np.arange(count + 1) ** power)
    ticks = choose_ticks(x)
    assert set(ticks) <= set(x)
    assert ticks[0] == 0
    assert 2 <= len(ticks) <= 7
    assert min(np.diff(ticks)) >= x[-1] / 6 * 0.999


def test_a_curve_that_begins_late_is_described_from_there() -> None:
    curve = Curve("dose (Gy)", "response", (10.0, 20.0), (0.004, 0.996))
    assert describe_curve(curve) == "response by dose (Gy): 0% at 10, 100% at 20"
