"""What every task promises; a new kind of target is subjected to it by one line of TASKS."""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from target_cohort import LEVELS, OTHERS, TASKS, draw_targets
from torch import Tensor, nn

from sacmil.errors import ConfigError, OptionError
from sacmil.metrics.label_density import density_weight, fit_density
from sacmil.results import Prediction, StoredPrediction
from sacmil.tasks import (
    Classification,
    MultiLabel,
    Ordinal,
    Regression,
    Task,
    from_card,
    list_tasks,
    make_task,
)

every_task = pytest.mark.parametrize("name", TASKS)
BY_BAG = tuple(name for name, task in TASKS.items() if not task.needs_batch)
by_bag = pytest.mark.parametrize("name", BY_BAG)
PLAIN: dict[str, Any] = {"label_smoothing": 0.0, "class_weights": "none"}
BALANCED: dict[str, Any] = {"label_smoothing": 0.0, "class_weights": "balanced"}
ROWS = 30


def targets_of(name: str, seed: int = 0, rows: int = ROWS) -> np.ndarray:
    return draw_targets(TASKS[name], rows, np.random.default_rng(seed))


def fitted(name: str, **recipe: Any) -> Task:
    return TASKS[name].fitted(targets_of(name), **{**PLAIN, **recipe})


def draw_outputs(task: Task, rows: int, scale: float = 2.0) -> Tensor:
    return scale * torch.randn(rows, task.outputs, generator=torch.Generator().manual_seed(1))


def apply_head(task: Task, outputs: Tensor) -> Tensor:
    head = task.make_head()
    return outputs if head is None else head(outputs)


def training_loss(task: Task, outputs: Tensor, target: np.ndarray) -> Tensor:
    """The loss of one bag as training computes it, with weights and smoothing."""

    def compute(prepared: Tensor) -> dict[str, Tensor]:
        return {"all": task.prepared_loss(outputs, prepared)}

    return task.total_losses(compute, task.prepare(target))["all"]


def predict(task: Task, outputs: Tensor) -> np.ndarray:
    with torch.no_grad():
        return task.activate(outputs).double().numpy()


def test_every_kind_has_an_instance_here() -> None:
    assert sorted({task.kind for task in TASKS.values()}) == list_tasks()


# --- cards ---------------------------------------------------------------------------------------


@every_task
def test_a_task_is_made_again_of_its_card(name: str) -> None:
    task = TASKS[name]
    assert from_card(task.card) == task
    assert make_task(task.kind, **task.settings) == task


@every_task
def test_a_card_in_a_file_keeps_what_was_learned(name: str) -> None:
    task = fitted(name)
    again = from_card(json.loads(json.dumps(asdict(task.card))))
    assert again == task
    outputs = apply_head(task, draw_outputs(task, 5))
    assert torch.equal(again.activate(outputs), task.activate(outputs))
    assert again.card.settings == task.card.settings


@every_task
def test_what_only_training_needs_changes_no_prediction(name: str) -> None:
    weighted = fitted(name, class_weights="balanced")
    outputs = apply_head(weighted, draw_outputs(weighted, 5))
    assert torch.equal(from_card(weighted.card).activate(outputs), weighted.activate(outputs))
    assert weighted.card == TASKS[name].card, "weights make no other task"


def test_a_regression_keeps_mean_and_deviation_to_the_last_bit() -> None:
    given = targets_of("two numbers")
    again = from_card(json.loads(json.dumps(asdict(fitted("two numbers").card))))
    assert isinstance(again, Regression)
    assert again.mean == tuple(given.mean(axis=0))
    assert again.std == tuple(given.std(axis=0))


@every_task
def test_a_pickled_task_is_the_same(name: str) -> None:
    for task in (TASKS[name], fitted(name, class_weights="balanced")):
        assert pickle.loads(pickle.dumps(task)) == task


@every_task
def test_columns_are_different_and_card_and_task_agree(name: str) -> None:
    task = TASKS[name]
    columns = (*task.target_columns, *task.prediction_columns)
    assert len(set(columns)) == len(columns)
    assert task.card.target_columns == task.target_columns
    assert task.card.prediction_columns == task.prediction_columns
    assert task.card.levels == task.levels
    assert len(task.value_names) == len(task.prediction_columns)


@pytest.mark.parametrize("kind", ["regresion", "", "Task", "_task"])
def test_an_unknown_kind_is_rejected(kind: str) -> None:
    with pytest.raises(OptionError, match="there is no task"):
        make_task(kind, targets="ki67")


@every_task
def test_a_setting_that_a_task_does_not_have_is_rejected(name: str) -> None:
    task = TASKS[name]
    known = next(iter(task.settings))
    with pytest.raises(
        OptionError, match=f"no setting '{known}x' of the task {task.kind}; did you mean"
    ):
        make_task(task.kind, **task.settings, **{f"{known}x": 1})
    if task.kind == "survival":  # its columns are found in the table
        assert make_task(task.kind).source_columns == ("",)
        return
    with pytest.raises(OptionError, match=f"is missing; expected it for the task {task.kind}"):
        make_task(task.kind)


@pytest.mark.parametrize(
    ("kind", "settings", "message"),
    [
        ("regression", {"targets": ()}, "one or more different columns"),
        ("regression", {"targets": ("a", "a")}, "one or more different columns"),
        ("regression", {"targets": "a", "loss": "mea"}, "expected huber, mse, l1"),
        ("regression", {"targets": 5}, "settings of the task regression"),
        ("multilabel", {"labels": ()}, "one or more different columns"),
        ("multilabel", {"labels": ("a", "a")}, "one or more different columns"),
        ("ordinal", {"order": ("low",)}, "two or more different levels"),
        ("ordinal", {"order": "low"}, "`order` is low; expected two or more"),
        ("ordinal", {"order": ("low", "low")}, "two or more different levels"),
        ("ordinal", {"order": LEVELS, "loss": "cora"}, "expected corn, coral"),
    ],
)
def test_wrong_settings_are_rejected_in_a_sentence(
    kind: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        make_task(kind, **settings)


def test_one_name_is_a_list_of_one_and_numbers_are_names_of_levels() -> None:
    assert make_task("multilabel", labels="her2") == MultiLabel(("her2",))
    assert make_task("regression", targets="ki67") == Regression(("ki67",))
    assert make_task("ordinal", order=[1, 2, 3]) == Ordinal(("1", "2", "3"))


@pytest.mark.parametrize("name", ["slide_id", "patient_id", "split", "fold", "seed", "model"])
def test_a_target_cannot_have_the_name_of_another_column(name: str) -> None:
    for make in (Regression, MultiLabel):
        with pytest.raises(OptionError, match=f"has {name!r}, which is another column"):
            make(("er", name))


def test_a_target_cannot_have_the_name_of_a_prediction() -> None:
    for make in (
        lambda: Regression("value"),
        lambda: Regression(("a", "value_a")),
        lambda: MultiLabel(("a", "p_a")),
    ):
        with pytest.raises(OptionError, match="which is another column"):
            make()
    assert Regression(("a", "value")).prediction_columns == ("value_a", "value_value")


def test_a_card_whose_settings_disagree_with_its_columns_is_rejected() -> None:
    card = json.loads(json.dumps(asdict(TASKS["regression"].card)))
    for change in (
        {"target_columns": ["til"]},
        {"settings": {"targets": ["ki67", "til"]}},
        {"prediction_columns": ["value", "more"]},
        {"kind": "multilabel", "settings": {"labels": ["ki67"]}},
    ):
        with pytest.raises(OptionError, match=r"other columns than its own.*copy the file again"):
            from_card({**card, **change})


# --- losses and predictions ----------------------------------------------------------------------


@every_task
def test_a_loss_is_one_number_for_each_bag(name: str) -> None:
    task, targets = fitted(name), torch.from_numpy(targets_of(name))
    outputs = apply_head(task, draw_outputs(task, ROWS))
    assert task.loss(outputs, targets).shape == (ROWS,)
    assert task.loss(outputs, targets).isfinite().all()


@by_bag
def test_a_bag_has_the_same_loss_in_any_batch(name: str) -> None:
    task, targets = fitted(name), torch.from_numpy(targets_of(name))
    outputs = apply_head(task, draw_outputs(task, ROWS))
    single = [task.loss(outputs[i : i + 1], targets[i : i + 1])[0] for i in range(ROWS)]
    torch.testing.assert_close(torch.stack(single), task.loss(outputs, targets))


@by_bag
def test_training_uses_the_loss_of_the_bag(name: str) -> None:
    task, given = fitted(name), targets_of(name)
    outputs = apply_head(task, draw_outputs(task, ROWS))
    found = [training_loss(task, *pair) for pair in zip(outputs, given, strict=True)]
    assert {loss.shape for loss in found} == {()}
    expected = task.loss(outputs, torch.from_numpy(given))
    torch.testing.assert_close(torch.stack(found), expected, check_dtype=False)


@every_task
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_gradients_are_finite_and_not_all_zero(name: str, scale: float) -> None:
    task, given = fitted(name), targets_of(name)
    outputs = apply_head(task, draw_outputs(task, ROWS, scale)).detach().requires_grad_()
    task.loss(outputs, torch.from_numpy(given)).sum().backward()
    assert outputs.grad is not None
    assert outputs.grad.isfinite().all()
    assert outputs.grad.any()


@every_task
def test_a_prediction_has_the_tasks_columns_for_one_bag_and_for_many(name: str) -> None:
    task = fitted(name)
    outputs = apply_head(task, draw_outputs(task, 7))
    together = task.activate(outputs)
    assert together.shape == (7, len(task.prediction_columns))
    assert together.dtype == torch.float32
    assert torch.equal(torch.stack([task.activate(row) for row in outputs]), together)
    assert torch.equal(task.activate(outputs[2:3]), together[2:3])


@every_task
def test_extreme_outputs_have_finite_predictions_within_bounds(name: str) -> None:
    task = fitted(name)
    values = predict(task, apply_head(task, draw_outputs(task, 40, 1e4)))
    assert np.isfinite(values).all()
    if task.are_probabilities and task.kind != "ordinal":
        assert values.min() >= 0
        assert values.max() <= 1


@by_bag
@pytest.mark.parametrize("recipe", [PLAIN, BALANCED])
def test_the_least_loss_is_a_perfect_prediction(name: str, recipe: dict[str, Any]) -> None:
    """Of all losses, labels and thresholds: turned round, any of them fails here."""
    given = targets_of(name, rows=9)
    task = TASKS[name].fitted(given, **recipe)
    z, head = nn.Parameter(torch.zeros(9, task.outputs)), task.make_head()
    optimizer = torch.optim.Adam([z, *(head.parameters() if head else ())], lr=0.3)
    for _ in range(80):
        optimizer.zero_grad()
        rows = zip(head(z) if head else z, given, strict=True)
        torch.stack([training_loss(task, *row) for row in rows]).sum().backward()
        optimizer.step()
    values = predict(task, head(z) if head else z)
    found = task.get_metric(task.headline).compute(given, values)
    if task.kind == "survival":  # times within a bin count alike
        assert found > 0.85
    else:
        assert found == pytest.approx(1, abs=1e-3)
    assert task.find_untestable(given) == ""


@pytest.mark.parametrize("name", [n for n, task in TASKS.items() if task.kind != "survival"])
def test_every_metric_of_a_perfect_prediction_is_the_best_there_is(name: str) -> None:
    task, given = TASKS[name], targets_of(name)
    if task.kind == "regression":
        values = given
    elif task.kind == "multilabel":
        values = np.nan_to_num(given)
    else:
        values = np.eye(len(task.levels))[given[:, 0].astype(int)]
        values = np.hstack([values, given]) if task.kind == "ordinal" else values
    others = np.random.default_rng(0).permutation(values)
    for metric in task.list_metrics("all"):
        one = task.get_metric(metric)
        best = one.compute(given, values)
        assert best == pytest.approx(0 if one.lower_is_better else 1), metric
        assert one.compute(given, others) != pytest.approx(best), metric
        assert one.title
    assert task.headline in task.default_metrics
    assert task.list_metrics(None) == task.default_metrics
    with pytest.raises(ConfigError, match="there is no metric"):
        task.list_metrics([task.headline, "nosuch"])


@pytest.mark.parametrize("name", ["classification", "regression", "two numbers", "multilabel"])
def test_the_validation_loss_is_the_mean_training_loss(name: str) -> None:
    random = np.random.default_rng(3)
    given = targets_of(name)
    given = np.where(np.isnan(given), random.integers(0, 2, given.shape), given)
    task = TASKS[name].fitted(given, **PLAIN)
    variants = [task]
    if isinstance(task, Regression):
        others = [Regression(task.targets, loss) for loss in ("huber", "mse", "l1")]
        variants = [one.fitted(given, **recipe) for one in others for recipe in (PLAIN, BALANCED)]
    for one in variants:
        outputs = draw_outputs(one, ROWS)
        rows = zip(outputs, given, strict=True)
        expected = torch.stack([training_loss(one, *row) for row in rows]).mean().item()
        assert one.validation_loss(given, predict(one, outputs)) == pytest.approx(
            expected, rel=1e-4
        )


@pytest.mark.parametrize("name", ["corn", "coral"])
def test_the_validation_loss_of_levels_is_least_for_the_truth(name: str) -> None:
    task, given = TASKS[name], targets_of(name)
    sure = np.hstack([np.eye(3)[given[:, 0].astype(int)], given])
    unsure = np.tile([1 / 3, 1 / 3, 1 / 3, 1.0], (ROWS, 1))
    assert task.validation_loss(given, sure) == pytest.approx(0, abs=1e-6)
    assert task.validation_loss(given, unsure) == pytest.approx(np.log(3))
    wrong = np.roll(sure, 1, axis=0)
    assert np.isfinite(task.validation_loss(given, wrong)), "a probability of zero has a loss"


# --- learning from the training set --------------------------------------------------------------


@every_task
@pytest.mark.parametrize("recipe", [PLAIN, BALANCED])
def test_what_is_learned_is_of_the_given_targets_only(name: str, recipe: dict[str, Any]) -> None:
    task, one, other = TASKS[name], targets_of(name, 1), targets_of(name, 2, rows=17)
    first = task.fitted(one, **recipe)
    assert task.fitted(other, **recipe).fitted(one, **recipe) == first, (
        "what was learned is forgotten"
    )
    assert task.fitted(one.copy(), **recipe) == first
    assert task == TASKS[name], "a task is immutable"
    assert from_card(task.card) == task


@pytest.mark.parametrize("name", [name for name in OTHERS if name != "cox"])
def test_other_targets_are_learned_as_others(name: str) -> None:
    task, one = TASKS[name], targets_of(name)
    other = one[: ROWS // 2]
    if name == "coral" or name == "corn":
        other = one[one[:, 0] > 0]
    assert task.fitted(one, **BALANCED) != task.fitted(other, **BALANCED)


@every_task
def test_the_order_of_slides_teaches_nothing(name: str) -> None:
    task, given = TASKS[name], targets_of(name)
    turned = given[::-1]
    outputs = apply_head(task, draw_outputs(task, 6))
    one, other = (task.fitted(each, **BALANCED) for each in (given, turned))
    torch.testing.assert_close(one.activate(outputs), other.activate(outputs))
    for row, target in zip(outputs, given, strict=False):
        loss, again = (training_loss(each, row, target) for each in (one, other))
        torch.testing.assert_close(loss, again, rtol=1e-5, atol=1e-6)


def test_a_constant_target_has_the_deviation_one() -> None:
    for value in (0.1, -3.7, 1e12):
        task = TASKS["regression"].fitted(np.full((10, 1), value), **PLAIN)
        assert isinstance(task, Regression)
        assert task.std == (1.0,)
        assert predict(task, torch.zeros(1, 1))[0, 0] == pytest.approx(value)


def test_weights_of_levels_are_one_on_average_and_inverse_to_their_number() -> None:
    given = np.array([[0]] * 6 + [[1]] * 3 + [[2]])
    task = TASKS["corn"].fitted(given, **BALANCED)
    assert isinstance(task, Ordinal)
    weights = np.array(task.class_weights)
    assert weights[given[:, 0]].mean() == pytest.approx(1)
    assert (weights * [6, 3, 1]).tolist() == pytest.approx([10 / 3] * 3)
    absent = TASKS["corn"].fitted(given[:9], **BALANCED)
    assert isinstance(absent, Ordinal)
    assert np.isfinite(absent.class_weights).all(), "a level without a slide"


@pytest.mark.parametrize("name", ["classification", "corn", "coral"])
def test_the_loss_of_a_rare_level_is_multiplied_by_its_weight(name: str) -> None:
    given = np.array([[0.0]] * 6 + [[1.0]] * 2)
    plain, weighted = (TASKS[name].fitted(given, **recipe) for recipe in (PLAIN, BALANCED))
    row = apply_head(plain, draw_outputs(plain, 1))[0]
    for level, weight in ((0.0, 8 / 12), (1.0, 8 / 4)):
        one, other = (training_loss(task, row, np.array([level])) for task in (plain, weighted))
        assert other.item() == pytest.approx(weight * one.item(), rel=1e-5)


def test_a_rare_label_weighs_more_and_one_without_positives_as_others() -> None:
    nan = np.nan
    given = np.array([[1, 0, 1], [0, 0, nan], [0, 0, 1], [0, nan, nan]])
    task = TASKS["multilabel"].fitted(given, **BALANCED)
    assert isinstance(task, MultiLabel)
    assert task.pos_weight == (3.0, 1.0, 1.0)


def test_balanced_weights_follow_the_density_of_numbers() -> None:
    given = np.concatenate([np.random.default_rng(0).normal(0, 1, 60), [9.0]])[:, None]
    task = TASKS["regression"].fitted(given, **BALANCED)
    plain = TASKS["regression"].fitted(given, **PLAIN)
    z = torch.zeros(1)
    rare, common = (
        training_loss(task, z, row) / training_loss(plain, z, row) for row in given[[-1, 0]]
    )
    assert rare > common > 1
    weight = density_weight(given[-1], *fit_density(given[:, 0]))
    assert rare.item() == pytest.approx(1 + weight.item(), rel=1e-5)


def test_a_far_outlier_does_not_make_millions_of_bins() -> None:
    values = np.append(np.random.default_rng(0).normal(size=50), 1e15)
    edges, weights = fit_density(values)
    assert len(edges) == len(weights) <= 10_001
    assert (edges[0], edges[-1]) == (values.min(), values.max())


@pytest.mark.parametrize("name", OTHERS)
def test_label_smoothing_needs_labels(name: str) -> None:
    task = TASKS[name]
    if task.kind == "survival":
        with pytest.raises(ConfigError, match="survival has no classes to weigh"):
            task.check_training(label_smoothing=0.0, class_weights="balanced")
    else:
        task.check_training(label_smoothing=0.0, class_weights="balanced")
    if isinstance(task, MultiLabel):
        task.check_training(label_smoothing=0.1, class_weights="none")
        return
    with pytest.raises(
        ConfigError, match=f"label_smoothing=0.1; the task {task.kind} has no classes"
    ):
        task.check_training(label_smoothing=0.1, class_weights="none")


def test_smoothed_labels_are_least_sure_at_half_the_share() -> None:
    task = MultiLabel(("er",)).fitted(
        np.array([[0.0], [1.0]]), label_smoothing=0.2, class_weights="none"
    )
    z = torch.linspace(-6, 6, 1201)
    losses = torch.stack([training_loss(task, one[None], np.array([1.0])) for one in z])
    assert z[losses.argmin()].sigmoid().item() == pytest.approx(0.9, abs=2e-3)


# --- groups --------------------------------------------------------------------------------------


@every_task
def test_groups_of_rows_follow_their_rows(name: str) -> None:
    task, given = TASKS[name], targets_of(name)
    order = np.random.default_rng(0).permutation(ROWS)
    for groups in (task.strata, task.resampling_groups):
        found = groups(given)
        assert found.shape == (ROWS,)
        assert found.dtype.kind == "i"
        assert found.min() >= 0
        assert groups(given[order]).tolist() == found[order].tolist()


def test_numbers_are_stratified_in_five_groups_of_equal_size() -> None:
    found = TASKS["regression"].strata(targets_of("regression"))
    assert np.bincount(found).tolist() == [6] * 5
    values = targets_of("regression")[:, 0]
    assert (np.diff(found[np.argsort(values)]) >= 0).all(), "by size"


def test_levels_are_stratified_by_themselves() -> None:
    given = targets_of("corn")
    assert TASKS["corn"].strata(given).tolist() == given[:, 0].tolist()


def test_findings_are_stratified_by_the_rarest_that_is_present() -> None:
    given = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 0, 1], [1, 1, 0], [np.nan] * 3], float)
    assert TASKS["multilabel"].strata(given).tolist() == [3, 0, 1, 2, 1, 3]


def test_what_a_training_set_lacks_is_named() -> None:
    corn, findings = TASKS["corn"], TASKS["multilabel"]
    levels = np.array([[0.0], [1], [2], [1]])
    (problem,) = corn.find_fold_problems(levels[:2], levels)
    assert problem.startswith("no slide of level 'high' is in the training set; expected")
    assert corn.find_fold_problems(levels[:2], levels[:2]) == [], "no fold has it"
    assert corn.describe_absent(levels[:2]).startswith("grade is nowhere 'high', so no model can")
    assert corn.describe_absent(levels) == ""
    labels = np.array([[0, 1, np.nan], [1, 1, 0], [1, 0, 1.0]])
    assert findings.find_fold_problems(labels[:1], labels) == []
    assert findings.find_fold_warnings(labels, labels) == []
    end = "is in the training set, so no model can learn it"
    assert findings.find_fold_warnings(labels[:2], labels) == [
        f"no slide known to be without pr {end}",
        f"no slide with her2 {end}",
    ]


def test_numbers_that_are_alike_in_float32_are_a_problem() -> None:
    near, far = np.array([[1.0], [2], [3]]), np.array([[1.0], [2], [3]]) + 1e9
    task = TASKS["regression"]
    assert task.find_training_problems(near) == task.find_training_problems(1e-9 * near) == []
    (problem,) = task.find_training_problems(far)
    assert problem == (
        "ki67 varies by 0.816 only, in numbers up to 1e+09, which models predict with seven "
        "digits; subtract a constant from the column"
    )


def test_a_mistyped_loss_is_suggested() -> None:
    with pytest.raises(OptionError, match="is 'hubr'; expected huber, mse, l1: did you mean 'hub"):
        Regression("ki67", "hubr")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="is 'korn'; expected corn, coral: did you mean 'corn'"):
        Ordinal(LEVELS, loss_name="korn")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["regression", "corn"])
def test_no_confidence_is_claimed_of_numbers(name: str) -> None:
    values = (23.0,) if name == "regression" else (0.2, 0.5, 0.3, 1.1)
    members = (values, tuple(value + 0.1 for value in values))
    found = StoredPrediction("m", values, (0.1,) * len(values), None, members=members)
    text = TASKS[name].explain(found)
    assert "confidence" not in text
    assert "This is an estimate, not a measurement." in text


# --- words ---------------------------------------------------------------------------------------


@every_task
def test_a_prediction_is_described_alike_in_memory_and_in_a_file(name: str) -> None:
    task = fitted(name)
    for row in predict(task, apply_head(task, draw_outputs(task, 9))):
        scores = np.zeros(3, np.float32)
        found = task.describe(Prediction("s", task.prediction_columns, row, scores))
        assert task.describe(StoredPrediction("m", tuple(row.tolist()), None, None)) == found
        assert found.predicted
        assert found.predicted in found.headline or task.kind in ("regression", "multilabel")
        assert set(dict(found.values)) <= {*task.value_names, *task.target_columns}
        assert 0 <= found.score_column < len(task.score_names)
        json.dumps(found)  # plain numbers and text


def test_words_of_each_kind() -> None:
    def words(name: str, *values: float) -> tuple[str, str]:
        found = TASKS[name].describe(StoredPrediction("m", values, None, None))
        return found.predicted, found.headline

    assert words("regression", 23.1234) == ("23.12", "ki67 23.12")
    assert words("two numbers", 5, 0.25) == ("5, 0.25", "ki67 5, til 0.25")
    assert words("regression", 12345.678) == ("12346", "ki67 12346")
    assert words("regression", 0.00012346) == ("0.0001235", "ki67 0.0001235")
    expected = "mid, expected level from 0 (low) to 2 (high): 1.10"
    assert words("corn", 0.2, 0.5, 0.3, 1.1) == ("mid", expected)
    assert words("multilabel", 0.9, 0.2, 0.5) == ("er, her2", "er 0.90, her2 0.50")
    assert words("multilabel", 0.1, 0.2, 0.3) == ("none", "none (her2 0.30)")


def test_the_predicted_level_is_the_median_and_not_the_most_probable() -> None:
    found = TASKS["corn"].describe(StoredPrediction("m", (0.4, 0.25, 0.35, 0.95), None, None))
    assert found.predicted == "mid"
    assert [one.name for one in found.values] == ["mid", "low", "high"]
    assert TASKS["corn"].predict_levels(np.array([[0.4, 0.25, 0.35, 0.95]])).tolist() == [1]


# --- levels --------------------------------------------------------------------------------------


def test_probabilities_of_levels_sum_to_one_and_give_the_expected_level() -> None:
    for name in ("corn", "coral"):
        task = TASKS[name]
        values = predict(task, apply_head(task, draw_outputs(task, 200, 4)))
        np.testing.assert_allclose(values[:, :-1].sum(axis=1), 1, atol=1e-6)
        np.testing.assert_allclose(values[:, :-1] @ [0, 1, 2], values[:, -1], atol=1e-6)


def test_probabilities_of_corn_are_never_negative() -> None:
    for scale in (1, 10, 1000):
        values = predict(TASKS["corn"], draw_outputs(TASKS["corn"], 500, scale))
        assert values[:, :-1].min() >= 0
        assert values[:, -1].max() <= 2


def test_probabilities_of_coral_are_not_negative_while_its_thresholds_are_in_order() -> None:
    task = TASKS["coral"]
    values = predict(task, apply_head(task, draw_outputs(task, 500, 10)))
    assert values[:, :-1].min() >= 0


@pytest.mark.parametrize("name", ["corn", "coral"])
def test_a_level_is_the_number_of_thresholds_that_are_passed(name: str) -> None:
    task = TASKS[name]
    outputs = apply_head(task, draw_outputs(task, 300, 3)).detach()
    passed = outputs.sigmoid() if name == "coral" else outputs.sigmoid().cumprod(-1)
    expected = (passed > 0.5).sum(-1)
    assert task.predict_levels(predict(task, outputs)).tolist() == expected.tolist()


@pytest.mark.parametrize("levels", [2, 3, 6])
def test_thresholds_of_coral_start_evenly_and_are_learned(levels: int) -> None:
    task = Ordinal(tuple(map(str, range(levels))), loss_name="coral")
    head = task.make_head()
    assert head is not None
    ((_, start),) = head.named_parameters()
    k = np.arange(levels - 1)
    np.testing.assert_allclose(start.detach().numpy(), (levels - 1 - k) / (levels - 1), rtol=1e-6)
    assert task.outputs == 1
    training_loss(task, head(torch.zeros(1)), np.array([0.0])).backward()
    assert start.grad is not None
    assert (start.grad > 0).all(), "the lowest level moves every threshold up"


def test_two_levels_of_either_kind_are_a_logistic_regression() -> None:
    z = torch.linspace(-3, 3, 7)[:, None]
    for loss in ("corn", "coral"):
        task = Ordinal(("no", "yes"), loss_name=loss)
        for level in (0.0, 1.0):
            expected = nn.functional.binary_cross_entropy_with_logits(
                z[:, 0], torch.full((7,), level), reduction="none"
            )
            torch.testing.assert_close(task.loss(z, torch.full((7, 1), level)), expected)
        assert torch.allclose(task.activate(z)[:, 1], z[:, 0].sigmoid())


# --- what a task cannot test ---------------------------------------------------------------------


@every_task
def test_targets_without_a_difference_cannot_be_tested(name: str) -> None:
    task, given = TASKS[name], targets_of(name)
    assert task.find_untestable(given) == ""
    assert task.find_untestable(np.ones_like(given)).startswith("holds ")
    assert task.find_untestable(given[:1]).startswith("holds ")


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_can_be_learned_from_one_value(name: str) -> None:
    task, given = TASKS[name], targets_of(name)
    assert task.find_training_problems(given) == []
    problems = task.find_training_problems(np.ones_like(given))
    assert len(problems) == (1 if task.kind == "survival" else given.shape[1])
    assert all("in every row" in problem for problem in problems)


def test_classes_are_what_they_were() -> None:
    task = Classification(("a", "b"))
    assert task.card.settings == {"classes": ["a", "b"]}
    assert task.card.is_classification
    assert asdict(task.card)["prediction_columns"] == ("p_a", "p_b")


@pytest.mark.parametrize("name", TASKS)
def test_a_task_learns_from_targets_without_any_option(name: str) -> None:
    assert TASKS[name].fitted(targets_of(name)) == fitted(name)
