"""Another package adds members by entry points; a broken one does not stop the others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tests.support.plugin_maker import install_broken_plugin, install_plugin

import sacmil


def test_members_of_another_package_work_and_a_broken_one_is_left_out_with_a_warning(
    tmp_path: Path,
) -> None:
    site = install_broken_plugin(install_plugin(tmp_path / "site"))
    (np.random.default_rng(0).random((9, 6)) * 512).tofile(tmp_path / "s1.labbag")
    (tmp_path / "s2.labslide").write_bytes(b"something")
    script = f"""
import sacmil
from sacmil.cli.main import main
from sacmil.slides.readers import open_slide
bag = sacmil.read_bag({str(tmp_path / "s1.labbag")!r})
model = sacmil.create_model("median_pool", in_dim=4, num_classes=2)
sacmil.save_model({str(tmp_path / "model")!r}, model)
again = sacmil.load_model({str(tmp_path / "model")!r})
print(sacmil.predict(again, bag).probabilities.sum())
print(sacmil.encoders.describe_encoder("mean_color").width)
try:
    open_slide({str(tmp_path / "s2.labslide")!r})
except sacmil.errors.SlideError as error:
    print(error)
main()
"""
    found = subprocess.run(
        [sys.executable, "-c", script, "models"],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not found.returncode, found.stderr
    assert "broken-plugin 1.2: its sacmil.models entry 'broken' cannot be loaded" in found.stderr
    assert "Traceback" not in found.stderr
    total, width, rejected, *listed = found.stdout.splitlines()
    assert float(total) == pytest.approx(1)
    assert width == "3"
    assert "the reader of another lab was here" in rejected
    (line,) = [line for line in listed if line.startswith("median_pool")]
    assert "The median of the instances" in line
    assert "[lab-plugin 1.2]" in line
    assert "[" not in next(line for line in listed if line.startswith("abmil "))


def test_models_of_this_package_say_so() -> None:
    assert sacmil.describe_model("abmil").origin == "sacmil"
