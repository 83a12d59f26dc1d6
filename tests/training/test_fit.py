"""The training loop: sampling, callbacks, reproducibility, the choice of the epoch, resuming."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cluster_bags import make_cluster_bags
from torch import Tensor, nn

from sacmil import Bag, create_model, predict
from sacmil.errors import BagWarning, SacMILError
from sacmil.metrics.classification import auc
from sacmil.models import MILModel, Output, Recipe, _checks, describe_model
from sacmil.models._registry import get_model_class
from sacmil.plans import PlanFolder
from sacmil.tasks import Classification
from sacmil.training.checkpoint import Checkpoint
from sacmil.training.fit import _draw_order, fit, fit_task
from sacmil.training.loading import make_sample_loader, to_sample

SMALL = {"in_dim": 8, "num_classes": 2, "dim": 16, "k": 4}


def cohort(slides: int = 6):
    made = make_cluster_bags(slides, seed=0, dim=8, instances=(40, 60))
    return [bag for bag, _ in made], [label for _, label in made]


def trained(seed: int, epochs: int = 2, **options):
    torch.manual_seed(7)
    model = create_model("sac_mil", **SMALL, **options)
    fit(model, make_sample_loader(model, *cohort()), Recipe(lr=1e-2, epochs=epochs), seed=seed)
    return model.state_dict()


def test_the_same_seed_gives_the_same_weights_bit_for_bit() -> None:
    first, second, other = trained(0), trained(0), trained(1)
    assert all(first[name].equal(second[name]) for name in first)
    assert not all(first[name].equal(other[name]) for name in first)


def test_every_epoch_is_reported_with_its_loss() -> None:
    epochs = []
    model = create_model("sac_mil", **SMALL)
    recipe = Recipe(lr=1e-2, epochs=3, accumulate=4)
    fit(model, make_sample_loader(model, *cohort()), recipe, on_epoch=epochs.append)
    assert [line.epoch for line in epochs] == [1, 2, 3]
    assert all(np.isfinite(line.loss) for line in epochs)
    assert not model.training


def test_few_bags_are_gone_over_until_there_are_steps_enough() -> None:
    model = create_model("sac_mil", **SMALL)
    recipe = Recipe(lr=1e-2, epochs=2, min_steps=16, schedule="cosine")
    fitted = fit(model, make_sample_loader(model, *cohort(slides=6)), recipe)
    assert [line.epoch for line in fitted.history] == [1, 2, 3]
    assert fitted.best_epoch == 3
    assert fitted.history[1].lr > 0.6 * recipe.lr, "the cosine ends with the last epoch"


def test_the_balanced_sampler_evens_out_rare_classes() -> None:
    targets = (np.arange(40) < 4).astype(np.float64)[:, None]
    random, task = np.random.default_rng(0), Classification(("common", "rare"))
    balanced = Recipe(sampler="balanced")
    sampled = np.concatenate([_draw_order(targets, balanced, task, random) for _ in range(50)])
    assert np.mean(sampled < 4) == pytest.approx(0.5, abs=0.05)
    assert sorted(_draw_order(targets, Recipe(), task, random)) == list(range(40))


class Student(MILModel):
    """Remembers where instances are and, where it has a teacher, trains it first."""

    name = "student"

    def __init__(self, *, in_dim: int, num_classes: int) -> None:
        super().__init__(in_dim, num_classes)
        self.head = nn.Linear(in_dim, num_classes)
        self.planned: list[np.ndarray] = []
        self.teachers: list[Student] = []  # a list, so that it is no submodule
        self.lessons: list[tuple[int, bool, bool]] = []

    def plan(self, coords: np.ndarray, features: np.ndarray | None = None) -> dict[str, np.ndarray]:
        self.planned.append(coords)
        return {}

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        return Output(self.head(features.mean(0)), features.norm(dim=1))

    def stages(self, training_bags):
        own = self.head.weight.detach().clone()
        for teacher in self.teachers:
            before = teacher.head.weight.detach().clone()
            yield teacher
            taught = not teacher.head.weight.equal(before)
            self.lessons.append((len(training_bags), taught, self.head.weight.equal(own)))
        yield self


def test_training_gets_positions_in_patch_units() -> None:
    model = Student(in_dim=8, num_classes=2)
    coords = np.array([[512, 1024], [2560, 512], [0, 0]])
    bag = Bag("slide", np.ones((3, 8), np.float32), coords, 512)
    sample = to_sample(model, bag, torch.tensor(1))
    for found in (sample.coords, model.planned[0]):
        np.testing.assert_array_equal(found, [[1, 2], [5, 1], [0, 0]])


def test_positions_in_pixels_are_reported_where_the_plan_was_stored_too(
    tmp_path, monkeypatch
) -> None:
    model = create_model("sac_mil", **SMALL)
    coords = np.argwhere(np.ones((3, 3))) * 60_000
    bag = Bag("slide", np.ones((9, 8), np.float32), coords, 1)
    for _ in range(2):
        monkeypatch.setattr(_checks, "_has_warned", False)  # once per process
        with pytest.warns(BagWarning, match="look like level-0 pixels"):
            to_sample(model, bag, torch.tensor(1), PlanFolder(tmp_path))
    assert len(list(tmp_path.iterdir())) == 1


def test_helpers_are_trained_before_the_model_that_needs_them() -> None:
    model = Student(in_dim=8, num_classes=2)
    model.teachers = [Student(in_dim=8, num_classes=2) for _ in range(2)]
    before, epochs = model.head.weight.detach().clone(), []
    recipe = Recipe(lr=1e-2, epochs=3)
    samples = make_sample_loader(model, *cohort())
    fitted = fit(
        model, samples, recipe, on_epoch=lambda line: epochs.append((line.stage, line.epoch))
    )
    assert model.lessons == 2 * [(6, True, True)], "bags, teacher trained, student untouched"
    assert epochs == [(stage, epoch) for stage in range(3) for epoch in (1, 2, 3)]
    assert fitted.model is model
    assert not model.head.weight.equal(before)


def test_the_rate_follows_the_epochs_done_fractions_included() -> None:
    def moves(slides: int, epochs: int) -> bool:
        """While the rate warms up over the first epoch, its first step stays where it is."""
        model = Student(in_dim=8, num_classes=2)
        before = model.head.weight.detach().clone()
        recipe = Recipe(lr=1e-2, epochs=epochs, warmup_epochs=1)
        fit(model, make_sample_loader(model, *cohort(slides)), recipe)
        return not model.head.weight.equal(before)

    assert not moves(slides=1, epochs=1)
    assert moves(slides=1, epochs=2), "the second epoch is warm"
    assert moves(slides=2, epochs=1), "half an epoch is half warm"


def test_sac_mil_sees_how_cells_stand_and_pooling_cannot() -> None:
    """Equal composition; learned from 50 small bags, tested on 30 others."""
    made = make_cluster_bags(
        80, seed=0, dim=8, instances=(60, 90), contrast=5.0, tumour_share=0.25, clusters=1
    )
    bags, labels = [bag for bag, _ in made], [label for _, label in made]
    recipe = Recipe(optimizer="adamw", lr=1e-2, schedule="cosine", epochs=6, accumulate=4)

    def score(**options) -> float:
        torch.manual_seed(0)
        model = create_model("sac_mil", **SMALL | {"k": 16, "dim": 32}, **options)
        fit(model, make_sample_loader(model, bags[:50], labels[:50]), recipe)
        return auc(labels[50:], [predict(model, bag).probabilities[1] for bag in bags[50:]])

    assert score(position="none") > 0.95
    assert abs(score(position="none", depth=0) - 0.5) < 0.2


# --- choosing an epoch ---------------------------------------------------------------------------


class ScriptedModel(MILModel):
    """Predicts, after each epoch, what the script of the test says."""

    name = "scripted"

    def __init__(self, *, in_dim: int, num_classes: int) -> None:
        super().__init__(in_dim, num_classes)
        self.head = nn.Linear(in_dim, num_classes)
        self.register_buffer("epochs", torch.zeros(()))
        self.script: list[list[float]] = []
        self.calls = 0

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        if self.training:
            self.epochs += 1
            return Output(self.head(features.mean(0)), features.norm(dim=1))
        probability = self.script[int(self.epochs) - 1][self.calls % 2]
        self.calls += 1
        logits = torch.tensor([1 - probability, probability]).log()
        return Output(logits, features.norm(dim=1))


def choose(script: list[list[float]], **recipe):
    """Train one bag an epoch; the script predicts two validation bags (classes 0 and 1)."""
    model = ScriptedModel(in_dim=8, num_classes=2)
    model.script = script
    bags, _ = cohort(3)
    fitted = fit(
        model,
        make_sample_loader(model, bags[:1], [0]),
        Recipe(epochs=len(script), **recipe),
        validation=make_sample_loader(model, bags[1:], [0, 1]),
    )
    assert int(model.epochs) == fitted.best_epoch, "the weights are those of the chosen epoch"
    return fitted.best_epoch, len(fitted.history)


def test_the_best_validation_epoch_is_kept_and_of_the_very_same_the_first() -> None:
    good, bad = [0.2, 0.8], [0.8, 0.2]
    assert choose([bad, good, good, bad], monitor="val_auc") == (2, 4)
    assert choose([bad, [0.3, 0.7], good, bad], monitor="val_loss") == (3, 4)
    assert choose([good, bad, bad], monitor="last") == (3, 3)


def test_of_epochs_that_rank_alike_the_one_with_the_lowest_loss_is_kept() -> None:
    unsure, sure, surer_but_wrong = [0.4, 0.6], [0.1, 0.9], [0.9, 0.95]
    assert choose([unsure, sure, unsure], monitor="val_auc") == (2, 3)
    assert choose([unsure, surer_but_wrong, unsure], monitor="val_auc") == (1, 3)
    assert choose([unsure, [0.6, 0.59]], monitor="val_auc") == (1, 2), "the AUC comes first"


def test_patience_counts_epochs_without_improvement_but_not_before_the_fewest() -> None:
    good, bad = [0.2, 0.8], [0.8, 0.2]
    script = [good, bad, bad, bad, bad, bad]
    assert choose(script, monitor="val_auc", patience=2) == (1, 3)
    assert choose(script, monitor="val_auc", patience=2, min_epochs=5) == (1, 5)


def test_no_epoch_is_kept_before_the_monitor_begins() -> None:
    good, bad = [0.2, 0.8], [0.8, 0.2]
    assert choose([good, good, bad, good, bad], monitor="val_auc", monitor_from=0.4) == (4, 5)


def test_a_choice_needs_a_validation_set_of_two_classes() -> None:
    model = create_model("sac_mil", **SMALL)
    samples = make_sample_loader(model, *cohort())
    with pytest.raises(SacMILError, match=r"is empty.*monitor=last"):
        fit(model, samples, Recipe(monitor="val_auc"))
    one = make_sample_loader(model, cohort()[0][:2], [1, 1])
    with pytest.raises(SacMILError, match="one class only"):
        fit(model, samples, Recipe(monitor="val_auc"), validation=one)


def test_a_loss_that_is_no_number_ends_training_with_advice() -> None:
    model = create_model("sac_mil", **SMALL)
    torch.nn.init.constant_(next(model.parameters()), float("nan"))
    with pytest.raises(SacMILError, match=r"epoch 1 is nan.*smaller lr"):
        fit(model, make_sample_loader(model, *cohort()), Recipe(epochs=2))


# --- resuming ----------------------------------------------------------------------------------

RESUMED = {
    "sac_mil": {"dim": 16, "k": 4},
    "abmil_gated": {"hidden": 16},
    "clam_sb": {"hidden": 16},
    "dtfd": {"hidden": 16},
    "ibmil": {"confounders": 2},
    "norma": {"dim": 32, "segment": 32, "heads": 2},
    "dsmil": {},
}


class Killed(Exception):
    pass


PLAIN = {"abmil_gated", "clam_sb", "dsmil"}
"""Trained by one optimizer in one stage, without slow weights, as sac_mil is."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name in PLAIN)) for name in RESUMED],
)
def test_a_run_stopped_after_any_epoch_ends_with_the_same_weights(name: str, tmp_path) -> None:
    bags, labels = cohort(5)
    official = get_model_class(name).recipes["official"]
    recipe = official.replace(
        epochs=2,
        lr=1e-2,
        patience=None,
        min_epochs=0,
        monitor_from=0,
        monitor="val_auc",
        instance_dropout=0.2,
    )
    known = describe_model(name).options
    options = {k: v for k, v in {**RESUMED[name], **recipe.options}.items() if k in known}

    def run(file: str, stop_after: int | None):
        torch.manual_seed(5)
        model = create_model(name, in_dim=8, num_classes=2, **options)
        epochs = []

        def stop(line) -> None:
            epochs.append(line)
            if stop_after is not None and len(epochs) > stop_after:
                checkpoint.wait_for_write()
                raise Killed

        checkpoint = Checkpoint(tmp_path / file)
        fitted = fit(
            model,
            make_sample_loader(model, bags[:3], labels[:3]),
            recipe,
            validation=make_sample_loader(model, bags[3:], labels[3:]),
            checkpoint=checkpoint,
            on_epoch=stop,
        )
        checkpoint.wait_for_write()
        return fitted

    whole = run("whole", None)
    last = len(whole.history) - 1
    for after in sorted({0, last // 2, last}):  # in several stages: within one and between two
        with pytest.raises(Killed):
            run(f"stopped-{after}", after)
        torch.rand(3)  # other random numbers in between
        resumed = run(f"stopped-{after}", None)
        assert resumed.best_epoch == whole.best_epoch
        assert [line.loss for line in resumed.history] == [line.loss for line in whole.history]
        ours, theirs = resumed.model.state_dict(), whole.model.state_dict()
        assert all(ours[key].equal(theirs[key]) for key in theirs)


def test_weights_of_classes_that_are_present_are_one_on_average() -> None:
    model = create_model("mean_pool", in_dim=8, num_classes=3)
    samples = make_sample_loader(model, *cohort(5))
    task = fit_task(model.known_task, samples, Recipe(class_weights="balanced"))
    found = np.array(task.class_weights)
    assert found[samples.targets[:, 0].astype(int)].mean() == pytest.approx(1)
    assert len(found) == 3
    assert fit_task(task, samples, Recipe()).class_weights == ()


def test_without_a_task_classes_are_learned_as_the_recipe_says() -> None:
    recipe = Recipe(lr=1e-2, epochs=2, class_weights="balanced", label_smoothing=0.2)
    bags, labels = cohort(5)

    def weights(recipe: Recipe, *, is_given: bool) -> dict[str, Tensor]:
        torch.manual_seed(7)
        model = create_model("mean_pool", in_dim=8, num_classes=2)
        samples = make_sample_loader(model, bags, labels)
        known = Classification(("benign", "malignant"))
        fit(model, samples, recipe, task=fit_task(known, samples, recipe) if is_given else None)
        return model.state_dict()

    one, same = (weights(recipe, is_given=is_given) for is_given in (True, False))
    assert all(one[name].equal(same[name]) for name in one)
    for other in (recipe.replace(class_weights="none"), recipe.replace(label_smoothing=0)):
        found = weights(other, is_given=False)
        assert not all(one[name].equal(found[name]) for name in one)
