"""What tests and the examples in docstrings share."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest

from sacmil.cohorts import bags as cohort_bags
from sacmil.parallel import TaskOutcome
from sacmil.parallel._child import _run_task
from sacmil.training import bag_checks

_STARTED = time.monotonic()
_SECONDS = float(os.environ.get("SACMIL_TEST_SECONDS", "inf"))
"""After this time no test is started; scripts/test-quick sets it."""


def pytest_runtest_setup() -> None:
    """Skip what the time of test-quick does not suffice for."""
    if time.monotonic() - _STARTED > _SECONDS:
        pytest.skip("the time of test-quick is over; make test runs this too")


@pytest.fixture(autouse=True)
def _inspect_bags_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training starts processes to check bags, a second that only their own tests need."""

    def run_each(function: Callable[[Any], Any], items: Iterable[Any], **_: Any) -> Any:
        name = f"{function.__module__}:{function.__name__}"
        return (TaskOutcome(key, *_run_task(name, (item,))) for key, item in enumerate(items))

    for module in (cohort_bags, bag_checks):
        monkeypatch.setattr(module, "run_each", run_each)
