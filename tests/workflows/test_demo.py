"""A reduced demonstration: its files, its figures, and that nothing is done twice."""

from __future__ import annotations

import csv
import re
from functools import partial

import numpy as np
import pytest
from inline_workers import use_inline_workers
from tiny_encoder import write_encoder

from sacmil import create_model, load_model, predict, read_bag
from sacmil.card import anonymized_id, read_card
from sacmil.cohorts.cohort import read_cohort
from sacmil.cohorts.outlines import label_tiles
from sacmil.deploy.runtime import load
from sacmil.errors import RunError
from sacmil.evaluation.comparison import compare_models
from sacmil.evaluation.summary import summarize
from sacmil.heatmap import read_truth
from sacmil.metrics.classification import auc
from sacmil.results import read_predictions, read_results, read_scores
from sacmil.workflows import demo
from sacmil.workflows.demo import EXPORTED_MODELS, DemoSettings, run_demo
from sacmil.workflows.inputs import WorkflowCallbacks

pytest.importorskip("matplotlib", reason="pip install 'sacmil[plots]'")
pytest.importorskip("onnxruntime", reason="pip install 'sacmil[runtime]'")

pytestmark = pytest.mark.slow  # every step has quick tests of its own

MODELS = {"sac_mil_near_far", "abmil", "mean_pool"}
"""Without transmil: one model that is not exported is enough, and a slow test trains all."""
ALL_OPTIONS = demo._MODEL_OPTIONS


@pytest.fixture(scope="module", autouse=True)
def _inline_workers(onnx_registry):
    """The command line's own tests, and those of every step, start the processes."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        use_inline_workers(monkeypatch)
        options = {name: ALL_OPTIONS[name] for name in sorted(MODELS)}
        monkeypatch.setattr(demo, "_MODEL_OPTIONS", options)
        for function in (compare_models, summarize):  # intervals of fewer draws: no test reads them
            fewer = partial(function, draws=50)
            monkeypatch.setattr(f"sacmil.workflows.demo.{function.__name__}", fewer)
        yield


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    encoder = write_encoder(tmp_path_factory.mktemp("encoder") / "tiny.onnx")
    return DemoSettings.make_quick(encoder=encoder, slides=6)


@pytest.fixture(scope="module")
def shown(tmp_path_factory, settings):
    out = tmp_path_factory.mktemp("demo") / "report"
    events = []
    return run_demo(
        out, settings, WorkflowCallbacks(on_progress=lambda *event: events.append(event))
    ), events


@pytest.fixture(scope="module")
def out(shown):
    return shown[0].folder.out


def test_the_two_broken_slides_are_reported_and_the_others_go_on(shown, settings) -> None:
    found, _ = shown
    broken = {slide.slide_id: slide.artefact for slide in found.slides[-2:]}
    assert sorted(broken.values()) == ["no tissue", "truncated"]
    assert found.bags.failures.keys() == broken.keys()
    assert len(found.bags.files) == settings.slides
    page = found.folder.page.read_text()
    assert all(f"<li>{name}: " in page for name in broken)


def test_the_table_and_the_page_hold_the_figures_of_the_predictions(shown, out) -> None:
    found, _ = shown
    predictions = read_predictions(out / "run")
    assert set(predictions.model.tolist()) == MODELS
    figures = summarize(predictions)
    with (out / "evaluation" / "summary.csv").open(newline="") as file:
        rows = {(row["model"], row["metric"]): row for row in csv.DictReader(file)}
    page = found.folder.page.read_text()
    for model, by_metric in figures.items():
        mean = by_metric["auc"].mean
        assert found.report.estimates[model]["auc"].mean == pytest.approx(mean)
        assert float(rows[model, "auc"]["mean"]) == pytest.approx(mean)
        assert f"{mean:.3f}" in page


def test_every_model_of_the_demonstration_takes_its_options() -> None:
    assert ALL_OPTIONS.keys() > MODELS
    assert ALL_OPTIONS.keys() >= set(EXPORTED_MODELS)
    for name, options in ALL_OPTIONS.items():
        assert create_model(name, in_dim=6, num_classes=2, **options).name == name


def test_the_quick_demonstration_trains_every_model(tmp_path, monkeypatch, settings) -> None:
    monkeypatch.setattr(demo, "_MODEL_OPTIONS", ALL_OPTIONS)
    found = run_demo(tmp_path / "report", DemoSettings.make_quick(encoder=settings.encoder))
    assert found.report.estimates.keys() == ALL_OPTIONS.keys()


def test_every_slide_is_answered_by_a_part_that_has_not_seen_it(out, settings) -> None:
    answered = read_predictions(out / "predictions.csv")
    assert set(answered.model.tolist()) == set(EXPORTED_MODELS)
    assert len(answered) == len(EXPORTED_MODELS) * settings.slides
    for name in EXPORTED_MODELS:
        by_fold = {}
        for part in sorted((out / "onnx" / name).glob("member_*")):
            training = read_card(part).training
            by_fold[training["fold"]] = set(training["seen"])
        for slide, fold in zip(answered.slide_id.tolist(), answered.fold.tolist(), strict=True):
            assert anonymized_id("slide", slide) not in by_fold[fold]


def test_the_exported_models_say_what_torch_says(out) -> None:
    trained, exported = (read_predictions(path) for path in (out / "run", out / "predictions.csv"))
    expected = {
        (model, slide): p
        for model, slide, p in zip(
            trained.model, trained.slide_id, trained.probabilities, strict=True
        )
    }
    for model, slide, p in zip(
        exported.model, exported.slide_id, exported.probabilities, strict=True
    ):
        assert p == pytest.approx(expected[model, slide], abs=1e-4)


def test_the_results_folder_needs_nothing_outside_itself(out, settings) -> None:
    results = read_results(out / "results")
    assert [model.name for model in results.models] == list(EXPORTED_MODELS)
    assert len(results.slides) == settings.slides + 2
    for slide in results.slides:
        assert (out / "results" / slide.slide).is_file()
        assert slide.label in results.classes
        paths = [slide.thumbnail, slide.truth]
        for answer in slide.answers:
            scores = read_scores(out / "results" / answer.scores)
            assert len(scores.scores) > 0
            paths += answer.heatmaps.values()
        assert all((out / "results" / path).is_file() for path in paths if path)
    broken = [slide for slide in results.slides if not slide.answers]
    assert len(broken) == 2


def test_labels_in_results_and_table_are_those_of_the_cohort(out, shown) -> None:
    cohort = read_cohort(out / "table.csv")
    in_results = {slide.slide_id: slide.label for slide in read_results(out / "results").slides}
    for slide in shown[0].slides:
        label = cohort.classes[cohort.by_id[slide.slide_id].label]
        assert in_results[slide.slide_id] == label


def test_scores_are_compared_with_the_outlines_that_were_drawn(out, shown) -> None:
    """By what tiles say for the class that was answered, where scores are by class."""
    found, _ = shown
    answered = {
        (slide.slide_id, answer.model): int(np.argmax(answer.values))
        for slide in read_results(out / "results").slides
        for answer in slide.answers
    }
    for name in EXPORTED_MODELS:
        areas = []
        for slide, path in found.bags.files.items():
            bag = read_bag(path)
            outlines = read_truth(out / "results" / "truth", slide)
            labels = label_tiles(bag.coords, float(bag.patch_size), outlines, min_share=0.25)
            assert 1 <= labels.sum() <= len(outlines.positive)
            stored = read_scores(out / "results" / "scores" / name / f"{slide}.npz")
            by_class = stored.class_scores
            winner = answered[slide, name]
            areas.append(auc(labels, stored.scores if by_class is None else by_class[:, winner]))
        assert found.localization[name].auc == pytest.approx(np.mean(areas))


def test_tiles_with_a_cluster_look_unlike_the_others(shown, out) -> None:
    """The truth lies where the pixels say: one linear rule finds the clusters of every slide."""
    features, labels = [], []
    for slide, path in shown[0].bags.files.items():
        bag = read_bag(path)
        outlines = read_truth(out / "results" / "truth", slide)
        labels.append(label_tiles(bag.coords, float(bag.patch_size), outlines, min_share=0.25))
        features.append(bag.features - np.median(bag.features, axis=0))
    x, y = np.concatenate(features).astype(float), np.concatenate(labels)
    rule, *_ = np.linalg.lstsq(np.column_stack([x, np.ones(len(x))]), y, rcond=None)
    assert auc(y, x @ rule[:-1]) > 0.9


def test_new_slides_are_answered_by_the_exported_run(shown, out) -> None:
    found, _ = shown
    assert len(found.new_predictions) == 2
    runtime = load(out / "onnx" / "sac_mil_near_far")
    for slide, text in found.new_predictions.items():
        (path,) = (out / "new" / "answers" / "bags").glob(f"*/features_*/{slide}.h5")
        answer = runtime.predict(read_bag(path))
        assert text == f"{answer.classes[answer.label]} {answer.probabilities.max():.2f}"
        assert (out / "new" / "answers" / "reports" / f"{slide}.html").is_file()


def test_the_parts_of_the_run_are_models_one_can_load(out, shown, settings) -> None:
    part = out / "run" / "mean_pool" / f"seed_{settings.seed}" / "fold_1"
    rows = read_predictions(part)
    answer = predict(load_model(part), read_bag(shown[0].bags.files[str(rows.slide_id[0])]))
    assert answer.probabilities == pytest.approx(rows.probabilities[0], abs=1e-5)


def test_the_page_needs_nothing_else(shown) -> None:
    page = shown[0].folder.page.read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", page)
    assert page.count("<img") >= 5
    assert f"sacmil view {shown[0].folder.results}" in page


def test_progress_reports_every_task_to_its_end(shown) -> None:
    last = {task: (done, total) for task, done, total, *_ in shown[1]}
    assert {"drawing slides", "cross-validation, epochs", "exporting"} <= last.keys()
    assert all(done == total for done, total in last.values())


def test_nothing_half_written_is_left(out) -> None:
    assert list(out.rglob("*.partial")) == []


def state(out):
    kept = ("results", "onnx", "new/slides", "cohort/0.5mpp_224px")
    files = [file for folder in kept for file in (out / folder).rglob("*") if file.is_file()]
    files += out.glob("run/*/seed_*/fold_*/*")
    return {file: file.stat().st_mtime_ns for file in files}


def test_a_second_run_does_nothing_again_and_says_the_same(shown, out, settings) -> None:
    found, _ = shown
    assert all(found.steps_done.values())
    before, page = state(out), found.folder.page.read_text()
    again = run_demo(out, settings)
    assert not any(again.steps_done.values())
    assert state(out) == before
    assert again.localization == found.localization
    assert again.new_predictions == found.new_predictions
    assert len(again.folder.page.read_text()) == pytest.approx(len(page), rel=0.01)


def test_what_is_lost_is_made_again_and_nothing_else(shown, out, settings) -> None:
    slide = shown[0].slides[2]
    scores = out / "results" / "scores" / "sac_mil_near_far" / f"{slide.slide_id}.npz"
    before = scores.read_bytes()
    (shown[0].folder.slides / slide.file_name).unlink()
    (out / "results" / "results.json").unlink()  # as if killed before it was written
    again = run_demo(out, settings)
    assert again.steps_done["slides drawn"] == 1
    assert again.steps_done["bags made"] == again.steps_done["models trained"] == 0
    assert again.steps_done["slides predicted"] == settings.slides
    assert scores.read_bytes() == before


def test_a_folder_of_other_settings_is_refused_untouched(shown, out) -> None:
    before = state(out)
    with pytest.raises(RunError, match="other settings"):
        run_demo(out, DemoSettings.make_quick(seed=5))
    assert state(out) == before


def test_a_folder_of_something_else_is_refused(tmp_path) -> None:
    (tmp_path / "thesis.doc").write_text("years of work")
    with pytest.raises(RunError, match=r"thesis\.doc"):
        run_demo(tmp_path, DemoSettings.make_quick())
    assert sorted(file.name for file in tmp_path.iterdir() if file.name[0] != ".") == ["thesis.doc"]
