"""``sacmil doctor``: what is here, and the command for what is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sacmil import __version__, environment


def test_versions_devices_and_extras_are_shown(sacmil: Callable) -> None:
    done = sacmil("doctor")
    assert done.code == 0
    shown = [line.split() for line in done.out.splitlines()]
    for line in (["sacmil", __version__], ["numpy", np.__version__], ["extra", "torch", "ready"]):
        assert line in shown
    assert ["device", "cpu:"] in [words[:2] for words in shown]
    assert all("  " in line for line in done.out.splitlines() if line), "columns stay apart"


def test_what_is_missing_comes_with_the_command_that_installs_it(
    sacmil: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = environment._find_version
    monkeypatch.setattr(
        environment, "_find_version", lambda package: None if package == "torch" else found(package)
    )
    done = sacmil("doctor")
    assert done.code == 0
    shown = [line.split() for line in done.out.splitlines()]
    assert ["extra", "torch", "missing", "torch"] in shown
    assert "pip install 'sacmil[torch]'" in done.out
    assert "torch is not installed" in done.out
