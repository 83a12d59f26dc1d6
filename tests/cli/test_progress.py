"""Time left is the rest at the mean rate, and there is none before there is a rate."""

from __future__ import annotations

import pytest

from sacmil.cli import _progress
from sacmil.cli._progress import TimeLeft


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time now, as its last item."""
    now = [100.0]
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now[-1])
    return now


def test_the_rest_is_estimated_once_there_is_enough_to_estimate_from(clock: list[float]) -> None:
    left = TimeLeft()
    assert left.format_time_left(0, 100) == ""
    clock.append(109.0)
    assert left.format_time_left(50, 100) == ""  # too early
    clock.append(120.0)
    assert left.format_time_left(0, 100) == ""  # nothing is done
    assert left.format_time_left(10, 100) == "about 3 min left"
    assert left.format_time_left(100, 100) == ""


def test_what_an_earlier_run_has_done_does_not_count_as_speed(clock: list[float]) -> None:
    left = TimeLeft()
    left.format_time_left(90, 100)
    clock.append(120.0)
    assert left.format_time_left(91, 100) == "about 3 min left"
