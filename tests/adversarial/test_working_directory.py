"""Python files in the working directory, as a download may leave them there, are never run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sacmil import Bag, write_bag

NAMES = ("queue", "json", "numpy", "h5py", "torch", "sitecustomize", "usercustomize", "sacmil")
COMMANDS = (("info", "a.h5"), ("convert", "a.h5", "--out", "out", "--workers", "1"))
START = "from sacmil.cli.main import main; main()"


@pytest.mark.parametrize(
    "command", [COMMANDS[1], pytest.param(COMMANDS[0], marks=pytest.mark.slow)]
)
def test_code_in_the_working_directory_is_not_run(tmp_path: Path, command: tuple[str, ...]) -> None:
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text(f"open('ran-{name}', 'w')\n")
    bag = Bag("a", np.ones((4, 3), np.float32), np.argwhere(np.ones((2, 2))) * 256, 256)
    write_bag(tmp_path / "a.h5", bag)
    # -P: what starts the installed command does not look in the working directory either
    done = subprocess.run(
        [sys.executable, "-P", "-c", START, *command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("ran-*")) == []
