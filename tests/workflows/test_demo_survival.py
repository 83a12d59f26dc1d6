"""A reduced demonstration of survival: its files, its figures, and that nothing is done twice."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from inline_workers import use_inline_workers

from sacmil.cohorts.cohort import read_cohort
from sacmil.errors import RunError
from sacmil.evaluation.comparison import compare_models
from sacmil.models import create_model
from sacmil.results import read_predictions
from sacmil.workflows import survival_demo
from sacmil.workflows.demo import DemoSettings, run_demo
from sacmil.workflows.evaluate import evaluate
from sacmil.workflows.inputs import WorkflowCallbacks
from sacmil.workflows.survival_demo import (
    SurvivalDemoRun,
    SurvivalDemoSettings,
    run_survival_demo,
)

pytest.importorskip("matplotlib", reason="pip install 'sacmil[plots]'")

pytestmark = pytest.mark.slow  # every step has quick tests of its own
MODELS = ["mean_pool", "sac_mil_near_far"]
SETTINGS = SurvivalDemoSettings(slides=40, folds=2, epochs=1, pictures=2, instances=(20, 40), dim=6)


@pytest.fixture(scope="module", autouse=True)
def _fast():
    """Intervals of fewer draws: no test reads them. Tests of the pool start the processes."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_inline_workers(monkeypatch)
        for function in (compare_models, evaluate):
            fewer = partial(function, draws=50)
            monkeypatch.setattr(f"sacmil.workflows.survival_demo.{function.__name__}", fewer)
        yield


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> tuple[SurvivalDemoRun, list]:
    events: list = []
    out = tmp_path_factory.mktemp("demo") / "report"
    callbacks = WorkflowCallbacks(on_progress=lambda *event: events.append(event))
    return run_survival_demo(out, SETTINGS, callbacks), events


@pytest.fixture(scope="module")
def out(shown: tuple[SurvivalDemoRun, list]) -> Path:
    return shown[0].out


def test_the_table_has_both_models_and_the_oracle(shown: tuple, out: Path) -> None:
    report = shown[0].report
    predictions = read_predictions(out / "run")
    assert sorted(report.estimates) == sorted(set(predictions.model.tolist())) == MODELS
    assert f"c of an oracle: {shown[0].oracle['c']:.3f}" in report.summary.caption


def test_the_oracle_is_that_of_the_cohort(shown: tuple, out: Path) -> None:
    found = shown[0]
    assert found.oracle == SETTINGS.make_cohort().compute_oracle_metrics()
    table = read_cohort(out / "cohort" / "table.csv", task="survival")
    assert table.task == found.cohort.table.task
    np.testing.assert_array_equal(table.targets, found.cohort.table.targets)
    assert 0.6 < found.oracle["c_true_hazard"] < 1


def test_the_report_has_survival_curves_and_no_localisation(shown: tuple, out: Path) -> None:
    page = shown[0].page.read_text()
    assert (out / "evaluation" / "plots" / "kaplan_meier.svg").is_file()
    assert 'alt="Survival by predicted risk"' in page
    assert not (out / "evaluation" / "localisation.csv").exists()


def test_new_patients_are_in_no_fold_and_have_a_page_with_a_heatmap(
    shown: tuple, out: Path
) -> None:
    found = shown[0]
    known = {slide.slide_id for slide in found.cohort.table.slides}
    assert len(found.new_patients) == SETTINGS.pictures
    for patient in found.new_patients:
        assert patient.slide_id not in known
        assert re.match(r"(high|low) risk, above \d+% of the training patients", patient.prediction)
        assert 0 <= patient.truth.infiltration <= 1
        page = (found.answers / "reports" / f"{patient.slide_id}.html").read_text()
        assert "Heatmap" in page
        pictures = (found.answers / "heatmaps" / "sac_mil_near_far").glob(f"{patient.slide_id}*")
        assert list(pictures)


def test_progress_reports_every_task_to_its_end(shown: tuple) -> None:
    last = {task: (done, total) for task, done, total, *_ in shown[1]}
    assert {"writing bags", "cross-validation, epochs", "predicting"} <= last.keys()
    assert all(done == total for done, total in last.values())


def test_a_second_run_trains_nothing_and_has_the_same_results(shown: tuple, out: Path) -> None:
    def list_times() -> dict[Path, int]:
        files = [*out.glob("run/*/seed_*/fold_*/*"), *out.glob("cohort/bags/*")]
        return {file: file.stat().st_mtime_ns for file in files}

    before = list_times()
    again = run_survival_demo(out, SETTINGS)
    assert list_times() == before
    assert again.report.estimates == shown[0].report.estimates
    assert again.new_patients == shown[0].new_patients


def test_the_verdict_follows_the_interval(shown: tuple) -> None:
    found, verdicts = shown[0], {}
    original = found.report
    own = original.estimates["sac_mil_near_far"]
    for low in (0.45, 0.55):
        estimates = {"sac_mil_near_far": {**own, "c": replace(own["c"], low=low)}}
        found.report = replace(original, estimates=estimates)
        verdicts[low] = found.verdict
    found.report = original
    assert verdicts[0.45].startswith("too small to learn")
    assert "its c is above chance" in verdicts[0.55]


def test_a_folder_of_the_other_demonstration_is_rejected(out: Path, tmp_path: Path) -> None:
    with pytest.raises(RunError, match="other settings"):
        run_demo(out, DemoSettings.make_quick())
    with pytest.raises(RunError, match="other settings"):
        run_survival_demo(out, SurvivalDemoSettings.make_quick())
    (tmp_path / "thesis.doc").write_text("years of work")
    with pytest.raises(RunError, match=r"thesis\.doc"):
        run_survival_demo(tmp_path, SETTINGS)


def test_every_model_takes_its_options() -> None:
    assert sorted(survival_demo._SURVIVAL_MODELS) == MODELS
    for name, options in survival_demo._SURVIVAL_MODELS.items():
        assert create_model(name, in_dim=6, num_classes=4, **options).name == name


def test_the_quick_demonstration_learns_what_a_model_without_positions_cannot(
    tmp_path: Path,
) -> None:
    found = run_survival_demo(tmp_path / "report", SurvivalDemoSettings.make_quick())
    estimates = {name: own["c"] for name, own in found.report.estimates.items()}
    assert estimates["sac_mil_near_far"].mean > 0.65
    assert estimates["mean_pool"].low < 0.5 < estimates["mean_pool"].high
    assert 0.75 < found.oracle["c_true_hazard"] < 0.85
