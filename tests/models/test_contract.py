"""What every registered model promises; a new model file is subjected to it without an edit."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from sacmil import create_model, describe_model, list_models
from sacmil.errors import InputError, OptionError
from sacmil.models import MILModel, Recipe, Sample
from sacmil.models._registry import model_class
from sacmil.training.step import Trainer

IN_DIM = 24
INSTANCES = 150

every_model = pytest.mark.parametrize("name", list_models())


def make(name: str, num_classes: int = 2, **options: object) -> MILModel:
    torch.manual_seed(1)
    return create_model(name, in_dim=IN_DIM, num_classes=num_classes, **options).eval()


def place(instances: int = INSTANCES, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Features at distinct places of an irregular grid, in no particular order."""
    random = np.random.default_rng(seed)
    side = int(np.ceil(np.sqrt(3 * instances)))
    places = random.choice(side * side, instances, replace=False)
    coords = np.stack(np.divmod(places, side), axis=1).astype(np.float64)
    features = random.standard_normal((instances, IN_DIM)).astype(np.float32)
    return torch.from_numpy(features), torch.from_numpy(coords)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return torch.allclose(a, b, atol=1e-5, rtol=1e-4)


@every_model
@pytest.mark.parametrize("num_classes", [1, 2, 5])
@pytest.mark.parametrize("instances", [1, 2, 3, 17, INSTANCES])
def test_the_answer_is_whole_and_finite(name: str, num_classes: int, instances: int) -> None:
    model = make(name, num_classes)
    output = model(*place(instances))
    assert output.logits.shape == (num_classes,)
    assert output.scores.shape == (instances,)
    assert output.logits.isfinite().all()
    assert output.scores.isfinite().all()
    if output.class_scores is not None:
        assert output.class_scores.shape == (instances, num_classes)
        assert output.class_scores.isfinite().all()


@every_model
def test_evaluation_is_deterministic(name: str) -> None:
    model, bag = make(name), place()
    first, second = model(*bag), model(*bag)
    assert first.logits.equal(second.logits)
    assert first.scores.equal(second.scores)


@every_model
def test_a_plan_made_beforehand_changes_nothing(name: str) -> None:
    model = make(name)
    features, coords = place()
    plan = model.plan(coords.numpy(), features.numpy())
    given, made = model(features, coords, plan), model(features, coords)
    assert given.logits.equal(made.logits)
    assert given.scores.equal(made.scores)


@every_model
def test_row_order_matters_exactly_where_declared(name: str) -> None:
    model = make(name)
    features, coords = place()
    rows = torch.from_numpy(np.random.default_rng(5).permutation(INSTANCES))
    output, shuffled = model(features, coords), model(features[rows], coords[rows])
    unchanged = same(output.logits, shuffled.logits) and same(output.scores[rows], shuffled.scores)
    assert unchanged != model.order_matters


@every_model
def test_coordinates_matter_exactly_where_declared(name: str) -> None:
    model = make(name)
    features, coords = place()
    rows = torch.from_numpy(np.random.default_rng(5).permutation(INSTANCES))
    moved = model(features, coords[rows])
    assert same(model(features, coords).logits, moved.logits) != model.coords_matter


@every_model
def test_scores_tell_instances_apart(name: str) -> None:
    assert make(name)(*place()).scores.unique().numel() > INSTANCES / 2


@every_model
@pytest.mark.parametrize("num_classes", [1, 3])
def test_probabilities_are_probabilities(name: str, num_classes: int) -> None:
    model = make(name, num_classes)
    probabilities = model.probabilities(model(*place()))
    assert probabilities.shape == (num_classes,)
    assert ((probabilities >= 0) & (probabilities <= 1)).all()
    if num_classes > 1:
        assert probabilities.sum().item() == pytest.approx(1.0, abs=1e-6)


@every_model
@pytest.mark.parametrize("num_classes", [1, 3])
def test_gradients_reach_every_parameter_that_is_alive(name: str, num_classes: int) -> None:
    model = make(name, num_classes).train()
    losses = model.losses(model(*place()), torch.tensor(min(1, num_classes - 1) or 1))
    sum(losses.values()).backward()
    without = {n for n, p in model.named_parameters() if p.grad is None}
    assert without == model.dead_parameters
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@every_model
def test_every_parameter_is_trained_by_exactly_one_loss(name: str) -> None:
    model = make(name).train()
    groups = model.parameter_groups()
    assert set(groups) == set(model.losses(model(*place()), torch.tensor(1)))
    grouped = [name for group in groups.values() for name in group]
    trained = [name for name, p in model.named_parameters() if p.requires_grad]
    assert sorted(grouped) == sorted(trained)


@every_model
@pytest.mark.parametrize("num_classes", [1, 2])
def test_training_lowers_the_loss(name: str, num_classes: int) -> None:
    model = make(name, num_classes)
    samples = []
    for label in (0, 1):
        features, coords = place(60, seed=label)
        samples.append(Sample(features + 2 * label, coords, {}, torch.tensor(label)))
    samples = [s._replace(plan=model.plan(s.coords.numpy(), s.features.numpy())) for s in samples]
    for stage in model.stages(samples):
        trainer = Trainer(stage, Recipe(lr=2e-3, accumulate=2))
        losses = [sum(trainer.step(samples).values()) for _ in range(20)]
        assert np.mean(losses[-3:]) < 0.8 * losses[0]


@every_model
def test_the_constructor_is_the_configuration(name: str) -> None:
    model = make(name)
    assert set(model.options) == {"in_dim", "num_classes", *describe_model(name).options}
    twin = create_model(name, **model.options)
    shapes = [{k: v.shape for k, v in m.state_dict().items()} for m in (model, twin)]
    assert shapes[0] == shapes[1]
    assert copy.deepcopy(model).options == model.options


@every_model
def test_every_option_is_explained(name: str) -> None:
    description = describe_model(name)
    assert description.summary.endswith(".")
    assert set(description.help) == set(description.options)


@every_model
def test_both_recipes_are_there(name: str) -> None:
    assert {"paper", "official"} <= set(model_class(name).recipes)


@every_model
@pytest.mark.parametrize(
    ("features", "coords", "words"),
    [
        (torch.zeros(5, IN_DIM + 1), torch.zeros(5, 2), f"in_dim={IN_DIM + 1}"),
        (torch.zeros(1, 5, IN_DIM), torch.zeros(5, 2), "without a batch axis"),
        (torch.zeros(0, IN_DIM), torch.zeros(0, 2), "N >= 1"),
        (torch.zeros(5, IN_DIM), torch.zeros(4, 2), "4 coordinates for 5 instances"),
        (torch.zeros(5, IN_DIM), torch.zeros(5, 3), "expected (N, 2)"),
        (torch.zeros(5, IN_DIM), None, "coords are None"),
    ],
)
def test_a_bag_that_does_not_fit_is_refused_in_one_sentence(name, features, coords, words) -> None:
    with pytest.raises(InputError) as error:
        make(name)(features, coords)
    assert words in str(error.value)


@every_model
def test_unknown_options_and_sizes_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match="has no option 'no_such_option'"):
        create_model(name, in_dim=4, num_classes=2, no_such_option=1)
    for sizes in ({"in_dim": 0, "num_classes": 2}, {"in_dim": 4, "num_classes": 0}):
        with pytest.raises(OptionError, match="at least 1"):
            create_model(name, **sizes)


@every_model
def test_features_of_other_precision_are_taken(name: str) -> None:
    model = make(name)
    features, coords = place()
    half = model(features.half(), coords)
    assert half.logits.dtype == torch.float32
    assert torch.allclose(half.logits, model(features, coords).logits, atol=0.02)
