"""What tests and the examples in docstrings share."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from sacmil.cohorts import bag_headers
from sacmil.parallel import TaskOutcome
from sacmil.parallel._child import _run_task
from sacmil.training import bag_checks


@pytest.fixture(autouse=True)
def _inspect_bags_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Training starts processes to check bags, a second that only their own tests need."""

    def run_each(function: Callable[[Any], Any], items: Iterable[Any], **_: Any) -> Any:
        name = f"{function.__module__}:{function.__name__}"
        return (TaskOutcome(key, *_run_task(name, (item,))) for key, item in enumerate(items))

    for module in (bag_headers, bag_checks):
        monkeypatch.setattr(module, "run_each", run_each)
