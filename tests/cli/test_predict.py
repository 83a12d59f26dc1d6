"""``sacmil predict``: answers on the terminal, a folder of them, and what could not be answered."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from answering import make_bag, write_bags, write_model, write_run

from sacmil import write_bag
from sacmil.cli.predict import _make_view_command


@pytest.fixture
def given(tmp_path: Path) -> tuple[object, ...]:
    bags = write_bags(tmp_path / "bags", "a", "b", "c")
    model = write_run(tmp_path / "run", 2)
    return ("predict", bags, "--model", model, "--out", tmp_path / "out", "--device", "cpu")


def test_bags_are_answered_and_get_their_pages(
    sacmil: Callable, given: tuple[object, ...], tmp_path: Path
) -> None:
    done = sacmil(*given, "--report")
    assert done.code == 0, done.err
    assert "3 of 3 predicted" in done.out
    assert done.out.count(" ± ") == 3
    out = tmp_path / "out"
    assert done.out.endswith(f"view them: sacmil view {out}\n")
    assert sorted(page.name for page in (out / "reports").iterdir()) == [
        "a.html",
        "b.html",
        "c.html",
    ]
    page = (out / "reports" / "a.html").read_text()
    assert "Research use only" in page
    assert "data:image/jpeg" in page


def test_one_bad_item_is_reported_in_a_sentence_and_in_the_exit_code(
    sacmil: Callable, given: tuple[object, ...], tmp_path: Path
) -> None:
    write_bag(tmp_path / "bags" / "b.h5", make_bag("b", mpp=0.25))
    done = sacmil(*given, "--no-heatmaps")
    assert done.code == 1
    assert "2 of 3 predicted" in done.out
    (message,) = (line for line in done.err.splitlines() if line.startswith("Error: "))
    assert "its tiles are 64 µm wide, the model's 128 µm" in message
    insisted = sacmil(*given, "--no-heatmaps", "--allow-mismatch")
    assert insisted.code == 0
    assert "Warning: " in insisted.err


def test_the_viewers_command_names_where_the_slides_are(tmp_path: Path) -> None:
    inside, outside = tmp_path / "out" / "slides" / "a.tif", tmp_path / "my slides" / "b.tif"
    records = [SimpleNamespace(slide=slide) for slide in (str(inside), str(outside), None)]
    words = shlex.split(_make_view_command(SimpleNamespace(records=records), tmp_path / "out"))
    assert words == ["sacmil", "view", str(tmp_path / "out"), "--slides", str(outside.parent)]


@pytest.mark.parametrize("file", ["card.json", "model.safetensors"])
def test_a_truncated_model_is_one_sentence(sacmil: Callable, tmp_path: Path, file: str) -> None:
    model = write_model(tmp_path / "m")
    bags = write_bags(tmp_path / "bags", "a")
    (model / file).write_bytes((model / file).read_bytes()[:60])
    done = sacmil("predict", bags, "--model", model, "--out", tmp_path / "out")
    assert done.code == 1
    assert done.err.startswith(f"Error: {model}")
    assert done.err.count("\n") == 1


@pytest.mark.slow
def test_killed_outright_it_goes_on_where_it_was(
    sacmil: Callable, sacmil_process: Callable, given: tuple[object, ...], tmp_path: Path
) -> None:
    dying = """
import os, signal
from sacmil.results import Ensemble
predict = Ensemble.predict
def dying(self, bag):
    if bag.slide_id == "b":
        os.kill(os.getpid(), signal.SIGKILL)
    return predict(self, bag)
Ensemble.predict = dying
"""
    killed = sacmil_process(*given, "--no-heatmaps", before=dying)
    assert killed.code == -9
    first = tmp_path / "out" / "answers" / "a.json"
    before = first.stat().st_mtime_ns
    assert not (tmp_path / "out" / "predictions.csv").exists()
    done = sacmil(*given, "--no-heatmaps")
    assert done.code == 0, done.err
    assert first.stat().st_mtime_ns == before
    whole = json.loads((tmp_path / "out" / "predictions.json").read_text())
    assert [slide["slide_id"] for slide in whole["slides"]] == ["a", "b", "c"]
    assert list((tmp_path / "out").rglob("*.partial")) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--model", "nowhere"), "does not exist"),
        ((), "Missing option '--model'"),
        (("--device", "cuda:77"), "cuda:77"),
    ],
)
def test_wrong_options_are_reported(
    sacmil: Callable, tmp_path: Path, words: tuple[str, ...], message: str
) -> None:
    bags = write_bags(tmp_path / "bags", "a")
    model = ("--model", write_model(tmp_path / "m")) if "--device" in words else ()
    done = sacmil("predict", bags, "--out", tmp_path / "out", *model, *words)
    assert done.code != 0
    assert message in done.err


def test_a_name_cannot_steer_the_terminal(sacmil: Callable, tmp_path: Path) -> None:
    name = "a\x1b[31mb"
    write_bag(tmp_path / "bags" / f"{name}.h5", make_bag(name))
    model = write_model(tmp_path / "m")
    line = ("--model", model, "--out", tmp_path / "out", "--no-heatmaps")
    done = sacmil("predict", tmp_path / "bags", *line)
    assert done.code == 0, done.err
    assert "\x1b" not in done.out + done.err


def test_answers_do_not_go_among_bags(sacmil: Callable, tmp_path: Path) -> None:
    bags = write_bags(tmp_path / "bags", "a")
    model = write_model(tmp_path / "model")
    done = sacmil("predict", bags, "--model", model, "--out", bags)
    assert done.code == 1
    assert "is one of the inputs; choose another --out" in done.err
    done = sacmil("predict", bags / "a.h5", "--model", model, "--out", bags)
    assert done.code == 1
    assert "holds bags such as a.h5" in done.err
    assert [file.name for file in bags.iterdir()] == ["a.h5"]
