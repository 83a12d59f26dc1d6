"""The warm-up loads what the first step needs, and neither fails nor draws random numbers."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from sacmil.training import warm_up


def test_the_compiler_of_torch_is_loaded_in_the_background() -> None:
    code = (
        "import sys; from sacmil.training.warm_up import warm_up\n"
        "assert 'torch._dynamo' not in sys.modules\n"
        "with warm_up('cpu'): pass\n"
        "assert 'torch._dynamo' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("device", ["cpu", "meta", "no such device"])
def test_what_fails_is_left_to_the_training(monkeypatch, device: str) -> None:
    tried = []

    def fail(name: str) -> None:
        tried.append(name)
        raise ImportError(name)

    monkeypatch.setattr(warm_up.importlib, "import_module", fail)
    before = torch.get_rng_state()
    with warm_up.warm_up(device):
        pass
    assert tried or device != "cpu"
    assert torch.equal(before, torch.get_rng_state())
