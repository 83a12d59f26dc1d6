"""timm imports wherever torch does, with or without torchvision's compiled operators."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from sacmil.encoders import _timm
from sacmil.encoders._timm import import_timm
from sacmil.errors import MissingExtraError


def test_timm_builds_and_runs_a_model() -> None:
    network = import_timm().create_model("test_vit", pretrained=False, num_classes=0).eval()
    with torch.inference_mode():
        assert network(torch.zeros(1, 3, 160, 160)).isfinite().all()


def test_timms_transforms_are_usable() -> None:
    import_timm()
    from timm.data import create_transform

    assert "Normalize" in str(create_transform(224))


def test_it_imports_again_in_the_same_process() -> None:
    assert import_timm() is import_timm()


@pytest.mark.slow
def test_a_fresh_process_with_warnings_as_errors_imports_it_from_several_threads() -> None:
    code = """
from concurrent.futures import ThreadPoolExecutor
from sacmil.encoders._timm import import_timm
with ThreadPoolExecutor(4) as pool:
    assert len({id(module) for module in pool.map(lambda _: import_timm(), range(4))}) == 1
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_another_fault_of_torchvision_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> None:
        raise RuntimeError("something else is wrong")

    monkeypatch.setattr(_timm.importlib, "import_module", fail)
    with pytest.raises(RuntimeError, match="something else"):
        import_timm()


def test_without_timm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sacmil\[encoders\]'"):
        import_timm()
