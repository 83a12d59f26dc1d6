"""Epochs over bags: what is drawn, what is told, and that a seed says everything."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sacmil import Bag, create_model, predict
from sacmil.cohorts.synthetic import cluster
from sacmil.evaluation.metrics import auc
from sacmil.models import MILModel, Output, Recipe
from sacmil.training.loop import _order, fit, to_sample

SMALL = {"in_dim": 8, "num_classes": 2, "dim": 16, "k": 4}


def cohort(slides: int = 6):
    made = cluster(slides, seed=0, dim=8, instances=(40, 60))
    return [bag for bag, _ in made], [label for _, label in made]


def trained(seed: int, epochs: int = 2, **options):
    torch.manual_seed(7)
    model = create_model("sac_mil", **SMALL, **options)
    fit(model, *cohort(), Recipe(lr=1e-2, epochs=epochs), seed=seed)
    return model.state_dict()


def test_the_same_seed_gives_the_same_weights_bit_for_bit() -> None:
    first, second, other = trained(0), trained(0), trained(1)
    assert all(first[name].equal(second[name]) for name in first)
    assert not all(first[name].equal(other[name]) for name in first)


def test_every_epoch_is_told_with_its_loss() -> None:
    told = []
    model = create_model("sac_mil", **SMALL)
    recipe = Recipe(lr=1e-2, epochs=3, accumulate=4)
    fit(model, *cohort(), recipe, progress=lambda epoch, loss: told.append((epoch, loss)))
    assert [epoch for epoch, _ in told] == [1, 2, 3]
    assert all(np.isfinite(loss) for _, loss in told)
    assert not model.training


def test_the_balanced_sampler_evens_out_rare_classes() -> None:
    model = create_model("sac_mil", **SMALL)
    bags, _ = cohort(40)
    samples = [to_sample(model, bag, int(i < 4)) for i, bag in enumerate(bags)]
    random = np.random.default_rng(0)
    balanced = Recipe(sampler="balanced")
    drawn = np.concatenate([_order(samples, balanced, random) for _ in range(50)])
    assert np.mean(drawn < 4) == pytest.approx(0.5, abs=0.05)
    assert sorted(_order(samples, Recipe(), random)) == list(range(40))


class Student(MILModel):
    """Remembers where instances are and, where it has a teacher, trains it first."""

    name = "student"

    def __init__(self, *, in_dim: int, num_classes: int) -> None:
        super().__init__(in_dim, num_classes)
        self.head = nn.Linear(in_dim, num_classes)
        self.planned: list[np.ndarray] = []
        self.teachers: list[Student] = []  # a list, so that it is no part of the model
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


def test_training_is_told_places_in_patch_units() -> None:
    model = Student(in_dim=8, num_classes=2)
    coords = np.array([[512, 1024], [2560, 512], [0, 0]])
    sample = to_sample(model, Bag("slide", np.ones((3, 8), np.float32), coords, 512), 1)
    for told in (sample.coords, model.planned[0]):
        np.testing.assert_array_equal(told, [[1, 2], [5, 1], [0, 0]])


def test_helpers_are_trained_before_the_model_that_asks_for_them() -> None:
    model = Student(in_dim=8, num_classes=2)
    model.teachers = [Student(in_dim=8, num_classes=2) for _ in range(2)]
    before, told = model.head.weight.detach().clone(), []
    recipe = Recipe(lr=1e-2, epochs=3)
    fitted = fit(model, *cohort(), recipe, progress=lambda epoch, loss: told.append(epoch))
    assert model.lessons == 2 * [(6, True, True)], "bags, teacher trained, student untouched"
    assert told == 3 * [1, 2, 3]
    assert fitted is model
    assert not model.head.weight.equal(before)


def test_the_rate_follows_the_epochs_done_fractions_included() -> None:
    def moves(slides: int, epochs: int) -> bool:
        """While the rate warms up over the first epoch, its first step stays where it is."""
        model = Student(in_dim=8, num_classes=2)
        before = model.head.weight.detach().clone()
        fit(model, *cohort(slides), Recipe(lr=1e-2, epochs=epochs, warmup_epochs=1))
        return not model.head.weight.equal(before)

    assert not moves(slides=1, epochs=1)
    assert moves(slides=1, epochs=2), "the second epoch is warm"
    assert moves(slides=2, epochs=1), "half an epoch is half warm"


def test_sac_mil_sees_how_cells_stand_and_pooling_cannot() -> None:
    """Equal composition; learned from 100 small bags, tested on 60 others."""
    made = cluster(
        160, seed=0, dim=8, instances=(150, 250), contrast=5.0, tumour_share=0.25, clusters=1
    )
    bags, labels = [bag for bag, _ in made], [label for _, label in made]
    recipe = Recipe(optimiser="adamw", lr=5e-3, schedule="cosine", epochs=6, accumulate=4)

    def score(**options) -> float:
        torch.manual_seed(0)
        model = create_model("sac_mil", **SMALL | {"k": 16, "dim": 32}, **options)
        fit(model, bags[:100], labels[:100], recipe)
        return auc(labels[100:], [predict(model, bag).probabilities[1] for bag in bags[100:]])

    assert score(position="none") > 0.95
    assert abs(score(position="none", depth=0) - 0.5) < 0.2
