"""Calibrating a run, and what predictions and evaluations make of it."""

from __future__ import annotations

import csv
import json
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answering import CLASSES, make_bag, write_bags, write_run
from small_cohort import write_material
from validated_run import LABELS, change_rows, draw_predictions, write_validated_run

import sacmil
from sacmil import Run, cross_validate, export_model, load_runtime, predict_slides
from sacmil.card import hash_card, read_card
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.cohorts.dataset import Dataset
from sacmil.cohorts.splits import make_folds
from sacmil.deploy.load import load_ensemble
from sacmil.errors import CohortError, CohortWarning, ModelFolderError, OptionError, RunError
from sacmil.evaluation.fold_results import select_test_rows
from sacmil.metrics.classification import METRICS
from sacmil.results import Predictions, read_predictions, read_results, write_predictions
from sacmil.tasks import Classification, Regression
from sacmil.tasks.calibration import Calibration
from sacmil.workflows.calibrate import calibrate
from sacmil.workflows.evaluate import evaluate
from sacmil.workflows.runs import OPERATING_POINTS_HEADING

THREE = Classification(("a", "b", "c"))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return write_validated_run(tmp_path / "run")


def folders_of(run: Path) -> list[Path]:
    return Run(run).model_folders()


def calibration_of(folder: Path) -> Calibration:
    return Calibration.from_card(read_card(folder), folder)


def rewrite(run: Path, change: Callable[[Predictions], Predictions]) -> None:
    for folder in folders_of(run):
        file = folder / "predictions.csv"
        write_predictions(file, change(read_predictions(file)))


# --- what is written -----------------------------------------------------------------------------


def test_cards_get_the_calibration_of_their_own_validation_set(run: Path) -> None:
    found = calibrate(run)
    assert [one.folder for one in found.models] == folders_of(run)
    assert [calibration_of(one.folder) for one in found.models] == [
        one.calibration for one in found.models
    ]
    temperatures = [one.calibration.temperatures[0] for one in found.models]
    assert len(set(temperatures)) == 2
    assert all(1.5 < value < 7 for value in temperatures), "predictions are three times too certain"
    frame = found.to_frame()
    assert frame["fold"].tolist() == [0, 1]
    assert frame["of"].tolist() == ["tumour", "tumour"]
    assert frame["temperature"].tolist() == temperatures
    assert (frame["log_loss"] < frame["log_loss_before"]).all()
    assert (frame["patients"] == 40).all()


def test_nothing_else_in_a_run_changes(run: Path) -> None:
    files = {file: file.read_bytes() for file in run.rglob("*") if file.is_file()}
    calibrate(run)
    for file, content in files.items():
        if file.name != "card.json":
            assert file.read_bytes() == content
            continue
        changed = json.loads(file.read_text())
        assert changed.pop("calibration")["rule"] == "youden"
        assert changed["card_sha256"] == hash_card(json.loads(file.read_text()))
        before = json.loads(content)
        assert "calibration" not in before
        assert changed | {"card_sha256": None} == before | {"card_sha256": None}
    assert not list(run.rglob("*.partial"))


def test_cards_that_were_never_calibrated_do_not_mention_it(tmp_path: Path) -> None:
    run = write_validated_run(tmp_path / "run", 1)
    card = read_card(folders_of(run)[0])
    assert card.calibration is None
    text = (folders_of(run)[0] / "card.json").read_text()
    assert "calibration" not in text
    assert card.to_json() == text


def test_another_call_replaces_the_calibration(run: Path) -> None:
    calibrate(run)
    first = [calibration_of(folder) for folder in folders_of(run)]
    calibrate(Run(run), sensitivity=0.95)
    second = [calibration_of(folder) for folder in folders_of(run)]
    assert [one.temperatures for one in first] == [one.temperatures for one in second]
    assert all(one.rule == "sensitivity" and one.reached[0][0] >= 0.95 for one in second)
    calibrate(run)
    assert [calibration_of(folder) for folder in folders_of(run)] == first


def test_test_rows_are_never_used(run: Path) -> None:
    calibrate(run)
    first = [calibration_of(folder) for folder in folders_of(run)]
    rewrite(run, lambda predictions: change_rows(predictions, "test"))
    calibrate(run)
    assert [calibration_of(folder) for folder in folders_of(run)] == first
    rewrite(run, lambda predictions: change_rows(predictions, "val"))
    calibrate(run)
    assert [calibration_of(folder) for folder in folders_of(run)] != first


@pytest.mark.usefixtures("inline_workers")
def test_a_calibrated_run_is_finished_and_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sacmil.tasks.calibration.MIN_PATIENTS", 4)
    material = write_material(tmp_path / "bags", patients=24)
    folds = make_folds(material.cohort, 2, validation=0.5)
    given: dict[str, Any] = {
        "folds": folds,
        "out": tmp_path / "run",
        "options": {"epochs": 2, "monitor": "val_loss", "lr": 1e-2},
        "devices": ["cpu"],
    }
    cross_validate(material.data, ["mean_pool"], **given)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CohortWarning)  # few patients, which are separated
        calibrate(tmp_path / "run")
    cards = {folder: (folder / "card.json").read_bytes() for folder in folders_of(tmp_path / "run")}
    weights = [folder / "model.safetensors" for folder in cards]
    times = [file.stat().st_mtime_ns for file in weights]
    again = cross_validate(material.data, ["mean_pool"], **given)
    assert [file.stat().st_mtime_ns for file in weights] == times
    assert {folder: (folder / "card.json").read_bytes() for folder in cards} == cards
    shutil.rmtree(again.model_folders()[1])
    cross_validate(material.data, ["mean_pool"], **given)
    assert read_card(again.model_folders()[0]).calibration
    assert read_card(again.model_folders()[1]).calibration is None


def test_a_run_of_train_is_calibrated_too(tmp_path: Path) -> None:
    run = write_validated_run(tmp_path / "run", 1)
    moved = tmp_path / "trained"
    shutil.copytree(folders_of(run)[0], moved)
    (one,) = calibrate(moved).models
    assert (one.folder, one.model, one.fold) == (moved, "abmil", 0)
    assert evaluate(moved, calibrated=True, draws=20).calibration is not None


# --- what is missing -----------------------------------------------------------------------------


def test_a_run_without_validation_predictions_says_how_to_get_them(run: Path) -> None:
    rewrite(run, select_test_rows)
    message = r"2 of 2 models have no validation predictions.*monitor=.*`validation=0.3`"
    with pytest.raises(RunError, match=message):
        calibrate(run)


def test_all_bad_validation_sets_are_listed_and_nothing_is_written(tmp_path: Path) -> None:
    run = write_validated_run(tmp_path / "run", 3)

    def keep_one_class(predictions: Predictions) -> Predictions:
        wrong = (predictions.split == "val") & (predictions.label == 1)
        return predictions.select(~wrong) if predictions.fold[0] else predictions

    rewrite(run, keep_one_class)
    with pytest.raises(CohortError, match="2 problems") as rejected:
        calibrate(run)
    assert "abmil/seed_0/fold_1: all are normal" in str(rejected.value)
    assert "abmil/seed_0/fold_2: all are normal" in str(rejected.value)
    assert all(read_card(folder).calibration is None for folder in folders_of(run))


def test_a_run_of_numbers_cannot_be_calibrated(tmp_path: Path) -> None:
    run = write_validated_run(tmp_path / "run", 1)
    task = Regression("ki67")
    rows = [(f"s{n}", f"p{n}", "val", 0, 0, "abmil", float(n)) for n in range(30)]
    table = Predictions.from_rows(task.card, rows, np.arange(30.0))
    write_predictions(folders_of(run)[0] / "predictions.csv", table)
    with pytest.raises(OptionError, match="regression cannot be calibrated"):
        calibrate(run)


def test_a_folder_without_models_is_no_run(tmp_path: Path) -> None:
    write_predictions(tmp_path / "predictions.csv", draw_predictions(THREE, 0))
    with pytest.raises(RunError, match="has no trained models"):
        calibrate(tmp_path)
    with pytest.raises(RunError, match="expected the folder of a run with its trained models"):
        evaluate(tmp_path, calibrated=True)


def test_a_set_that_is_separated_is_a_warning(run: Path) -> None:
    def separate(predictions: Predictions) -> Predictions:
        p = np.where(predictions.label == 1, 0.9, 0.2)
        return replace(predictions, values=np.stack([1 - p, p], axis=1))

    rewrite(run, separate)
    with pytest.warns(CohortWarning, match=r"40 patients\), no temperature improves the log loss"):
        calibrate(run)


def test_a_model_no_better_than_chance_is_a_warning(tmp_path: Path) -> None:
    run = write_validated_run(tmp_path / "run", 1)
    rewrite(run, lambda found: replace(found, values=np.full_like(found.values, 0.5)))
    with pytest.warns(CohortWarning) as warned:
        calibrate(run)
    assert any("found no better than by chance" in str(one.message) for one in warned)


def test_a_run_that_is_not_calibrated_says_so_everywhere(run: Path, tmp_path: Path) -> None:
    bags, message = write_bags(tmp_path / "bags", "s0"), "is not calibrated"
    with pytest.raises(ModelFolderError, match=message):
        predict_slides(bags, run, tmp_path / "out", calibrated=True)
    assert not (tmp_path / "out").exists()
    with pytest.raises(ModelFolderError, match=message):
        evaluate(run, calibrated=True)
    with pytest.raises(ModelFolderError, match=message):
        evaluate(run, make_dataset(bags), calibrated=True)


# --- predictions ---------------------------------------------------------------------------------


def make_dataset(bags: Path, classes: tuple[str, ...] = CLASSES) -> Dataset:
    names = sorted(file.stem for file in bags.glob("*.h5"))
    slides = [LabeledSlide(name, name, number % 2) for number, name in enumerate(names)]
    return Dataset(Cohort(tuple(slides), classes), bags, min_patients=0, check_headers=False)


def test_members_are_calibrated_before_their_mean(run: Path) -> None:
    calibrate(run)
    bag, raw = make_bag("s"), load_ensemble(run)
    found = load_ensemble(run, calibrated=True).predict(bag)
    each = [calibration_of(folder) for folder in folders_of(run)]
    members = raw.predict(bag).members
    assert members is not None
    expected = [one.apply(values) for one, values in zip(each, members, strict=True)]
    np.testing.assert_allclose(found.values, np.mean(expected, axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.members, expected, rtol=1e-12)
    assert found.thresholds == pytest.approx((np.mean([one.thresholds[0] for one in each]),))
    assert raw.predict(bag).thresholds is None


def test_predicted_follows_the_threshold_in_all_files(tmp_path: Path) -> None:
    run, bags = write_validated_run(tmp_path / "run"), write_bags(tmp_path / "bags", "s0", "s1")
    calibrate(run)
    given: dict[str, Any] = {"device": "cpu", "heatmaps": False, "report": True}
    raw = predict_slides(bags, run, tmp_path / "out", **given)
    done = predict_slides(bags, run, tmp_path / "out", calibrated=True, **given)
    again = predict_slides(bags, run, tmp_path / "raw", **given)
    for one, other in zip(raw.records, again.records, strict=True):
        assert one.answers[0].values == other.answers[0].values
    ensemble = load_ensemble(run, calibrated=True, device="cpu")
    with (tmp_path / "out" / "predictions.csv").open() as file:
        rows = list(csv.DictReader(file))
    results = read_results(tmp_path / "out")
    for number, row in enumerate(rows):
        expected = ensemble.predict(sacmil.read_bag(bags / f"s{number}.h5"))
        assert float(row["p_tumour"]) == pytest.approx(expected.values[1], rel=1e-12)
        assert row["predicted"] == expected.predicted_class
        assert row["model_hash"] == ensemble.hash != raw.models[0].hash
        (stored,) = results.slides[number].answers
        assert stored.thresholds == expected.thresholds
        page = (tmp_path / "out" / "reports" / f"s{number}.html").read_text()
        assert f"The model predicts {expected.predicted_class}: the calibrated" in page
        assert f"threshold of {expected.thresholds[0]:.3f}" in page
        assert "<dt>Calibration</dt><dd>temperature" in page
    assert done.to_frame()["predicted"].tolist() == [row["predicted"] for row in rows]
    assert "thresholds" not in (tmp_path / "raw" / "results.json").read_text()
    assert "thresholds" not in (tmp_path / "raw" / "predictions.json").read_text()
    assert "Calibration" not in (tmp_path / "raw" / "reports" / "s0.html").read_text()
    repeated = predict_slides(bags, run, tmp_path / "out", calibrated=True, **given)
    assert [one.answers for one in repeated.records] == [one.answers for one in done.records]


def test_heatmaps_state_the_calibrated_prediction(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate(run)
    bags, notes = write_bags(tmp_path / "bags", "s0"), []

    def draw(*_: object, note: str, **__: object) -> dict[str, Path]:
        notes.append(note)
        return {}

    monkeypatch.setattr(sacmil.heatmap, "draw_heatmap", draw)
    for calibrated in (False, True):
        sacmil.draw_heatmaps(bags, run, tmp_path / "out", top=0, calibrated=calibrated)
        ensemble = load_ensemble(run, calibrated=calibrated, device="cpu")
        values = ensemble.predict(sacmil.read_bag(bags / "s0.h5")).values
        assert f"normal {values[0]:.2f}, tumour {values[1]:.2f}" in notes[-1]
    assert notes[0] != notes[1]


@pytest.mark.parametrize("wrong", [[0.2, 0.3], [float("inf")], ["high"], 0.4])
def test_thresholds_that_are_none_are_rejected(run: Path, tmp_path: Path, wrong: object) -> None:
    calibrate(run)
    out = tmp_path / "out"
    bags = write_bags(tmp_path / "bags", "s0")
    predict_slides(bags, run, out, device="cpu", heatmaps=False, calibrated=True)
    content = json.loads((out / "results.json").read_text())
    content["slides"][0]["answers"][0]["thresholds"] = wrong
    (out / "results.json").write_text(json.dumps(content))
    with pytest.raises(RunError, match="is not a valid file of sacmil predict"):
        read_results(out)


@pytest.mark.parametrize("kind", ["abmil", "mean_pool"])
@pytest.mark.usefixtures("onnx_registry")
def test_torch_and_onnx_agree_on_calibrated_predictions(tmp_path: Path, kind: str) -> None:
    run = write_validated_run(tmp_path / "run", kind=kind)
    calibrate(run, sensitivity=0.9)
    exported = export_model(run, tmp_path / "exported", sizes=[2, 12])
    there, here = load_ensemble(run, calibrated=True), load_runtime(exported, calibrated=True)
    for seed in range(4):
        bag = make_bag("s", seed)
        one, other = there.predict(bag), here.predict(bag)
        np.testing.assert_allclose(one.values, other.values, atol=1e-5)
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)
        assert one.thresholds == other.thresholds
        assert one.predicted_class == other.predicted_class
        raw = load_runtime(exported).predict(bag)
        assert raw.thresholds is None
        assert abs(raw.values - other.values).max() > 1e-3
    assert there.hash == here.hash
    single = load_runtime(exported / "member_1", calibrated=True)
    assert single.predict(bag).thresholds == calibration_of(folders_of(run)[1]).thresholds


def test_an_export_made_before_the_calibration_says_so(run: Path, tmp_path: Path) -> None:
    shutil.copytree(folders_of(run)[0], tmp_path / "one")
    exported = export_model(tmp_path / "one", tmp_path / "exported", sizes=[2])
    with pytest.raises(ModelFolderError, match="export it again"):
        load_runtime(exported, calibrated=True)


def test_several_models_have_the_mean_of_their_thresholds(tmp_path: Path) -> None:
    first = write_validated_run(tmp_path / "first")
    second = write_validated_run(tmp_path / "second", 1)
    calibrate(first)
    calibrate(second, sensitivity=0.99)
    bags = write_bags(tmp_path / "bags", "s0")
    done = predict_slides(
        bags, [first, second], tmp_path / "out", device="cpu", heatmaps=False, calibrated=True
    )
    one, two, both = done.records[0].select_models(done.models)
    assert one.thresholds is not None
    assert two.thresholds is not None
    assert both.thresholds == pytest.approx((np.mean([*one.thresholds, *two.thresholds]),))


# --- evaluations ---------------------------------------------------------------------------------


def read_points(evaluation: sacmil.Evaluation) -> dict[tuple[str, str], Any]:
    table = evaluation.make_report().extra_tables[OPERATING_POINTS_HEADING]
    return {(str(row["of"]), str(row["metric"])): row for row in table.records}


def test_each_fold_is_tested_with_its_own_calibration(run: Path) -> None:
    calibrate(run)
    found = evaluate(run, calibrated=True, metrics=["log_loss", "auc"], draws=200)
    raw = evaluate(run, metrics=["log_loss", "auc"], draws=20)
    points = read_points(found)
    expected: dict[str, list[float]] = {}
    for folder in folders_of(run):
        test, calibration = select_test_rows(read_predictions(folder)), calibration_of(folder)
        values = calibration.apply(test.values)
        above, truth = values[:, 1] >= calibration.thresholds[0], test.label == 1
        for name, value in {
            "sensitivity": above[truth].mean(),
            "specificity": (~above)[~truth].mean(),
            "ppv": truth[above].mean(),
            "npv": (~truth)[~above].mean(),
            "log_loss": METRICS["log_loss"](test.label, values),
            "log_loss_before": METRICS["log_loss"](test.label, test.values),
            "calibration_error": METRICS["calibration_error"](test.label, values),
            "calibration_error_before": METRICS["calibration_error"](test.label, test.values),
            "threshold": calibration.thresholds[0],
        }.items():
            expected.setdefault(name, []).append(value)
    threshold = np.mean(expected.pop("threshold"))
    assert {name for _, name in points} == expected.keys()
    for name, values in expected.items():
        row = points["tumour", name]
        assert row["mean"] == pytest.approx(np.mean(values), abs=1e-9)
        assert row["threshold"] == pytest.approx(threshold)
        if not name.startswith("calibration_error"):
            assert row["low"] < row["mean"] < row["high"]
    losses = [one.estimates["abmil"]["log_loss"].mean for one in (raw, found)]
    assert losses == pytest.approx([np.mean(expected[f"log_loss{s}"]) for s in ("_before", "")])
    assert losses[1] < losses[0] - 0.1
    assert raw.calibration is None
    assert OPERATING_POINTS_HEADING not in raw.make_report().extra_tables


def test_models_are_compared_by_calibrated_probabilities(run: Path, tmp_path: Path) -> None:
    other = write_validated_run(tmp_path / "other")
    rewrite(other, lambda found: replace(found, values=0.5 + (found.values - 0.5) / 2))
    for one in (run, other):
        calibrate(one)
    given: dict[str, Any] = {"metric": "log_loss", "draws": 20}
    found = sacmil.compare([run, other], calibrated=True, **given)
    losses = [
        evaluate(one, calibrated=True, metrics=["log_loss"], draws=20) for one in (run, other)
    ]
    means = [one.estimates["abmil"]["log_loss"].mean for one in losses]
    assert abs(found.pairs[0].difference) == pytest.approx(abs(means[0] - means[1]))
    assert sacmil.compare([run, other], **given).pairs[0].difference == 0, "before calibration"
    assert OPERATING_POINTS_HEADING in found.make_report().extra_tables


def test_the_interval_of_sensitivity_is_that_of_its_patients(tmp_path: Path) -> None:
    run = write_validated_run(tmp_path / "run", 1)
    calibrate(run, sensitivity=0.8)
    row = read_points(evaluate(run, calibrated=True, draws=2000))["tumour", "sensitivity"]
    test = select_test_rows(read_predictions(run))
    positives = int((test.label == 1).sum())
    spread = np.sqrt(row["mean"] * (1 - row["mean"]) / positives)
    assert row["high"] - row["low"] == pytest.approx(2 * 1.96 * spread, rel=0.25)


def test_a_report_has_the_table_and_files_of_operating_points(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sacmil.evaluation.report.Report.plots", {})
    calibrate(run, sensitivity=0.9)
    page = evaluate(run, calibrated=True, draws=50).write_report(tmp_path / "report")
    text = page.read_text()
    assert "<h2>Operating points</h2>" in text
    assert "sensitivity of at least 0.9" in text
    assert "log loss" in text.lower()
    assert (tmp_path / "report" / "operating_points.csv").is_file()


@pytest.mark.parametrize("classes", [CLASSES, CLASSES[::-1]])
def test_a_model_on_another_cohort_is_tested_at_its_threshold(
    run: Path, tmp_path: Path, classes: tuple[str, ...]
) -> None:
    calibrate(run)
    bags = write_bags(tmp_path / "bags", *(f"s{n}" for n in range(12)))
    found = evaluate(run, make_dataset(bags, classes), calibrated=True, draws=50)
    ensemble = load_ensemble(run, calibrated=True)
    raw = load_ensemble(run)
    tumor = classes.index("tumour")
    for row, name in enumerate(found.predictions.slide_id.tolist()):
        bag = sacmil.read_bag(bags / f"{name}.h5")
        expected = ensemble.predict(bag).values[1]
        assert found.predictions.values[row, tumor] == pytest.approx(expected, rel=1e-12)
        assert found.calibration is not None
        before = found.calibration.raw.values[row, tumor]
        assert before == pytest.approx(raw.predict(bag).values[1], rel=1e-12)
    threshold = ensemble.predict(bag).thresholds[0]
    above = found.predictions.values[:, tumor] >= threshold
    truth = found.predictions.label == tumor
    points = read_points(found)
    assert points["tumour", "sensitivity"]["mean"] == pytest.approx(above[truth].mean())
    assert points["tumour", "specificity"]["mean"] == pytest.approx((~above)[~truth].mean())
    assert points["tumour", "npv"]["threshold"] == pytest.approx(threshold)


def test_more_classes_have_a_temperature_only(tmp_path: Path) -> None:
    run = write_validated_run(tmp_path / "run", task=THREE)
    found = calibrate(run)
    assert found.to_frame()["of"].tolist() == ["all", "all"]
    assert found.to_frame()["threshold"].isna().all()
    assert "–" in found.table.rows[0][5].text
    points = read_points(evaluate(run, calibrated=True, draws=50))
    names = {"log_loss", "log_loss_before", "calibration_error", "calibration_error_before"}
    assert set(points) == {("all", name) for name in names}
    assert points["all", "log_loss"]["mean"] < points["all", "log_loss_before"]["mean"]


def test_labels_have_a_temperature_and_a_threshold_each(tmp_path: Path) -> None:
    run = write_validated_run(tmp_path / "run", task=LABELS)
    frame = calibrate(run, sensitivity=0.9).to_frame()
    assert frame["of"].tolist() == ["er", "pr"] * 2
    assert frame["temperature"].nunique() == frame["threshold"].nunique() == 4
    assert (frame["sensitivity"] >= 0.9).all()
    found = evaluate(run, calibrated=True, draws=50)
    points = read_points(found)
    assert {of for of, _ in points} == {"er", "pr"}
    expected = []
    for folder in folders_of(run):
        test, calibration = select_test_rows(read_predictions(folder)), calibration_of(folder)
        above = calibration.apply(test.values)[:, 1] >= calibration.thresholds[1]
        expected.append(above[test.targets[:, 1] == 1].mean())
    assert points["pr", "sensitivity"]["mean"] == pytest.approx(np.mean(expected))
    bags = write_bags(tmp_path / "bags", "s0", "s1")
    done = predict_slides(
        bags, run, tmp_path / "out", device="cpu", heatmaps=False, calibrated=True
    )
    (answer,) = done.records[0].answers
    present = [
        name
        for name, value, threshold in zip(
            LABELS.labels, answer.values, answer.thresholds, strict=True
        )
        if value >= threshold
    ]
    assert set(done.to_frame()["predicted"][0].split(", ")) == set(present or ["none"])
    assert read_results(tmp_path / "out").slides[0].answers[0].thresholds == answer.thresholds


def test_runs_of_one_model_keep_their_own_thresholds(tmp_path: Path) -> None:
    one = write_validated_run(tmp_path / "one")
    two = write_validated_run(tmp_path / "two", 1)
    calibrate(one)
    calibrate(two, sensitivity=0.99)
    found = evaluate([one, two], calibrated=True, draws=50)
    assert found.calibration is not None
    keys = {key: next(iter(names.values())) for key, names in found.calibration.thresholds.items()}
    assert keys == {
        ("one/abmil", 0, 0): calibration_of(folders_of(one)[0]).thresholds[0],
        ("one/abmil", 0, 1): calibration_of(folders_of(one)[1]).thresholds[0],
        ("two/abmil", 0, 0): calibration_of(folders_of(two)[0]).thresholds[0],
    }
    table = found.make_report().extra_tables[OPERATING_POINTS_HEADING]
    assert [row[0].text for row in table.rows] == ["one/abmil", "two/abmil"]
    assert "Youden's index or sensitivity of at least 0.99" in table.caption


def test_a_run_without_predictions_of_its_models_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no run folder"):
        calibrate(write_run(tmp_path / "run"))
