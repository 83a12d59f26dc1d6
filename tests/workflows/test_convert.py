"""``sacmil.convert`` and ``sacmil.convert_model``: the command as functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sacmil
from sacmil import Bag, read_bag, write_bag
from sacmil.cli.convert import command
from sacmil.errors import OptionError
from sacmil.parallel import TaskOutcome
from sacmil.workflows.convert import convert, convert_model

OFFICIAL = {
    "attention.0.weight": torch.ones(3, 6),
    "attention.0.bias": torch.ones(3),
    "attention.2.weight": torch.ones(1, 3),
    "attention.2.bias": torch.ones(1),
    "classifier.0.weight": torch.ones(1, 6),
    "classifier.0.bias": torch.ones(1),
}


@pytest.fixture(autouse=True)
def _no_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_each(function: Callable, jobs: Any, **_: Any) -> Iterator[TaskOutcome]:
        for key, job in enumerate(jobs):
            try:
                yield TaskOutcome(key, function(job), None)
            except sacmil.errors.SacMILError as error:
                yield TaskOutcome(key, None, str(error))

    monkeypatch.setattr(import_module("sacmil.workflows.convert"), "run_each", run_each)


@pytest.fixture
def bag(tmp_path: Path) -> Path:
    coords = np.argwhere(np.ones((2, 3))) * 512
    write_bag(tmp_path / "in" / "a.h5", Bag("a", np.ones((6, 4)), coords, 512))
    return tmp_path / "in" / "a.h5"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.save(OFFICIAL, tmp_path / "official.pt")
    return tmp_path / "official.pt"


def test_every_option_of_the_command_is_an_argument_of_one_of_the_functions() -> None:
    options = command.make_context("convert", [str(Path(__file__)), "--out", "out"]).params
    arguments = inspect.signature(sacmil.convert).parameters
    of_cells = inspect.signature(sacmil.convert_cells).parameters.keys() - {"tables"}
    known = (arguments.keys() | of_cells) - {"on_progress"}
    assert options.keys() - {"model", "options"} == known
    chosen = {name: arguments[name].default for name in options.keys() & arguments.keys()}
    chosen = {name: value for name, value in chosen.items() if name not in ("items", "out")}
    assert chosen == {name: options[name] for name in chosen}
    of_models = inspect.signature(sacmil.convert_model).parameters.keys()
    assert of_models == {"checkpoint", "out", "model", "options", "overwrite"}


def test_a_bag_that_fails_is_a_reason_and_the_others_go_on(bag: Path, tmp_path: Path) -> None:
    bag.with_name("broken.h5").write_bytes(b"x")
    calls = []

    def on_progress(task: str, done: int, total: int, note: str = "") -> None:
        calls.append((done, total))

    summary = convert(str(bag.parent), tmp_path / "out", dtype="float16", on_progress=on_progress)
    assert summary.counts == {"converted": 1, "present": 0, "failed": 1}
    assert list(summary.failures) == ["broken"]
    assert "broken.h5" in summary.failures["broken"]
    assert list(summary.to_frame()["status"]) == ["converted", "failed"]
    assert read_bag(summary.out / "a.h5").features.dtype == np.float16
    assert calls == [(0, 2), (1, 2), (2, 2)]


def test_whole_numbers_and_floats_are_the_same_settings(bag: Path, tmp_path: Path) -> None:
    convert(bag, tmp_path / "out", patch_size=512)
    again = convert([bag], tmp_path / "out", patch_size=512.0)
    assert again.counts == {"converted": 0, "present": 1, "failed": 0}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layout": "tridnet"}, "`layout=tridnet`; did you mean 'trident'"),
        ({"dtype": "int8"}, "`dtype=int8`; known are: float16, float32"),
        ({"patch_size": 0}, "`patch_size` is 0; expected a number above zero"),
        ({"mpp": "fine"}, "`mpp` is 'fine'"),
        ({"limit_s": -1}, "`limit_s` is -1"),
        ({"workers": 0}, "`workers` is 0"),
        ({"coords": "missing"}, "missing: does not exist"),
        ({"items": "missing.h5"}, "missing.h5: does not exist"),
        ({"out": __file__}, "is a file; expected a folder"),
    ],
)
def test_wrong_arguments_are_rejected_before_anything_is_written(
    bag: Path, tmp_path: Path, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        convert(**{"items": bag, "out": tmp_path / "out"} | arguments)
    assert not (tmp_path / "out").exists()


def test_a_checkpoint_becomes_a_model_folder(checkpoint: Path, tmp_path: Path) -> None:
    converted = convert_model(str(checkpoint), tmp_path / "model", model="abmil")
    assert converted.from_checkpoint["in_dim"] == 6
    saved = sacmil.load_model(tmp_path / "model")
    assert torch.equal(saved.head.weight, OFFICIAL["classifier.0.weight"])


def test_a_model_is_replaced_with_overwrite_only(checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    convert_model(checkpoint, out, model="abmil")
    with pytest.raises(OptionError, match="exists; choose another folder, or add `overwrite=True`"):
        convert_model(checkpoint, out, model="abmil")
    convert_model(checkpoint, out, model="abmil", options={"dropout": 0.5}, overwrite=True)
    assert sacmil.load_model(out).options["dropout"] == 0.5


def test_a_folder_is_no_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is not a file; expected one checkpoint"):
        convert_model(tmp_path, tmp_path / "model", model="abmil")
