"""SAC-MIL in small regions is what it says it is, with one head and with two."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from sacmil import create_model, describe_model
from sacmil.errors import OptionError
from sacmil.models import MILModel, Output
from sacmil.models._base import classification_loss
from sacmil.regions import arrange

SMALL = {"in_dim": 16, "dim": 32, "k": 4}
POOLS = ["mean", "attention", "even", "max"]

CHOSEN = {
    "dim": 256,
    "k": 8,
    "depth": 1,
    "position": "none",
    "centers": "peel",
    "region_order": "hilbert",
    "mlp": "linear",
    "pool": "even",
    "zero_start": True,
    "start": 1.0,
}
OWN = ("zero_start", "start")
"""What ``sac_mil`` does not have."""

every_pool = pytest.mark.parametrize("pool", POOLS)


def as_tensors(bag) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(bag.features).double(), torch.from_numpy(bag.patch_coords)


def the_papers(**options: object) -> MILModel:
    """A ``sac_mil`` with the options of a ``sac_mil_local``."""
    local = create_model("sac_mil_local", **SMALL, **options)
    its_own = {name: value for name, value in local.options.items() if name not in OWN}
    return create_model("sac_mil", **its_own).double().eval()


def with_weights_of(other: MILModel, **options: object) -> MILModel:
    model = create_model("sac_mil_local", **SMALL, **options).double().eval()
    model.load_state_dict(other.state_dict())
    return model


def make(num_classes: int, **options: object) -> MILModel:
    return (
        create_model("sac_mil_local", **SMALL, num_classes=num_classes, **options).double().eval()
    )


def predicting(model: MILModel, bag, wanted: int) -> Output:
    """The answer once the bias says which class is predicted."""
    with torch.no_grad():
        model.head.bias.zero_()
        model.head.bias[wanted] = 100.0
        output = model(*as_tensors(bag))
    assert output.logits.argmax() == wanted
    return output


# --- a preset and nothing else -------------------------------------------------------------------


def test_the_defaults_are_what_the_studies_chose() -> None:
    assert describe_model("sac_mil_local").options == CHOSEN


def test_parameters_are_as_many_as_the_documents_say() -> None:
    with torch.device("meta"):
        model = create_model("sac_mil_local", in_dim=1024, num_classes=2)
    assert sum(parameter.numel() for parameter in model.parameters()) == 428_035


def test_without_options_regions_of_eight_are_peeled_and_strung_along_a_curve(make_bag) -> None:
    coords = make_bag(300).patch_coords
    model = create_model("sac_mil_local", in_dim=16, num_classes=2)
    expected = arrange(coords, 8, "peel", "hilbert")
    np.testing.assert_array_equal(model.plan(coords)["order"], expected)


@every_pool
@pytest.mark.parametrize("instances", [1, 3, 90])
def test_with_the_weights_of_sac_mil_the_answer_is_that_of_sac_mil(
    make_bag, pool: str, instances: int
) -> None:
    options = {"num_classes": 3, "pool": pool, "depth": 2}
    paper, bag = the_papers(**options), as_tensors(make_bag(instances))
    local = with_weights_of(paper, **options)
    torch.testing.assert_close(local(*bag).logits, paper(*bag).logits)


@every_pool
def test_with_the_weights_of_sac_mil_the_gradients_are_those_of_sac_mil(make_bag, pool) -> None:
    options = {"num_classes": 2, "pool": pool, "depth": 2}
    paper, bag = the_papers(**options), as_tensors(make_bag(90))
    local = with_weights_of(paper, **options)
    for model in (paper, local):
        model.losses(model(*bag), torch.tensor(1))["all"].backward()
    found = {name: parameter.grad for name, parameter in local.named_parameters()}
    for name, parameter in paper.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad)


@every_pool
@pytest.mark.parametrize("mlp", ["linear", "mlp"])
@pytest.mark.parametrize("instances", [1, 3, 90])
def test_before_training_instances_are_independent(
    make_bag, mlp: str, pool: str, instances: int
) -> None:
    features, coords = as_tensors(make_bag(instances))
    model = make(2, mlp=mlp, pool=pool, depth=2)
    independent = model.head(model.pool(model.project(features)))
    torch.testing.assert_close(model(features, coords).logits, independent)
    usual = make(2, mlp=mlp, pool=pool, depth=2, zero_start=False)
    together = usual(features, coords).logits
    assert not torch.allclose(usual.head(usual.pool(usual.project(features))), together)


def test_what_begins_as_nothing_is_learned(make_bag) -> None:
    model = make(2, position="soft_peg")
    model.losses(model(*as_tensors(make_bag(90))), torch.tensor(1))["all"].backward()
    (block,) = model.blocks
    for weight in (block.w2.weight, model.position.weights[0]):
        assert not weight.any()
        assert weight.grad.any()


@pytest.mark.parametrize("mlp", ["linear", "mlp"])
def test_a_larger_start_is_that_of_the_first_layer_of_blocks_only(mlp: str) -> None:
    usual, larger = (
        torch.manual_seed(0) and make(2, mlp=mlp, depth=2, start=start) for start in (1.0, 3.0)
    )
    first = "w1.weight" if mlp == "linear" else "w1.0.weight"
    for (name, weight), other in zip(usual.named_parameters(), larger.parameters(), strict=True):
        torch.testing.assert_close(3 * weight if name.endswith(first) else weight, other)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "2", True])
def test_a_start_is_above_zero(value: object) -> None:
    with pytest.raises(OptionError, match=r"start=.*; expected a number"):
        make(2, start=value)


# --- scores --------------------------------------------------------------------------------------


def centred(values: Tensor) -> Tensor:
    return values - values.mean(-1, keepdim=True)


@every_pool
@pytest.mark.parametrize("instances", [1, 3, 90])
def test_scores_and_bias_add_up_to_a_single_logit(make_bag, pool: str, instances: int) -> None:
    model = make(1, pool=pool)
    output = model(*as_tensors(make_bag(instances)))
    torch.testing.assert_close(output.class_scores.sum(0) + model.head.bias, output.logits)
    assert output.scores.equal(output.class_scores[:, 0])


@every_pool
@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("instances", [1, 3, 90])
def test_scores_and_bias_add_up_to_the_logits_but_for_what_classes_share(
    make_bag, pool: str, num_classes: int, instances: int
) -> None:
    model = make(num_classes, pool=pool)
    output = model(*as_tensors(make_bag(instances)))
    expected = centred(output.logits) - centred(model.head.bias)
    torch.testing.assert_close(output.class_scores.sum(0), expected)
    nothing = torch.zeros(instances, dtype=torch.float64)
    torch.testing.assert_close(output.class_scores.sum(1), nothing)


@pytest.mark.parametrize("num_classes", [1, 2, 3])
def test_without_blocks_and_positions_a_score_is_the_instances_own(
    make_bag, num_classes: int
) -> None:
    model = make(num_classes, depth=0, position="none", pool="mean")
    features, coords = as_tensors(make_bag(90))
    own = torch.relu(model.project[0](features)) @ model.head.weight.T / 90
    expected = own if num_classes == 1 else centred(own)
    torch.testing.assert_close(model(features, coords).class_scores, expected)


@pytest.mark.parametrize(("classes", "wanted"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2)])
def test_scores_are_those_of_the_predicted_class(make_bag, classes: int, wanted: int) -> None:
    output = predicting(make(classes), make_bag(90), wanted)
    alike = [output.scores.equal(by_class) for by_class in output.class_scores.T]
    assert alike == [number == wanted for number in range(classes)]


@every_pool
def test_an_instance_adds_something_exactly_where_it_has_weight(make_bag, pool: str) -> None:
    model = make(2, pool=pool)
    features, coords = as_tensors(make_bag(200))
    seen: list[Tensor] = []
    model.blocks.register_forward_hook(lambda _, __, h: seen.append(h))
    output = model(features, coords)
    unweighted = (model.pool.weights(seen[0]) == 0).all(1)
    order = torch.from_numpy(model.plan(coords.numpy())["order"])
    assert unweighted.any() == (pool == "max")
    assert (output.class_scores[order][unweighted] == 0).all()
    assert (output.class_scores[order][~unweighted] != 0).any(1).all()


@every_pool
@pytest.mark.parametrize("num_classes", [1, 2, 3])
def test_the_order_of_rows_changes_nothing_but_the_order_of_scores(
    make_bag, pool: str, num_classes: int
) -> None:
    model = make(num_classes, pool=pool, depth=2).float()
    features, coords = as_tensors(make_bag(700))
    rows = torch.randperm(700)
    with torch.no_grad():
        output, shuffled = model(features, coords), model(features[rows], coords[rows])
    torch.testing.assert_close(shuffled.logits, output.logits, atol=1e-5, rtol=0)
    torch.testing.assert_close(shuffled.scores, output.scores[rows], atol=1e-6, rtol=0)
    expected = output.class_scores[rows]
    torch.testing.assert_close(shuffled.class_scores, expected, atol=1e-6, rtol=0)
    assert output.scores.std() > 1e-5, "the tolerance would hide any order"


def test_scores_are_to_look_at_and_not_to_learn_from(make_bag) -> None:
    output = make(2)(*as_tensors(make_bag(20)))
    assert output.logits.requires_grad
    assert not output.scores.requires_grad
    assert not output.class_scores.requires_grad


@pytest.mark.parametrize(
    ("pool", "num_classes"),
    [
        ("even", 1),
        # The even pool is the mean of the mean and of attention.
        *(pytest.param(pool, 3, marks=pytest.mark.slow) for pool in POOLS),
    ],
)
def test_one_export_serves_all_lengths(make_bag, pool: str, num_classes: int) -> None:
    model = make(num_classes, pool=pool, position="none")

    def inputs(instances: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        features, coords = as_tensors(make_bag(instances))
        return features, coords, {"order": torch.from_numpy(model.plan(coords.numpy())["order"])}

    n = torch.export.Dim("n", min=1, max=2**19)
    shapes = ({0: n}, {0: n}, {"order": {0: n}})
    exported = torch.export.export(model, inputs(300), dynamic_shapes=shapes).module()
    for instances in (1, 2, 7, 8, 9, 65, 257):
        found, expected = exported(*inputs(instances)), model(*inputs(instances))
        for name in ("logits", "scores", "class_scores"):
            torch.testing.assert_close(getattr(found, name), getattr(expected, name))


DUAL = {"in_dim": 16, "dim": 32, "k": 4, "zero_start": False}

every_count = pytest.mark.parametrize("num_classes", [1, 2, 3])
every_pool = pytest.mark.parametrize("pool", ["mean", "attention", "even", "max"])


def make_dual(name: str, num_classes: int = 2, **options: object) -> MILModel:
    model = create_model(name, **DUAL, num_classes=num_classes, **options)
    return model.double().eval()


def apart(twice: MILModel, **options: object) -> tuple[MILModel, MILModel]:
    """Its two halves as models by themselves: without the block, and with it."""
    state = twice.state_dict()
    after = make_dual("sac_mil_local", twice.num_classes, **options)
    after.load_state_dict({name: state[name] for name in after.state_dict()})
    before = make_dual("sac_mil_local", twice.num_classes, depth=0, **options)
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


def test_parameters_of_two_heads_are_as_many_as_the_documents_say() -> None:
    with torch.device("meta"):
        model = create_model("sac_mil_dual", in_dim=1024, num_classes=2)
    assert sum(parameter.numel() for parameter in model.parameters()) == 461_574


@every_count
@every_pool
@pytest.mark.parametrize("instances", [1, 3, 90])
def test_the_answer_and_every_score_is_the_mean_of_two_models(
    make_bag, num_classes: int, pool: str, instances: int
) -> None:
    twice, bag = make_dual("sac_mil_dual", num_classes, pool=pool), bag_of(make_bag, instances)
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
    twice, bag = make_dual("sac_mil_dual", num_classes), bag_of(make_bag, 90)
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
    twice, bag = make_dual("sac_mil_dual"), bag_of(make_bag, 40)
    with torch.no_grad():
        twice.head.bias.copy_(torch.tensor([-200.0, 200.0]))
        twice.head_alone.bias.copy_(torch.tensor([50.0, -50.0]))
        output = twice(*bag)
        assert output.logits.argmax() == 1
        assert twice.losses(output, torch.tensor(1))["all"] > 40


@every_count
def test_scores_and_biases_add_up_to_the_logits(make_bag, num_classes: int) -> None:
    twice = make_dual("sac_mil_dual", num_classes)
    output = twice(*bag_of(make_bag, 90))
    bias = (twice.head.bias + twice.head_alone.bias) / 2
    left = output.logits - bias - output.class_scores.sum(0)
    torch.testing.assert_close(left, left.mean().expand(num_classes))
    if num_classes == 1:
        torch.testing.assert_close(left, torch.zeros_like(left))
