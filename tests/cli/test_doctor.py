"""``sacmil doctor``: what is here, and the command for what is not."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from sacmil import __version__, installation


def test_versions_devices_and_extras_are_shown(sacmil: Callable) -> None:
    done = sacmil("doctor")
    assert done.code == 0
    assert f"sacmil            {__version__}" in done.out
    assert f"numpy             {np.__version__}" in done.out
    assert "device            cpu: " in done.out
    assert "extra torch       ready" in done.out


def test_what_is_missing_comes_with_the_command_that_installs_it(
    sacmil: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = installation._version
    monkeypatch.setattr(
        installation, "_version", lambda package: None if package == "torch" else found(package)
    )
    done = sacmil("doctor")
    assert done.code == 0
    assert "extra torch       missing torch" in done.out
    assert "pip install 'sacmil[torch]'" in done.out
    assert "torch is not installed" in done.out
