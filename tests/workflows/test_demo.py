"""A reduced demonstration: its files, and that its numbers are those of its own predictions."""

from __future__ import annotations

import csv
import re

import pytest

from sacmil import load_model, predict, read_bag
from sacmil.evaluation.metrics import accuracy, auc
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
