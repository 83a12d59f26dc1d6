"""evaluate and compare take runs or paths, and return pandas frames and reports."""

from __future__ import annotations

from pathlib import Path

import pytest
from predicted import predicted

import sacmil
from sacmil.errors import OptionError, RunError, RunWarning
from sacmil.results import write_predictions

FEW = {"draws": 50}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    write_predictions(tmp_path / "run" / "predictions.csv", predicted(("a", "b", "c")))
    return tmp_path / "run"


def test_a_comparison_is_a_frame_with_a_row_per_pair(run: Path) -> None:
    frame = sacmil.compare(run, **FEW).to_frame()
    assert frame[["first", "second"]].values.tolist() == [["a", "b"], ["a", "c"], ["b", "c"]]
    assert (frame["low"] <= frame["difference"]).all()
    assert (frame["difference"] <= frame["high"]).all()
    assert frame["significant"].dtype == bool


def test_a_run_its_path_and_a_list_are_compared_alike(run: Path) -> None:
    expected = sacmil.compare(str(run), **FEW).pairs
    assert sacmil.compare(sacmil.Run(run), **FEW).pairs == expected
    assert sacmil.compare([run / "predictions.csv"], **FEW).pairs == expected


def test_the_summary_has_the_compared_metric_too(run: Path) -> None:
    comparison = sacmil.compare(run, metric="brier", against="a", **FEW)
    assert [(pair.first, pair.second) for pair in comparison.pairs] == [("a", "b"), ("a", "c")]
    assert list(comparison.estimates["a"]) == ["accuracy", "auc", "f1", "brier"]


def test_one_model_cannot_be_compared(tmp_path: Path) -> None:
    write_predictions(tmp_path / "predictions.csv", predicted(("a",)))
    with pytest.raises(RunError, match="needs two models; found a"):
        sacmil.compare(tmp_path)


def test_an_evaluation_is_a_frame_with_a_row_per_model_and_metric(run: Path) -> None:
    frame = sacmil.evaluate(run, metrics=["auc", "f1"], **FEW).to_frame()
    assert frame[["model", "metric"]].values.tolist() == [
        [model, metric] for model in "abc" for metric in ("auc", "f1")
    ]
    assert (frame["low"] <= frame["mean"]).all()


def test_both_write_a_report(run: Path, tmp_path: Path) -> None:
    for found in (sacmil.evaluate(run, **FEW), sacmil.compare(run, **FEW)):
        page = found.write_report(tmp_path / "report")
        assert page == tmp_path / "report" / "report.html"
        assert "significant" in page.read_text()


def test_a_model_without_a_dataset_is_a_wrong_call(tmp_path: Path) -> None:
    model = sacmil.create_model("mean_pool", in_dim=4, num_classes=2)
    sacmil.save_model(tmp_path / "model", model)
    with pytest.raises(OptionError, match="without predictions; give a dataset"):
        sacmil.evaluate(tmp_path / "model")


def test_a_run_whose_folds_are_not_all_finished_is_a_warning(tmp_path: Path) -> None:
    write_predictions(tmp_path / "predictions.csv", predicted(("a", "b"), folds=2))
    (tmp_path / "splits").mkdir()
    for fold in range(2):
        (tmp_path / "splits" / f"splits_{fold}.csv").touch()
    (tmp_path / "provenance.json").write_text('{"seeds": [0]}')
    assert sacmil.evaluate(tmp_path).warnings == []  # and a warning would be an error here
    (tmp_path / "splits" / "splits_2.csv").touch()
    for workflow in (sacmil.evaluate, sacmil.compare):
        with pytest.warns(RunWarning, match="4 of 6 models are trained, and only these are used"):
            found = workflow(tmp_path / "predictions.csv", **FEW)
        assert "4 of 6 models" in found.make_report().warnings[0]
    (tmp_path / "provenance.json").write_text('{"seeds": [0, 1]}')
    (tmp_path / "config.yaml").write_text("{a: {}, b: {}, c: {}}")
    with pytest.warns(RunWarning, match="4 of 18 models"):
        sacmil.evaluate(tmp_path)
