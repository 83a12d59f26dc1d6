"""Checkpoints are files like all others."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from sacmil.training.checkpoint import Checkpoint, TrainingState


def write(folder: Path) -> Path:
    checkpoint = Checkpoint(folder / "checkpoint.safetensors")
    checkpoint.write(TrainingState("fingerprint", weights={"weight": torch.ones(3)}))
    checkpoint.wait_for_write()
    return checkpoint.path


def test_only_the_state_of_the_same_run_is_read(tmp_path: Path) -> None:
    checkpoint = Checkpoint(write(tmp_path))
    assert checkpoint.read("of another run") is None
    assert checkpoint.read("fingerprint").weights["weight"].tolist() == [1, 1, 1]


@pytest.mark.skipif(os.name == "nt", reason="Windows has no such permissions")
def test_a_checkpoint_has_the_permissions_of_any_other_file(tmp_path: Path) -> None:
    (tmp_path / "other").touch()
    assert write(tmp_path).stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_full_disk_names_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fill_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", fill_disk)
    with pytest.raises(OSError, match="No space left") as raised:
        write(tmp_path)
    assert raised.value.filename == str(tmp_path / "checkpoint.safetensors")
    assert list(tmp_path.iterdir()) == []
