"""A wrong call of a public function says what was found and what to give; it destroys nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from answering import make_bag, write_bags, write_model, write_run
from predicted import predicted

import sacmil
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.errors import OptionError, SacMILError
from sacmil.results import write_predictions

pytestmark = pytest.mark.usefixtures("inline_workers")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    write_bags(tmp_path / "bags", "a", "b")
    write_model(tmp_path / "model")
    write_predictions(tmp_path / "run" / "predictions.csv", predicted(("a", "b")))
    (tmp_path / "file").write_text("mine")
    return tmp_path


CALLS: dict[str, Callable[[Path], Any]] = {
    "items` is \\[\\]": lambda at: sacmil.predict_slides([], at / "model", at / "out"),
    "items` is None": lambda at: sacmil.predict_slides(None, at / "model", at / "out"),
    "models` is \\[\\]": lambda at: sacmil.predict_slides(at / "bags", [], at / "out"),
    "models` is 3": lambda at: sacmil.predict_slides(at / "bags", 3, at / "out"),
    "limit_s` is -1": lambda at: sacmil.predict_slides(
        at / "bags", at / "model", at / "out", limit_s=-1
    ),
    "bags` is \\[\\]": lambda at: sacmil.draw_heatmaps([], at / "model", at / "out"),
    "top` is -1": lambda at: sacmil.draw_heatmaps(at / "bags", at / "model", at / "out", top=-1),
    "model: holds a run": lambda at: sacmil.draw_heatmaps(at / "bags", at / "model", at / "model"),
    "file: is a file": lambda at: sacmil.draw_heatmaps(at / "bags", at / "model", at / "file"),
    "no table of embeddings": lambda at: sacmil.embed_bags(
        at / "bags", at / "model", at / "bags" / "a.h5"
    ),
    "bags: is a folder": lambda at: sacmil.embed_bags(at / "bags", at / "model", at / "bags"),
    "runs` is \\[\\]": lambda at: sacmil.compare([]),
    "runs` is 3": lambda at: sacmil.evaluate(3),
    "no metric 'nope'": lambda at: sacmil.evaluate(at / "run", metrics="nope"),
    "metrics` is empty": lambda at: sacmil.evaluate(at / "run", metrics=[]),
    "level is 95": lambda at: sacmil.compare(at / "run", level=95),
    "seed is -1": lambda at: sacmil.compare(at / "run", seed=-1),
    "out` is for predictions": lambda at: sacmil.evaluate(at / "run", out=at / "out"),
    "dataset` is 'table'": lambda at: sacmil.evaluate(at / "model", "table"),
    "sizes` is \\[\\]": lambda at: sacmil.export_model(at / "model", at / "out", sizes=[]),
    "items` is \\{\\}": lambda at: sacmil.convert({}, at / "out"),
}


@pytest.mark.parametrize("message", CALLS)
def test_a_wrong_call_names_the_argument(here: Path, message: str) -> None:
    with pytest.raises(SacMILError, match=message):
        CALLS[message](here)
    assert not (here / "out").exists()
    assert (here / "file").read_text() == "mine"
    assert sacmil.read_bag(here / "bags" / "a.h5").slide_id == "a"


def test_predictions_of_a_run_are_not_replaced_by_those_on_a_dataset(tmp_path: Path) -> None:
    bags = write_bags(tmp_path / "bags", "a", "b")
    run = write_run(tmp_path / "run")
    (run / "config.yaml").write_text("abmil: {}\n")
    cohort = Cohort((LabeledSlide("a", "p", 0), LabeledSlide("b", "q", 1)), ("normal", "tumour"))
    dataset = sacmil.Dataset(cohort, bags, min_patients=0)
    with pytest.raises(OptionError, match="holds a run or a model; choose another `out`"):
        sacmil.evaluate(run, dataset, out=run)


def test_a_run_is_accepted_as_a_model(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", 2)
    (folder / "provenance.json").write_text("{}")
    run = sacmil.Run(folder)
    write_bags(tmp_path / "bags", "a")
    found = sacmil.predict_slides(tmp_path / "bags", run, tmp_path / "out", heatmaps=False)
    assert found.models[0].members == 2
    assert {"p_tumour", "spread_tumour"} <= set(found.to_frame().columns)
    exported = sacmil.export_model(run, tmp_path / "exported", sizes=[4])
    with pytest.raises(SacMILError, match="is exported already"):
        sacmil.export_model(exported, tmp_path / "again")
    with pytest.raises(OptionError, match=r"expected a sacmil\.Bag; read a file with"):
        sacmil.load_runtime(exported).predict(str(tmp_path / "bags" / "a.h5"))
    assert len(sacmil.load_runtime(exported).predict(make_bag("a")).members) == 2
