"""R2T-MIL against the official implementation and against its equations in plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from sacmil import create_model, load_reference
from sacmil.errors import ModelError, OptionError
from sacmil.models.r2t import R2TMIL

UNREADABLE = {
    "r2tmil": {},
    "r2tmil_c16": {"all_shortcut": True},
    "r2tmil_mlp": {"all_shortcut": True, "crmsa_heads": 1},
}
"""Options that the shapes of each golden do not show."""

GOLDENS = pytest.mark.parametrize("name", UNREADABLE)
EPEG_BIAS = "online_encoder.layers.0.attn.attn.pe.bias"


def answer(model, x: torch.Tensor):
    return model(x, torch.zeros(len(x), 2))


def planned(model: R2TMIL, n: int) -> dict[str, torch.Tensor]:
    return {key: torch.from_numpy(value) for key, value in model.plan(np.zeros((n, 2))).items()}


def regional(model: R2TMIL, h: torch.Tensor) -> torch.Tensor:
    plan = planned(model, len(h))
    return model.regional(h, plan["inside"], plan["inside_at"])


def cross(model: R2TMIL, h: torch.Tensor) -> torch.Tensor:
    plan = planned(model, len(h))
    return model.cross(h, plan["across"], plan["across_at"])


def embed_again(model: R2TMIL, z: torch.Tensor) -> torch.Tensor:
    return model.reembed_instances(z, planned(model, len(z)))


def make(**options: object) -> R2TMIL:
    torch.manual_seed(3)
    options = {"dim": 12, "heads": 2, "crmsa_heads": 3, "epeg_k": 5} | options
    model = create_model("r2t", in_dim=6, num_classes=2, **options)
    with torch.no_grad():  # far from uniform attention, no zero biases
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model.double().eval()


@GOLDENS
def test_answers_are_the_official_ones(name, official) -> None:
    golden = official(name)
    model = load_reference("r2t", golden.state, **UNREADABLE[name]).double()
    output = answer(model, golden.features)
    z = model.project(golden.features)
    inside = regional(model, z)
    rows = [0, 1, 150, -1]
    ours = {
        "logits": output.logits,
        "attn": output.scores,
        "after_rmsa": inside[rows],
        "after_crmsa": cross(model, inside)[rows],
        "encoder": embed_again(model, z)[rows],
    }
    for key, wanted in golden.out.items():
        found = ours[key].detach().reshape(wanted.shape)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-12)


@GOLDENS
def test_gradients_are_the_official_ones(name, official, assert_gradient_norms) -> None:
    golden = official(name)
    model = load_reference("r2t", golden.state, **UNREADABLE[name]).double()
    loss = model.losses(answer(model, golden.features), torch.tensor(1))["all"]
    assert golden.norms.pop(EPEG_BIAS) < 1e-12  # why there is none here
    assert_gradient_norms(model, golden, loss)


def test_options_are_read_from_shapes(official) -> None:
    found = load_reference("r2t", official("r2tmil_mlp").state).options
    wanted = {"dim": 64, "heads": 8, "epeg_k": 13, "crmsa_k": 3, "crmsa_mlp": True}
    assert {key: found[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("options", "count"), [({}, 2_697_474), ({"crmsa_k": 1, "all_shortcut": True}, 2_696_450)]
)
def test_only_the_biases_of_epeg_are_missing_of_the_official_parameters(options, count) -> None:
    with torch.device("meta"):
        model = create_model("r2t", in_dim=1024, num_classes=2, **options)
    assert sum(p.numel() for p in model.parameters()) == count - model.options["heads"]


def regions_of(n: int, grid: int) -> list[list[int]]:
    """Which cells of the square belong to each region; cells from n on are empty."""
    side = math.ceil(math.sqrt(n))
    while side % grid:
        side += 1
    regions: list[list[int]] = [[] for _ in range(grid * grid)]
    for cell in range(side * side):
        row, column = divmod(cell, side)
        regions[row // (side // grid) * grid + column // (side // grid)].append(cell)
    return regions


def rows_of(x: torch.Tensor, cells: list[int]) -> torch.Tensor:
    zero = torch.zeros_like(x[0])
    return torch.stack([x[cell] if cell < len(x) else zero for cell in cells])


def attention_by_hand(attention, x: torch.Tensor) -> torch.Tensor:
    """One sequence; EPEG convolves the map of logits along the queries and has a bias."""
    heads = []
    q, k, v = (part.chunk(attention.heads, 1) for part in attention.qkv(x).chunk(3, 1))
    for head in range(attention.heads):
        logits = q[head] @ k[head].T / math.sqrt(q[head].shape[1])
        if attention.epeg is not None:
            taps = attention.epeg.weight[head, 0, :, 0]
            added = torch.full_like(logits, 0.7)
            for i in range(len(x)):
                for t, tap in enumerate(taps):
                    source = i + t - len(taps) // 2
                    if 0 <= source < len(x):
                        added[i] += tap * logits[source]
            logits = logits + added
        heads.append(logits.softmax(1) @ v[head])
    return attention.out(torch.cat(heads, 1))


@pytest.mark.parametrize(("n", "grid"), [(1, 8), (30, 2), (37, 3), (36, 3), (70, 8)])
def test_attention_inside_regions_is_the_equation_in_a_loop(n, grid) -> None:
    model = make(regions=grid)
    h = torch.randn(n, 12).double()
    x, wanted = model.regional.norm(h), h.clone()
    for cells in regions_of(n, grid):
        for cell, y in zip(
            cells, attention_by_hand(model.regional.attention, rows_of(x, cells)), strict=True
        ):
            if cell < n:
                wanted[cell] += y
    torch.testing.assert_close(regional(model, h), wanted)


@pytest.mark.parametrize("mlp", [True, False])
@pytest.mark.parametrize("n", [40, 130])
def test_attention_across_regions_is_the_equation_in_a_loop(n, mlp) -> None:
    model = make(crmsa_mlp=mlp, regions=2)
    part, h = model.cross, torch.randn(n, 12).double()
    regions = regions_of(n, 8)
    xs = [rows_of(part.norm(h), cells) for cells in regions]
    logits = [part.phi(x) for x in xs]
    wanted = h.clone()
    for j in range(3):
        summaries = torch.stack([g[:, j].softmax(0) @ x for g, x in zip(logits, xs, strict=True)])
        summaries = attention_by_hand(part.attention, summaries)
        for cells, g, summary in zip(regions, logits, summaries, strict=True):
            for p, cell in enumerate(cells):
                scaled = (g[p, j] - g[:, j].min()) / (g[:, j].max() - g[:, j].min() + 1e-8)
                if cell < n:
                    wanted[cell] += scaled * g[p].softmax(0)[j] * summary
    torch.testing.assert_close(cross(model, h), wanted)


def test_the_shortcut_adds_the_projected_instances() -> None:
    plain, short = make(), make(all_shortcut=True)
    z = torch.randn(90, 12).double()
    h = cross(plain, regional(plain, z))
    torch.testing.assert_close(embed_again(plain, z), plain.norm(h))
    torch.testing.assert_close(embed_again(short, z), plain.norm(h + z))


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_scores_are_the_weights_of_the_mean_that_is_classified(activation) -> None:
    model, x = make(activation=activation), torch.randn(90, 6).double()
    output = answer(model, x)
    h = embed_again(model, model.project(x))
    first, second = model.attention.value.weight, model.attention.weight.weight
    weights = (getattr(torch, activation)(h @ first.T) @ second.T).softmax(0)[:, 0]
    torch.testing.assert_close(output.scores, weights)
    mean = sum(w * row for w, row in zip(weights, h, strict=True))
    torch.testing.assert_close(output.logits, model.head(mean))


@pytest.mark.parametrize("instances", [1, 2, 64, 65, 1000])
@pytest.mark.parametrize("options", [{}, {"crmsa_mlp": True, "crmsa_k": 1}, {"regions": 1}])
def test_bags_of_any_size_can_be_learned_from(instances, options) -> None:
    model = create_model("r2t", in_dim=6, num_classes=3, dim=16, **options)
    output = answer(model, torch.randn(instances, 6))
    model.losses(output, torch.tensor(2))["all"].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())
    assert output.scores.sum().item() == pytest.approx(1, abs=1e-5)


def test_equal_instances_do_not_divide_by_nothing() -> None:
    model = create_model("r2t", in_dim=6, num_classes=2, dim=16)
    output = answer(model, torch.ones(200, 6))
    model.losses(output, torch.tensor(0))["all"].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_weights_start_as_officially() -> None:
    model = create_model("r2t", in_dim=200, num_classes=2, dim=256, crmsa_k=4)
    assert all((p == 0).all() for name, p in model.named_parameters() if name.endswith("bias"))
    phi = model.cross.phi.weight
    assert phi.abs().max().item() == pytest.approx(0.5, abs=0.01)
    assert phi.std().item() == pytest.approx(0.5 / 3**0.5, rel=0.1)
    for weight in (model.regional.attention.qkv.weight, model.project[0].weight):
        assert weight.std().item() == pytest.approx((2 / sum(weight.shape)) ** 0.5, rel=0.05)
    epeg = model.regional.attention.epeg.weight
    assert epeg.std().item() == pytest.approx((2 / (15 + 8 * 15)) ** 0.5, rel=0.25)


@pytest.mark.parametrize("recipe", ["official", "nsclc", "brca"])
def test_every_recipe_makes_a_model(recipe) -> None:
    options = R2TMIL.recipes[recipe].options
    with torch.device("meta"):
        model = create_model("r2t", in_dim=8, num_classes=2, **options)
    assert options
    assert dict(options).items() <= model.options.items()


def test_wrong_options_and_foreign_checkpoints_are_refused() -> None:
    wrong = [{"dim": 0}, {"heads": 7}, {"regions": 0}, {"epeg_k": 4}, {"crmsa_k": 0}]
    wrong += [{"crmsa_heads": 7}, {"crmsa_mlp": 1}, {"all_shortcut": 1}, {"dropout": -1}]
    for options in [*wrong, {"activation": "selu"}]:
        with pytest.raises(OptionError, match=next(iter(options))):
            create_model("r2t", in_dim=4, num_classes=2, **options)
    with pytest.raises(ModelError, match=r"attn\.pe\.weight is missing"):
        load_reference("r2t", {"predictor.weight": np.zeros((2, 4), np.float32)})
