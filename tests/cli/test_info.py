"""``sacmil info``: facts of what can be read, a sentence for each file that cannot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sacmil import Bag, EncoderId, create_model, save_model, write_bag

FEATURES = np.ones((3, 4), np.float16)
COORDS = np.array([[0, 512], [512, 0], [1024, 2048]])


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    path = tmp_path / "slide.h5"
    optional = {"mpp": 0.25, "labels": [0, 1, 1], "tile_px": 256, "encoder": EncoderId("uni", "ab")}
    write_bag(path, Bag("S-1", FEATURES, COORDS, 512, slide_size=(9000, 8000), **optional))
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    model = create_model("sac_mil", in_dim=4, num_classes=2, dim=8, k=2, depth=1)
    save_model(path, model, classes=["no", "yes"])
    return path


def test_a_bag_is_described(sacmil: Callable, bag: Path) -> None:
    done = sacmil("info", bag)
    assert done.code == 0
    facts = dict(line.split(maxsplit=1) for line in done.out.splitlines())
    assert facts == {
        "file": str(bag),
        "what": "bag",
        "slide": "S-1",
        "instances": "3",
        "features": "4 x float16",
        "encoder": "uni ab",
        "patch_size": "512 level-0 pixels",
        "patch_size_um": "128.0",
        "tile_px": "256",
        "mpp": "0.25",
        "slide_size": "9000 x 8000",
        "x": "0 to 1024",
        "y": "0 to 2048",
        "labels": "0=1, 1=2",
    }


def test_json_is_one_object_per_file(sacmil: Callable, bag: Path, model: Path) -> None:
    done = sacmil("info", "--json", bag, model)
    assert done.code == 0
    first, second = map(json.loads, done.out.splitlines())
    assert (first["slide"], first["slide_size"], first["labels"]) == (
        *("S-1", [9000, 8000]),
        {"0": 1, "1": 2},
    )
    assert (second["what"], second["model"], second["classes"]) == (
        *("model", "sac_mil"),
        ["no", "yes"],
    )
    assert second["options"]["dim"] == 8


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_every_file_is_reported_though_some_fail(
    sacmil: Callable, tmp_path: Path, bag: Path, model: Path, flags: list[str]
) -> None:
    (tmp_path / "text.h5").write_text("hello")
    (tmp_path / "cut.h5").write_bytes(bag.read_bytes()[:999])
    (tmp_path / "empty").mkdir()
    bad = [tmp_path / name for name in ("text.h5", "cut.h5", "empty", "missing.h5", "x" * 300)]
    done = sacmil("info", *flags, bad[0], bag, *bad[1:], model)
    assert done.code == 1
    errors = done.err.splitlines()
    assert len(errors) == len(bad)
    for line, path in zip(errors, bad, strict=True):
        assert line.startswith(f"Error: {path}: ")
    assert "S-1" in done.out
    assert "sac_mil" in done.out


def test_a_bag_that_only_warns_is_reported_with_one_plain_line(
    sacmil_process: Callable, tmp_path: Path
) -> None:
    with pytest.warns(UserWarning, match="repeat"):
        twice = Bag("twice", FEATURES, COORDS * 0, 512)
    write_bag(tmp_path / "twice.h5", twice)
    done = sacmil_process("info", tmp_path / "twice.h5")
    assert done.code == 0
    assert done.err.startswith("Warning: twice: 2 of 3 instances repeat")
    assert done.err.count("\n") == 1


def test_a_bag_with_nan_is_refused_by_name(sacmil: Callable, bag: Path) -> None:
    import h5py

    with h5py.File(bag, "r+") as file:
        file["features"][1, 1] = np.nan
        del file.attrs["checksum"]
    done = sacmil("info", bag)
    assert done.code == 1
    assert done.err.startswith(f"Error: {bag}: S-1: features of 1 of 3 instances hold NaN")


def test_a_folder_of_bags_is_rejected_as_such(sacmil: Callable, bag: Path) -> None:
    done = sacmil("info", bag.parent)
    assert done.code == 1
    assert (
        done.err == f"Error: {bag.parent}: is a folder of 1 bags; expected one bag, such as {bag}\n"
    )
