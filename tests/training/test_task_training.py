"""Training for numbers, levels and labels: every model, no leaks, the same bits after a kill."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from exhaustive import choose_cases, choose_count, mostly_slow
from small_cohort import Material
from small_models import WIDTH, make_model
from target_cohort import IN_MEMORY, OTHERS, TASKS, Trial, make_trial, write_targets

from sacmil import create_model, list_models, load_model, predict
from sacmil.card import read_card
from sacmil.cohorts.splits import Fold
from sacmil.errors import ConfigError, ModelError, RunError, SacMILError
from sacmil.models import MILModel, Recipe, Sample
from sacmil.models._registry import get_model_class
from sacmil.results import TASK_FILE, read_predictions
from sacmil.tasks import Classification, Ordinal, Regression, Task
from sacmil.training.fit import predict_samples
from sacmil.training.job import DeviceConfig, run_job
from sacmil.training.loading import SampleLoader
from sacmil.training.train import cross_validate, train
from sacmil.training.trainer import Trainer

# --- every model and every task ------------------------------------------------------------------


def is_supported(model: str, task: Task) -> bool:
    return not make_small(model, task).explain_unsupported(task)


def make_small(model: str, task: Task) -> MILModel:
    return make_model(model, num_classes=task.outputs)


MODEL_TASKS = [(model, task) for model in list_models() for task in OTHERS]


def load_samples(model: MILModel, task: Task, trial: Trial) -> SampleLoader:
    paths = [Path(slide_id) for slide_id in trial.cohort.by_id]
    targets = trial.cohort.targets
    return SampleLoader(model, paths, targets, task=task, cache="none", read=trial.bags)


def step(model: MILModel, task: Task, samples: list[Sample]) -> dict[str, float]:
    """Take a step; return the largest gradient of each parameter that was moved."""
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    losses = Trainer(model, Recipe(optimizer="adam", lr=1e-2), task=task).step(samples)
    assert all(loss.isfinite() for loss in losses.values())
    gradients = [value.grad for value in model.parameters() if value.grad is not None]
    assert all(gradient.isfinite().all() for gradient in gradients)
    return {
        name: value.grad.abs().max().item()
        for name, value in model.named_parameters()
        if value.grad is not None and not torch.equal(value, before[name])
    }


@pytest.mark.parametrize(("model_name", "name"), mostly_slow(MODEL_TASKS, *MODEL_TASKS[::3]))
def test_a_step_moves_all_that_a_step_of_classes_moves(model_name: str, name: str) -> None:
    trial = make_trial(TASKS[name], patients=6)
    task = TASKS[name].fitted(trial.cohort.targets, label_smoothing=0, class_weights="none")
    model = make_small(model_name, task)
    if model.explain_unsupported(task):
        with pytest.raises(ModelError, match=f"{model_name} cannot be trained for {task.kind} of"):
            model.set_task(task)
        return
    model.set_task(task)
    samples = list(load_samples(model, task, trial))[: 6 if task.needs_batch else 2]
    values = predict_samples(model, load_samples(model, task, trial), task=task)
    assert values.shape == (6, len(task.prediction_columns))
    assert np.isfinite(values).all()
    moved = step(model, task, samples)
    classes = make_small(model_name, task)
    labels = [sample._replace(target=torch.tensor(n % 2)) for n, sample in enumerate(samples)]
    of_classes = Classification(tuple(map(str, range(max(2, task.outputs)))))
    # a bias before a softmax is moved by rounding errors only
    expected = {n for n, size in step(classes, of_classes, labels).items() if size > 1e-6}
    if task.needs_batch:  # what all patients share does not change their order
        expected -= {name for name in expected if name.endswith("bias")}
    assert expected <= set(moved)
    assert len(expected) > 1
    if model.task_head is not None:
        assert {f"task_head.{name}" for name, _ in model.task_head.named_parameters()} <= set(moved)
    again = predict_samples(model, load_samples(model, task, trial), task=task)
    assert np.isfinite(again).all()
    assert (again != values).any()


def test_what_cannot_be_trained_is_known() -> None:
    """A model that starts to support a task, or stops, is to be noticed."""
    found = {
        name: {model for model in list_models() if not is_supported(model, task)}
        for name, task in TASKS.items()
    }
    of_classes = {m for m in list_models() if get_model_class(m).needs_classes}
    assert found.pop("classification") == set()
    assert found.pop("coral") == of_classes | {"dsmil", "sac_mil_dual"}
    assert found.pop("cox") == of_classes | {"dsmil", "sac_mil_dual"}
    assert set(map(frozenset, found.values())) == {frozenset(of_classes)}
    assert {"clam_sb", "dtfd", "ibmil"} <= of_classes


def test_a_reason_and_another_model_are_named_before_anything_is_written(tmp_path: Path) -> None:
    material = write_targets(tmp_path / "bags", TASKS["coral"])
    for model, reason in (
        ("clam_sb", "it learns from instances picked for and against each class"),
        ("dsmil", "both of its streams would need the layer of the task"),
    ):
        with pytest.raises(
            ModelError, match=f"{reason}. Use another model, such as sac_mil"
        ) as raised:
            train(material.data, model, out=tmp_path / "run", folds=2)
        assert "cannot be trained for ordinal of low, mid, high" in str(raised.value)
    with pytest.raises(ConfigError, match=r"label_smoothing=0.1; the task ordinal has no classes"):
        train(
            material.data, "abmil", out=tmp_path / "run", folds=2, options={"label_smoothing": 0.1}
        )
    assert sorted(file.name for file in tmp_path.iterdir()) == ["bags"]


@pytest.mark.parametrize("name", ["regression", "corn", "multilabel"])
def test_dsmil_averages_the_predictions_of_its_streams(name: str) -> None:
    trial = make_trial(TASKS[name], patients=6)
    task = TASKS[name].fitted(trial.cohort.targets, label_smoothing=0, class_weights="none")
    model = make_model("dsmil", num_classes=task.outputs, average=True)
    model.set_task(task)
    bag = trial.bags(Path("s0-0"))
    output = model(bag.features, bag.patch_coords)
    streams = (output.logits, output.extras["strongest"])
    expected = torch.stack([task.activate(logits) for logits in streams]).mean(0)
    torch.testing.assert_close(model.activate(output, task), expected)


def test_a_model_of_another_width_is_rejected() -> None:
    model = create_model("abmil", in_dim=WIDTH, num_classes=3)
    with pytest.raises(ModelError, match="has 3 outputs; regression of ki67 needs 1"):
        model.set_task(TASKS["regression"])


# --- whole jobs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OTHERS)
def test_a_job_writes_what_is_read_again(tmp_path: Path, name: str) -> None:
    trial = make_trial(TASKS[name])
    found = trial.run(tmp_path, monitor="val_metric", class_weights="balanced", sampler="balanced")
    task = TASKS[name]
    fold = trial.folds[0]
    assert found.task == task.card
    known = fold.train if task.needs_training_rows else ()
    assert found.slide_id.tolist() == [*known, *fold.val, *fold.test]
    np.testing.assert_array_equal(
        found.targets, [s.targets for s in trial.cohort.get_slides(found.slide_id)]
    )
    assert (tmp_path / TASK_FILE).is_file()
    model = load_model(tmp_path)
    assert model.known_task.card == task.card
    for slide_id, values in zip(found.slide_id, found.values, strict=True):
        again = predict(model, trial.bags(Path(str(slide_id))))
        np.testing.assert_allclose(again.values, values, rtol=1e-6, atol=1e-6)


def test_a_run_of_classes_has_no_task_file(tmp_path: Path) -> None:
    make_trial(TASKS["classification"]).run(tmp_path)
    assert not (tmp_path / TASK_FILE).exists()
    assert read_card(tmp_path).task is None


@pytest.mark.parametrize("name", OTHERS)
def test_what_features_show_is_learned(tmp_path: Path, name: str) -> None:
    found = make_trial(TASKS[name], patients=30, signal=2).run(tmp_path, epochs=8, lr=3e-2)
    task, test = TASKS[name], found.split == "test"
    value = task.get_metric(task.headline).compute(found.targets[test], found.values[test])
    assert value > 0.7


def test_a_validation_set_of_one_value_is_an_error_in_a_sentence(tmp_path: Path) -> None:
    for name in OTHERS:
        trial = make_trial(TASKS[name])
        fold = trial.folds[0]
        short = trial._replace(folds=[Fold(fold.train, fold.val[:1], fold.test)])
        with pytest.raises(SacMILError, match=r"the validation set holds .*use another split"):
            short.run(tmp_path / name, monitor="val_metric")
        short.run(tmp_path / f"{name} by loss", monitor="val_loss")


@pytest.mark.parametrize("loss", ["huber", "mse", "l1"])
@pytest.mark.parametrize(("scale", "shift"), [(1000.0, -5e4), (0.01, 3.0)])
def test_predicted_numbers_are_scaled_and_shifted_as_their_targets(
    tmp_path: Path, loss: Any, scale: float, shift: float
) -> None:
    trial = make_trial(Regression("ki67", loss), patients=16)
    given = trial.cohort.targets
    other = make_trial(trial.cohort.task, targets=shift + scale * given, shown=given)
    options = {"monitor": "val_loss", "class_weights": "balanced", "lr": 3e-2}
    found, again = (each.run(tmp_path / str(n), **options) for n, each in enumerate((trial, other)))
    np.testing.assert_allclose(again.values, shift + scale * found.values, rtol=1e-5)
    assert np.ptp(found.values) > 1


# --- leaks ---------------------------------------------------------------------------------------


def headline_on_noise(
    folder: Path, name: str, seeds: int, *, is_leaking: bool = False, **training: Any
) -> np.ndarray:
    """The headline metric of each of many cohorts whose features say nothing about the targets."""
    task, values = TASKS[name], []
    patients = 48 if task.kind == "survival" else 24  # few pairs of them can be compared
    for seed in range(seeds):
        trial = make_trial(task, signal=0, seed=seed, patients=patients)
        train_ids, val, test = trial.folds[0]
        if is_leaking:
            trial = trial._replace(folds=[Fold(train_ids + test, val, test)])
        given = {"epochs": 3, "lr": 3e-2, "seed": seed, **training}
        found = trial.run(folder / str(seed), **given)
        rows = found.select(found.split == "test")
        values.append(task.get_metric(task.headline).compute(rows.targets, rows.values))
    return np.array(values)


def check_noise(name: str, values: np.ndarray) -> None:
    error = values.std(ddof=1) / np.sqrt(len(values))
    if name in ("regression", "two numbers"):
        assert values.mean() <= 0
    else:
        chance = 0.0 if TASKS[name].kind == "ordinal" else 0.5
        assert abs(values.mean() - chance) < 3 * error
        assert error < 0.1


@pytest.mark.parametrize("name", mostly_slow(["regression", "corn", "multilabel"], "regression"))
def test_noise_predicts_nothing_even_if_it_chooses_the_epoch(tmp_path: Path, name: str) -> None:
    check_noise(name, headline_on_noise(tmp_path, name, 20, monitor="val_metric"))


SLOWLY = pytest.mark.slow


@pytest.mark.parametrize(
    "name", ["regression", *(pytest.param(name, marks=SLOWLY) for name in ("corn", "multilabel"))]
)
def test_a_model_that_saw_the_test_set_would_be_found_out(tmp_path: Path, name: str) -> None:
    values = headline_on_noise(tmp_path, name, 4, is_leaking=True, epochs=8)
    with pytest.raises(AssertionError):
        check_noise(name, values)


WAYS = [
    (name, *way)
    for name in TASKS
    for way in [
        ("mean_pool", "last", "balanced"),
        ("mean_pool", "val_loss", "none"),
        ("abmil", "val_metric", "none"),
    ]
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model", "monitor", "class_weights"), choose_cases(WAYS, step=4))
def test_noise_predicts_nothing_in_many_ways(
    tmp_path: Path, name: str, model: str, monitor: str, class_weights: str
) -> None:
    weights = "none" if TASKS[name].kind == "survival" else class_weights
    given = {"model": model, "monitor": monitor, "class_weights": weights}
    check_noise(name, headline_on_noise(tmp_path, name, choose_count(30, sample=20), **given))


@pytest.mark.parametrize("monitor", ["last", "val_metric"])
@pytest.mark.parametrize("name", ["regression", "two numbers"])
def test_mean_and_deviation_are_those_of_the_training_set_of_each_fold(
    tmp_path: Path, name: str, monitor: str
) -> None:
    trial = make_trial(TASKS[name])
    for number, fold in enumerate(trial.folds):
        folder = tmp_path / str(number)
        run_job(
            trial.make_job(folder, fold=number, monitor=monitor, epochs=1),
            IN_MEMORY,
            read=trial.bags,
        )
        seen = fold.train + fold.val if monitor == "last" else fold.train
        values = np.array([slide.targets for slide in trial.cohort.get_slides(seen)])
        settings = read_card(folder).task["settings"]
        assert settings["mean"] == values.mean(axis=0).tolist()
        assert settings["std"] == values.std(axis=0).tolist()


@pytest.mark.parametrize("monitor", ["last", "val_metric"])
@pytest.mark.parametrize("name", OTHERS)
def test_the_targets_of_the_test_set_change_no_bit_of_the_weights(
    tmp_path: Path, name: str, monitor: str
) -> None:
    trial = make_trial(TASKS[name])
    given = trial.cohort.targets
    is_test = np.isin(list(trial.cohort.by_id), trial.folds[0].test)
    changed = given.copy()
    if TASKS[name].kind == "regression":
        changed[is_test] = 1e6 + 3 * given[is_test]
    elif TASKS[name].kind == "ordinal":
        changed[is_test] = 2 - given[is_test]
    else:
        changed[is_test] = 1 - given[is_test]
    other = make_trial(TASKS[name], targets=changed, shown=given)._replace(folds=trial.folds)
    options = {"monitor": monitor, "class_weights": "balanced", "sampler": "balanced"}
    one, two = (each.run(tmp_path / str(n), **options) for n, each in enumerate((trial, other)))
    files = [(tmp_path / folder / "model.safetensors").read_bytes() for folder in "01"]
    assert files[0] == files[1]
    assert (one.values == two.values).all()
    assert (one.targets != two.targets).any()
    cards = [read_card(tmp_path / folder).task["settings"] for folder in "01"]
    assert cards[0] == cards[1]


# --- kill and resume -----------------------------------------------------------------------------


class KilledError(Exception):
    """What a power failure is here."""


class MortalReader:
    """Reads so many bags and dies."""

    def __init__(self, trial: Trial, life: int) -> None:
        self.trial, self.life = trial, life

    def __call__(self, path: Path) -> Any:
        self.life -= 1
        if self.life < 0:
            raise KilledError
        return self.trial.bags(path)


def read_outputs(folder: Path) -> dict[str, bytes]:
    names = ("model.safetensors", "predictions.csv", TASK_FILE)
    return {name: (folder / name).read_bytes() for name in names}


@pytest.mark.parametrize("name", ["regression", "corn", "coral", "multilabel"])
def test_a_job_killed_anywhere_ends_as_if_never_killed(tmp_path: Path, name: str) -> None:
    trial = make_trial(TASKS[name], patients=16)
    options: dict[str, Any] = {
        "epochs": 4,
        "monitor": "val_loss",
        "class_weights": "balanced",
        "instance_dropout": 0.3,
        "accumulate": 2,
    }
    trial.run(tmp_path / "whole", **options)
    whole = read_outputs(tmp_path / "whole")
    fold = trial.folds[0]
    epoch = len(fold.train) + len(fold.val)
    for life in (epoch + 3, 3 * epoch + 1, 4 * epoch + 3):  # in an epoch, between two, in the test
        folder = tmp_path / str(life)
        job, uncached = trial.make_job(folder, **options), DeviceConfig(cache="none")
        for lives in (life, 10**6):
            try:
                run_job(job, uncached, read=MortalReader(trial, lives))
            except KilledError:
                assert not (folder / "card.json").exists()
        assert read_outputs(folder) == whole


def test_the_same_seed_gives_the_same_bits_and_another_other_ones(tmp_path: Path) -> None:
    for name in OTHERS:
        trial = make_trial(TASKS[name], patients=16)
        found = []
        for number, seed in enumerate((3, 3, 4)):
            trial.run(tmp_path / name / str(number), seed=seed, epochs=2)
            found.append((tmp_path / name / str(number) / "model.safetensors").read_bytes())
        assert found[0] == found[1] != found[2], name


@pytest.mark.parametrize(
    "other",
    [
        Regression("til"),
        Regression("ki67", "mse"),
        Ordinal(("low", "mid"), "ki67"),
        Classification(("low", "mid")),
    ],
)
def test_a_folder_of_another_target_is_rejected(tmp_path: Path, other: Task) -> None:
    task = Regression("ki67")
    trial = make_trial(task, patients=8)
    finished, killed = trial.make_job(tmp_path / "done"), trial.make_job(tmp_path / "killed")
    run_job(finished, IN_MEMORY, read=trial.bags)
    with pytest.raises(KilledError):
        run_job(killed, DeviceConfig(cache="none"), read=MortalReader(trial, 7))
    targets = trial.cohort.targets if other.kind == "regression" else np.arange(8)[:, None] % 2
    again = make_trial(other, targets=targets.astype(float))._replace(folds=trial.folds)
    for folder in ("done", "killed"):
        with pytest.raises(RunError, match="holds another model, or one trained on other data"):
            run_job(again.make_job(tmp_path / folder), IN_MEMORY, read=trial.bags)
    assert read_predictions(tmp_path / "done").task == task.card


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Material]:
    folder = tmp_path_factory.mktemp("targets")
    return {
        name: write_targets(folder / name, TASKS[name]) for name in ("regression", "multilabel")
    }


def test_a_run_over_another_column_is_rejected(
    tmp_path: Path, written: dict[str, Material], inline_workers: None
) -> None:
    material = written["regression"]
    options = {
        "options": {"epochs": 1, "monitor": "last"},
        "devices": "cpu",
        "folds": material.folds,
    }
    run = cross_validate(material.data, ["mean_pool", "abmil"], out=tmp_path / "run", **options)
    assert not run.failures
    assert run.predictions.task == TASKS["regression"].card
    assert read_predictions(tmp_path / "run").task == TASKS["regression"].card
    frame = run.to_frame()
    assert {"ki67", "value"} <= set(frame.columns)
    by_id = material.cohort.by_id
    assert [by_id[s].label for s in frame["slide_id"]] == [(value,) for value in frame["ki67"]]
    others = {
        "another column": material.cohort.__class__(material.cohort.slides, task=Regression("til")),
        "another kind": written["multilabel"].cohort,
    }
    for cohort in others.values():
        data = Material(cohort, material.bags, material.folds).data
        with pytest.raises(RunError, match="is a run over another cohort"):
            cross_validate(data, ["mean_pool"], out=tmp_path / "run", **options)
    again = cross_validate(material.data, ["mean_pool", "abmil"], out=tmp_path / "run", **options)
    assert (again.predictions.values == run.predictions.values).all()
