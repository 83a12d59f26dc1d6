"""SAC-MIL's options: their defaults are the definition's, and each does what it says."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from sacmil import create_model, describe_model
from sacmil.models._recipe import PAPER
from sacmil.models._registry import get_model_class
from sacmil.models.sac_mil import SACBlock
from sacmil.regions import CENTERS, ORDERS, arrange

SMALL = {"in_dim": 16, "num_classes": 2, "dim": 16}

DEFINITION = {
    "dim": 512,
    "k": 64,
    "depth": 3,
    "position": "prope",
    "correlation": "sac",
    "scale": 512.0,
    "centers": "fps",
    "region_order": "fps",
    "mlp": "linear",
    "residual": True,
    "pool": "mean",
    "tail": "absorb",
    "activation": "relu",
}

TRAINING = {
    "optimizer": "adam",
    "lr": 1e-4,
    "betas": (0.9, 0.999),
    "weight_decay": 0.0,
    "layer_decay": 1.0,
    "lookahead": None,
    "schedule": "constant",
    "warmup_epochs": 0.0,
    "epochs": 200,
    "patience": None,
    "monitor": "last",
    "accumulate": 1,
    "sampler": "shuffle",
    "clip": {},
    "options": {},
}


def test_the_defaults_are_those_of_the_definition() -> None:
    assert describe_model("sac_mil").options == DEFINITION


@pytest.mark.parametrize("recipe", [PAPER, get_model_class("sac_mil").recipes["paper"]])
def test_the_training_is_that_of_the_definition(recipe) -> None:
    assert {setting: getattr(recipe, setting) for setting in TRAINING} == TRAINING


def test_official_differs_only_in_choosing_its_epoch() -> None:
    official = get_model_class("sac_mil").recipes["official"]
    assert official == PAPER.replace(monitor="val_auc")


@pytest.mark.parametrize("k", [4, 16])
def test_the_plan_is_the_requested_arrangement(make_bag, k: int) -> None:
    coords = make_bag(300).patch_coords
    seen = set()
    for centers in CENTERS:
        for order in ORDERS:
            model = create_model("sac_mil", **SMALL, k=k, centers=centers, region_order=order)
            plan = model.plan(coords)["order"]
            np.testing.assert_array_equal(plan, arrange(coords, k, centers, order))
            seen.add(tuple(plan))
    assert len(seen) == len(CENTERS) * len(ORDERS), "two options arranged this bag alike"


def test_without_options_the_plan_is_the_definitions(make_bag) -> None:
    coords = make_bag(300).patch_coords
    model = create_model("sac_mil", in_dim=16, num_classes=2)
    np.testing.assert_array_equal(model.plan(coords)["order"], arrange(coords, 64, "fps", "fps"))


def answers_in_parts(tail: str, cut: int) -> bool:
    """Whether 11 instances in rings of 2 and 4 do not meet across the cut."""
    blocks = create_model("sac_mil", **SMALL, k=2, depth=2, tail=tail).blocks
    h = torch.randn(11, SMALL["dim"])
    parts = torch.cat([blocks(h[:cut]), blocks(h[cut:])])
    return torch.allclose(parts, blocks(h), atol=1e-6)


def test_the_tail_option_says_whether_the_remainder_meets_the_last_ring() -> None:
    assert answers_in_parts("absorb", cut=4)
    assert not answers_in_parts("absorb", cut=8)
    assert answers_in_parts("split", cut=8)


def turned_by_hand(h: Tensor, coords: Tensor, scale: float) -> Tensor:
    """Pairs of channels as complex numbers, places as points of the unit square."""
    unit = (coords - coords.amin(0)) / (coords.amax(0) - coords.amin(0))
    place = torch.view_as_complex(unit)[:, None]
    pairs = h.shape[1] // 2
    theta = 10000.0 ** (-torch.arange(pairs, dtype=torch.float64) / pairs)
    turn = torch.exp(1j * (scale * place.abs() * theta + place.angle()))
    return torch.view_as_real(torch.view_as_complex(h.unflatten(1, (-1, 2))) * turn).flatten(1)


@pytest.mark.parametrize("options", [{}, {"scale": 0.0}, {"scale": 1.0}, {"scale": 37.5}])
def test_the_scale_option_is_the_lambda_of_the_rotation(make_bag, options: dict) -> None:
    bag = make_bag(50)
    coords, h = torch.from_numpy(bag.patch_coords), torch.randn(50, 16, dtype=torch.float64)
    model = create_model("sac_mil", **SMALL, k=4, **options)
    expected = turned_by_hand(h, coords, options.get("scale", 512.0))
    torch.testing.assert_close(model.position(h, coords), expected, atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    "option", [{"scale": 1.0}, {"tail": "split"}, {"centers": "peel"}, {"region_order": "hilbert"}]
)
def test_the_option_changes_the_answer_of_the_same_weights(make_bag, option: dict) -> None:
    bag = make_bag(90)
    plain = create_model("sac_mil", **SMALL, k=4).eval()
    other = create_model("sac_mil", **SMALL, k=4, **option).eval()
    other.load_state_dict(plain.state_dict())
    inputs = torch.from_numpy(bag.features), torch.from_numpy(bag.patch_coords)
    assert (plain(*inputs).logits - other(*inputs).logits).abs().max() > 1e-5


# --- a whole block -------------------------------------------------------------------------------


def gelu(x: Tensor) -> Tensor:
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


def linear(x: Tensor, weights: dict[str, Tensor], layer: str) -> Tensor:
    return x @ weights[f"{layer}.weight"].T + weights[f"{layer}.bias"]


def moved(x: Tensor, rings: list[range], scale: int, way: int) -> Tensor:
    """Channel f of a ring's instance a goes to instance a + way f scale of that ring."""
    out = torch.empty_like(x)
    for ring in rings:
        for a in range(len(ring)):
            for f in range(x.shape[1]):
                out[ring[(a + way * f * scale) % len(ring)], f] = x[ring[a], f]
    return out


def channel_mlp(x: Tensor, weights: dict[str, Tensor], name: str, mlp: str) -> Tensor:
    if mlp == "linear":
        return linear(x, weights, name)
    return linear(gelu(linear(x, weights, f"{name}.0")), weights, f"{name}.2")


@pytest.mark.parametrize("residual", [True, False], ids=["residual", "plain"])
@pytest.mark.parametrize("mlp", ["linear", "mlp"])
def test_a_block_is_its_equations_written_out(mlp: str, residual: bool) -> None:  # noqa: FBT001
    """k = 3 folds of one channel, level 1: 20 instances are a ring of 9 and one of 11."""
    block = SACBlock(3, 3, 1, mlp, "absorb", residual=residual).double()
    w = {name: torch.randn_like(p) for name, p in block.state_dict().items()}
    block.load_state_dict(w)
    x, rings = torch.randn(20, 3, dtype=torch.float64), [range(9), range(9, 20)]
    centred = x - x.mean(1, keepdim=True)
    h = centred / (centred.square().mean(1, keepdim=True) + 1e-5).sqrt()
    h = h * w["norm.weight"] + w["norm.bias"]
    h = channel_mlp(moved(h, rings, scale=3, way=1), w, "w1", mlp)
    h = moved(gelu(h) if mlp == "linear" else h, rings, scale=3, way=-1)
    h = channel_mlp(h, w, "w2", mlp)
    torch.testing.assert_close(block(x), x + h if residual else h)
