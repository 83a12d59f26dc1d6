"""A reduced demonstration: its files, and that its numbers are those of its own predictions."""

from __future__ import annotations

import csv
import dataclasses
import re

import pytest

import sacmil.workflows.demo as demo
from sacmil import load_model, predict, read_bag
from sacmil.evaluation.metrics import accuracy, auc
from sacmil.training.loop import Fitted
from sacmil.workflows.demo import CLASSES, CONTESTANTS, Settings, run_demo

pytest.importorskip("matplotlib", reason="pip install 'sacmil[plots]'")


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    out = tmp_path_factory.mktemp("demo") / "report"
    told = []
    settings = Settings(slides=12, epochs=1)
    rows = run_demo(out, settings, lambda *event: told.append(event))
    return out, rows, told


def read_csv(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_table_is_computed_from_the_predictions(report) -> None:
    out, rows, _ = report
    predictions = read_csv(out / "predictions.csv")
    for row in rows:
        own = [line for line in predictions if line["model"] == row.name]
        labels = [CLASSES.index(line["label"]) for line in own]
        scores = [float(line["p_clustered"]) for line in own]
        assert len(own) == 4
        assert row.auc == pytest.approx(auc(labels, scores))
        assert row.accuracy == pytest.approx(accuracy(labels, [int(s > 0.5) for s in scores]))


def test_the_saved_models_give_the_saved_predictions(report) -> None:
    out, _, _ = report
    for name in CONTESTANTS:
        model = load_model(out / "models" / name.replace(" ", "_"))
        assert model.classes == CLASSES
        for line in read_csv(out / "predictions.csv"):
            if line["model"] == name:
                answer = predict(model, read_bag(out / "bags" / f"{line['slide_id']}.h5"))
                assert answer.probabilities[1] == pytest.approx(
                    float(line["p_clustered"]), abs=1e-5
                )


def test_the_page_needs_nothing_else(report) -> None:
    out, rows, _ = report
    page = (out / "index.html").read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert "http" not in page
    for row in rows:
        assert f"<td>{row.auc:.3f}</td>" in page


def test_progress_tells_every_task_to_its_end(report) -> None:
    _, _, told = report
    last = {task: (done, total) for task, done, total in told}
    assert len(last) == 1 + len(CONTESTANTS)
    assert all(done == total for done, total in last.values())


def test_nothing_half_written_is_left(report) -> None:
    out, _, _ = report
    assert list(out.rglob("*.partial")) == []


def untrained(monkeypatch, out):
    """A demonstration that only remembers which bags, with which labels, it would train on."""
    seen = []

    def samples_of(model, bags, labels):
        seen.append({bag.slide_id: label for bag, label in zip(bags, labels, strict=True)})

    def fit(model, samples, recipe, **rest):
        return Fitted(model.eval(), recipe.epochs, [])

    monkeypatch.setattr(demo, "fit", fit)
    monkeypatch.setattr(demo, "samples_of", samples_of)
    run_demo(out, Settings(slides=6, epochs=1), lambda *event: None)
    return seen, read_csv(out / "predictions.csv")


def test_no_slide_is_both_trained_on_and_predicted(monkeypatch, tmp_path) -> None:
    training, predictions = untrained(monkeypatch, tmp_path)
    settings = Settings(slides=6)
    made = demo.cluster(settings.slides, seed=settings.seed, **settings.cohort)
    labels = {bag.slide_id: label for bag, label in made}
    assert len(training) == len(CONTESTANTS)
    for name, trained in zip(CONTESTANTS, training, strict=True):
        tested = {
            line["slide_id"]: CLASSES.index(line["label"])
            for line in predictions
            if line["model"] == name
        }
        assert not trained.keys() & tested.keys(), "test slides leaked into training"
        assert trained | tested == labels
        assert len(trained) == 2 * len(tested)


def test_training_and_testing_use_the_bags_as_read_from_disk(monkeypatch, tmp_path) -> None:
    def read(file):
        bag = read_bag(file)
        return dataclasses.replace(bag, slide_id=f"{bag.slide_id} from disk")

    monkeypatch.setattr(demo, "read_bag", read)
    training, predictions = untrained(monkeypatch, tmp_path)
    used = {slide for seen in training for slide in seen}
    used |= {line["slide_id"] for line in predictions}
    written = {f"{file.stem} from disk" for file in (tmp_path / "bags").glob("*.h5")}
    assert used == written
