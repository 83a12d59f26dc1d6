"""A results folder to look at, and an app over it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from results_maker import make_results

from sacmil.viewer.access import AllowedHosts
from sacmil.viewer.app import create_app
from sacmil.viewer.content import ResultsApi
from sacmil.viewer.workers import SlideProcesses, WorkQueue


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once; not to be changed."""
    return make_results(tmp_path_factory.mktemp("made") / "results")


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(made, tmp_path / "results"))


@pytest.fixture(scope="session")
def processes() -> Iterator[SlideProcesses]:
    """Started once: starting them takes longer than most tests."""
    made = SlideProcesses(2)
    yield made
    made.close()


@pytest.fixture
def make_app(tmp_path: Path, processes: SlideProcesses) -> Iterator[Callable[..., Any]]:
    """Makes an app over a folder, as ``sacmil view`` would."""
    queues = []

    def make(folder: Path, *slides: Path, host: str = "127.0.0.1", **options: Any) -> Any:
        cache = options.pop("cache", None)
        api = ResultsApi(
            folder, slides, processes=processes, document_processes=processes, cache=cache
        )
        queue = options.pop("queue", None) or WorkQueue(2)
        queues.extend([queue, document_queue := WorkQueue(2)])
        static = options.pop("static", tmp_path / "no page")
        hosts = AllowedHosts.from_address(host, 8765)
        return create_app(
            api, hosts, queue=queue, document_queue=document_queue, static=static, **options
        )

    yield make
    for queue in queues:
        queue.close()


@pytest.fixture
def app(made: Path, make_app: Callable[..., Any]) -> Any:
    """Over the folder that is not changed."""
    return make_app(made)
