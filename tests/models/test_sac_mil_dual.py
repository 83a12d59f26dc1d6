"""SAC-MIL with two heads: the mean of two models of the zoo that share their first layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sacmil import create_model, describe_model
from sacmil.models import MILModel
from sacmil.models._base import classification_loss

SMALL = {"in_dim": 16, "dim": 32, "k": 4, "zero_start": False}

every_count = pytest.mark.parametrize("num_classes", [1, 2, 3])
every_pool = pytest.mark.parametrize("pool", ["mean", "attention", "even", "max"])


def make(name: str, num_classes: int = 2, **options: object) -> MILModel:
    model = create_model(name, **SMALL, num_classes=num_classes, **options)
    return model.double().eval()


def apart(twice: MILModel, **options: object) -> tuple[MILModel, MILModel]:
    """Its two halves as models by themselves: without the block, and with it."""
    state = twice.state_dict()
    after = make("sac_mil_local", twice.num_classes, **options)
    after.load_state_dict({name: state[name] for name in after.state_dict()})
    before = make("sac_mil_local", twice.num_classes, depth=0, **options)
    renamed = {name: _to_dual_name(name) for name in before.state_dict()}
    before.load_state_dict({name: state[theirs] for name, theirs in renamed.items()})
    return before, after


def _to_dual_name(name: str) -> str:
    part, *rest = name.split(".")
    return ".".join([{"pool": "pool_alone", "head": "head_alone"}.get(part, part), *rest])


def bag_of(make_bag, instances: int) -> tuple[Tensor, Tensor]:
    bag = make_bag(instances)
    return torch.from_numpy(bag.features).double(), torch.from_numpy(bag.patch_coords)


def test_the_defaults_are_those_of_sac_mil_local() -> None:
    assert describe_model("sac_mil_dual").options == describe_model("sac_mil_local").options


def test_parameters_are_as_many_as_the_documents_say() -> None:
    with torch.device("meta"):
        model = create_model("sac_mil_dual", in_dim=1024, num_classes=2)
    assert sum(parameter.numel() for parameter in model.parameters()) == 461_574


@every_count
@every_pool
@pytest.mark.parametrize("instances", [1, 3, 90])
def test_the_answer_and_every_score_is_the_mean_of_two_models(
    make_bag, num_classes: int, pool: str, instances: int
) -> None:
    twice, bag = make("sac_mil_dual", num_classes, pool=pool), bag_of(make_bag, instances)
    before, after = (model(*bag) for model in apart(twice, pool=pool))
    output = twice(*bag)
    torch.testing.assert_close(output.logits, (before.logits + after.logits) / 2)
    expected = (before.class_scores + after.class_scores) / 2
    torch.testing.assert_close(output.class_scores, expected)
    if num_classes > 1 and instances > 1:
        assert not torch.allclose(before.logits, after.logits)


@every_count
def test_each_of_the_two_is_trained_by_the_whole_label(make_bag, num_classes: int) -> None:
    """What trains a half is what would train it as a model by itself: the mean is only reported."""
    twice, bag = make("sac_mil_dual", num_classes), bag_of(make_bag, 90)
    target = torch.tensor(0 if num_classes == 3 else 1)
    before, after = apart(twice)
    twice.losses(twice(*bag), target)["all"].backward()
    for model in (before, after):
        classification_loss(model(*bag).logits, target).backward()
    found = {name: parameter.grad for name, parameter in twice.named_parameters()}
    shared = [name for name in found if name.startswith("project")]
    for name in shared:
        both = before.get_parameter(name).grad + after.get_parameter(name).grad
        torch.testing.assert_close(found[name], both / 2)
    for name, parameter in after.named_parameters():
        if name not in shared:
            torch.testing.assert_close(found[name], parameter.grad / 2)
    for name, parameter in before.named_parameters():
        if name not in shared:
            torch.testing.assert_close(found[_to_dual_name(name)], parameter.grad / 2)


def test_a_loss_of_nothing_is_reached_only_if_both_are_right(make_bag) -> None:
    twice, bag = make("sac_mil_dual"), bag_of(make_bag, 40)
    with torch.no_grad():
        twice.head.bias.copy_(torch.tensor([-200.0, 200.0]))
        twice.head_alone.bias.copy_(torch.tensor([50.0, -50.0]))
        output = twice(*bag)
        assert output.logits.argmax() == 1
        assert twice.losses(output, torch.tensor(1))["all"] > 40


@every_count
def test_scores_and_biases_add_up_to_the_logits(make_bag, num_classes: int) -> None:
    twice = make("sac_mil_dual", num_classes)
    output = twice(*bag_of(make_bag, 90))
    bias = (twice.head.bias + twice.head_alone.bias) / 2
    left = output.logits - bias - output.class_scores.sum(0)
    torch.testing.assert_close(left, left.mean().expand(num_classes))
    if num_classes == 1:
        torch.testing.assert_close(left, torch.zeros_like(left))
