"""Exported models of every kind of target predict as torch does."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exhaustive import choose_cases
from small_models import make_bag, make_model
from target_cohort import OTHERS, TASKS, draw_targets

from sacmil import create_model, list_models, load_model, save_model, write_bag
from sacmil.card import ONNX_FILE, read_card, update_card
from sacmil.deploy.export import export_model, read_parity
from sacmil.deploy.load import TorchModel
from sacmil.deploy.runtime import Runtime, load_runtime
from sacmil.errors import ModelError, ModelFolderError
from sacmil.models._registry import get_model_class
from sacmil.results import PREDICTIONS_FILE, Ensemble, Prediction, Predictions, write_predictions
from sacmil.tasks import Task, from_card
from sacmil.tasks.calibration import Calibration

DEFAULT = "sac_mil_near_far"
EXPORTABLE = [name for name in list_models() if not get_model_class(name).not_exportable]
SIZES = [1, 2, 7]
Exports = Callable[[str], tuple[Path, Path]]
"""Returns the folders of a mean_pool for a task and of its export."""
CALIBRATIONS = {
    "classification": Calibration((2.5,), (0.3,), "youden", patients=30),
    "multilabel": Calibration((0.5, 1.0, 3.0), (0.2, 0.5, 0.7), "sensitivity", 0.9),
}


def learn(name: str, seed: int = 0) -> Task:
    """The task with what it learns from some training set."""
    targets = draw_targets(TASKS[name], 30, np.random.default_rng(seed))
    task = TASKS[name].fitted(targets, label_smoothing=0.0, class_weights="balanced")
    outputs = np.random.default_rng(1).standard_normal((len(targets), task.outputs))
    return task.calibrated(outputs, targets)


def save_trained(folder: Path, model_name: str, name: str, seed: int = 0, **options: Any) -> Path:
    """The folder of a model that training could have left."""
    task = learn(name, seed)
    model = make_model(model_name, num_classes=task.outputs, **options)
    model.set_task(task)
    if model.task_head is not None:
        for parameter in model.task_head.parameters():
            torch.nn.init.normal_(parameter)
    notes = {"bags": {"dim": model.in_dim}}
    save_model(folder, model, classes=task.levels or None, notes=notes, task=task)
    return folder


def check_equal(found: Prediction, wanted: Prediction) -> None:
    assert found.columns == wanted.columns
    assert found.score_class == wanted.score_class
    assert found.thresholds == wanted.thresholds
    pairs = [(found.values, wanted.values), (found.scores, wanted.scores)]
    assert (found.class_scores is None) == (wanted.class_scores is None)
    if found.class_scores is not None and wanted.class_scores is not None:
        pairs += zip(found.class_scores.T, wanted.class_scores.T, strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4 * np.abs(other).max())


def check_export(source: Path, folder: Path, sizes: Sequence[int] = (1, 9, 131)) -> None:
    """Compare predictions for bags that the export did not try."""
    export_model(source, folder, sizes=SIZES)
    assert [row.instances for row in read_parity(folder)] == SIZES
    runtime, model = load_runtime(folder, threads=1), TorchModel(source, "cpu")
    assert isinstance(runtime, Runtime)
    assert runtime.task == model.task == from_card(runtime.task.card)
    for n in sizes:
        bag = make_bag(n, seed=7)
        check_equal(runtime.predict(bag), model.predict(bag))


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Exports:
    root, known = tmp_path_factory.mktemp("exports"), {}

    def make(name: str) -> tuple[Path, Path]:
        if name not in known:
            source = save_trained(root / name / "model", "mean_pool", name)
            if name in CALIBRATIONS:
                update_card(source, calibration=CALIBRATIONS[name].to_dict())
            known[name] = source, export_model(source, root / name / "out", sizes=SIZES)
        return known[name]

    return make


# --- every task and every model ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model_name", "name"),
    [("mean_pool", name) for name in TASKS]
    + [("abmil", "corn"), ("abmil", "multilabel"), (DEFAULT, "survival")],
)
def test_an_export_predicts_as_torch_does(tmp_path: Path, model_name: str, name: str) -> None:
    check_export(save_trained(tmp_path / "model", model_name, name), tmp_path / "out")


PAIRS = [(model_name, name) for model_name in EXPORTABLE for name in OTHERS]


@pytest.mark.slow
@pytest.mark.parametrize(("model_name", "name"), choose_cases(PAIRS, step=9))
def test_every_model_is_exported_for_every_task_it_can_be_trained_for(
    tmp_path: Path, model_name: str, name: str
) -> None:
    task = TASKS[name]
    if make_model(model_name, num_classes=task.outputs).explain_unsupported(task):
        with pytest.raises(ModelError, match=f"{model_name} cannot be trained for {task.kind} of"):
            save_trained(tmp_path / "model", model_name, name)
        return
    check_export(save_trained(tmp_path / "model", model_name, name), tmp_path / "out")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["regression", "two numbers", "corn", "multilabel"])
def test_the_mean_of_the_streams_of_dsmil_is_exported_too(tmp_path: Path, name: str) -> None:
    source = save_trained(tmp_path / "model", "dsmil", name, average=True)
    check_export(source, tmp_path / "out")


def test_predictions_of_other_weights_are_found_different(exports: Exports, tmp_path: Path) -> None:
    """What compares predictions here would find a wrong one."""
    bag = make_bag(9, seed=7)
    for name in TASKS:
        _, folder = exports(name)
        torch.manual_seed(1)
        other = create_model("mean_pool", in_dim=bag.dim, num_classes=TASKS[name].outputs)
        other.set_task(learn(name))
        save_model(tmp_path / name, other, classes=TASKS[name].levels or None, task=learn(name))
        wanted = TorchModel(tmp_path / name, "cpu").predict(bag)
        with pytest.raises(AssertionError):
            check_equal(load_runtime(folder, threads=1).predict(bag), wanted)


# --- what is in the folder -----------------------------------------------------------------------


@pytest.mark.parametrize("name", TASKS)
def test_the_first_output_of_the_graph_has_the_columns_of_the_predictions(
    exports: Exports, name: str
) -> None:
    source, folder = exports(name)
    runtime, bag = Runtime(folder, threads=1), make_bag(9, seed=7)
    output = runtime.run(bag.features, bag.patch_coords)
    first = next(iter(output))
    assert first == ("probabilities" if name == "classification" else "predictions")
    assert (read_card(folder).export or {})["outputs"] == list(output)
    found = runtime.predict(bag)
    assert found.columns == TASKS[name].prediction_columns
    np.testing.assert_array_equal(output[first], found.values)
    assert read_card(folder).task == read_card(source).task, "with what training has learned"


@pytest.mark.parametrize("name", ["regression", "two numbers"])
def test_the_scale_of_the_numbers_is_in_the_graph(exports: Exports, name: str) -> None:
    source, folder = exports(name)
    bag, settings = make_bag(9, seed=7), (read_card(folder).task or {})["settings"]
    values = Runtime(folder, threads=1).run(bag.features, bag.patch_coords)["predictions"]
    model = load_model(source)
    with torch.no_grad():
        logits = model(
            torch.from_numpy(bag.features), torch.from_numpy(bag.patch_coords)
        ).logits.numpy()
    np.testing.assert_allclose(
        values, logits * settings["std"] + np.array(settings["mean"]), rtol=1e-5
    )
    assert np.abs(values - logits).min() > 1, "the scale is not 1"


def test_the_card_has_the_metrics_of_the_test_set(tmp_path: Path) -> None:
    """An undefined metric is null there; cards are JSON."""
    for name in ("two numbers", "coral", "multilabel", "survival"):
        task, source = learn(name), save_trained(tmp_path / name / "model", "mean_pool", name)
        targets = draw_targets(TASKS[name], 30, np.random.default_rng(1))
        rows = [
            (f"s{n}", f"p{n}", "test", 0, 0, "mean_pool", tuple(y)) for n, y in enumerate(targets)
        ]
        values = np.tile(task.activate(torch.zeros(task.outputs)).numpy(), (30, 1))
        if name == "coral":
            values = np.tile([0.2, 0.3, 0.5, 1.3], (30, 1))
        table = Predictions.from_rows(TASKS[name].card, rows, values)
        write_predictions(source / PREDICTIONS_FILE, table)
        export_model(source, tmp_path / name / "out", sizes=[2])
        found = dict(read_card(tmp_path / name / "out").notes["metrics"])
        assert found.pop("slides") == 30
        assert set(found) == set(task.default_metrics)
        for metric, value in found.items():
            expected = task.get_metric(metric).compute(targets, values.round(12))
            assert (value is None) == np.isnan(expected), metric
            assert value is None or value == pytest.approx(expected)


# --- calibration ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CALIBRATIONS)
def test_calibration_and_thresholds_are_applied_if_requested(exports: Exports, name: str) -> None:
    source, folder = exports(name)
    task, calibration = learn(name), CALIBRATIONS[name]
    plain = Runtime(folder, threads=1)
    runtime = load_runtime(folder, threads=1, calibrated=True)
    model = TorchModel(source, "cpu", calibrated=True)
    assert runtime.hash == model.hash != plain.hash == read_card(source).weights_sha256
    for seed in range(5):
        bag = make_bag(9, seed=seed)
        raw, found = plain.predict(bag), runtime.predict(bag)
        check_equal(raw, TorchModel(source, "cpu").predict(bag))
        assert raw.thresholds is None
        check_equal(found, model.predict(bag))
        np.testing.assert_allclose(found.values, calibration.apply(raw.values))
        assert np.abs(found.values - raw.values).max() > 1e-3
        assert found.thresholds == calibration.thresholds
        decided = calibration.decide(found.values[None]).ravel()
        names = [n for n, is_there in zip(task.value_names, decided, strict=False) if is_there]
        if task.has_classes:
            names = [task.value_names[decided[0]]]
        predicted = set(task.describe(found).predicted.split(", "))
        assert predicted == set(names or ["none"])


def test_some_calibrated_predictions_differ_by_their_threshold_only(
    exports: Exports,
) -> None:
    """So that the test above follows thresholds."""
    for name, calibration in CALIBRATIONS.items():
        _, folder = exports(name)
        task, runtime = learn(name), load_runtime(folder, threads=1, calibrated=True)
        found = [runtime.predict(make_bag(9, seed=seed)) for seed in range(5)]
        at_half = Calibration(
            calibration.temperatures, (0.5,) * len(calibration.thresholds), "youden"
        )
        decided = [calibration.decide(one.values).tolist() for one in found]
        assert decided != [at_half.decide(one.values).tolist() for one in found], task.kind


def test_a_calibration_after_the_export_is_not_in_it(tmp_path: Path) -> None:
    source = save_trained(tmp_path / "model", "mean_pool", "multilabel")
    folder = export_model(source, tmp_path / "out", sizes=[2])
    update_card(source, calibration=CALIBRATIONS["multilabel"].to_dict())
    with pytest.raises(ModelFolderError, match=r"is not calibrated; .* export it again"):
        load_runtime(folder, calibrated=True)
    export_model(source, folder, sizes=[2])
    assert load_runtime(folder, calibrated=True).predict(make_bag(3)).thresholds == (0.2, 0.5, 0.7)


# --- ensembles, and no torch ---------------------------------------------------------------------


def test_members_are_averaged_on_the_scale_of_the_numbers(tmp_path: Path) -> None:
    """Every fold has learned a scale of its own."""
    for name in ("two numbers", "multilabel"):
        run = tmp_path / name
        folders = [
            save_trained(run / f"mean_pool/seed_0/fold_{fold}", "mean_pool", name, seed=fold)
            for fold in range(2)
        ]
        runtime = load_runtime(export_model(run, tmp_path / f"{name} out", sizes=[2]), threads=1)
        assert isinstance(runtime, Ensemble)
        bag = make_bag(20)
        members = [TorchModel(folder, "cpu").predict(bag).values for folder in folders]
        found = runtime.predict(bag)
        np.testing.assert_allclose(found.values, np.mean(members, axis=0), rtol=1e-5)
        if name == "two numbers":
            assert np.abs(members[0] - members[1]).min() > 0.01, "scales differ"


WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None
from sacmil import load_runtime, read_bag
for folder in sys.argv[2:]:
    runtime = load_runtime(folder)
    found = runtime.predict(read_bag(sys.argv[1]))
    print(runtime.task.describe(found).headline)
"""


def test_every_task_is_predicted_and_described_without_torch(
    exports: Exports, tmp_path: Path
) -> None:
    bag = make_bag(9, seed=7)
    write_bag(tmp_path / "bag.h5", bag)
    pairs = [exports(name) for name in TASKS]
    command = [sys.executable, "-c", WITHOUT_TORCH, tmp_path / "bag.h5", *(out for _, out in pairs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    models = [TorchModel(source, "cpu") for source, _ in pairs]
    wanted = [model.task.describe(model.predict(bag)).headline for model in models]
    assert done.stdout.splitlines() == wanted


def test_a_graph_of_another_target_is_not_taken_for_the_cards(
    exports: Exports, tmp_path: Path
) -> None:
    _, one = exports("corn")
    _, other = exports("coral")
    (tmp_path / "card.json").write_bytes((one / "card.json").read_bytes())
    (tmp_path / ONNX_FILE).write_bytes((other / ONNX_FILE).read_bytes())
    with pytest.raises(ModelFolderError, match="is not the file its card was written for"):
        load_runtime(tmp_path)
