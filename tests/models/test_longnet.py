"""LongNet agrees with the official slide encoder, and dilated attention with plain loops."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sacmil import create_model, load_model, load_reference, save_model
from sacmil.errors import ModelError, OptionError
from sacmil.models import longnet as module
from sacmil.models.longnet import (
    AttentionTable,
    DilatedAttention,
    DilatedBranch,
    dilated_attention,
    embed_positions,
    log_sum_exp,
)
from sacmil.plans.planners import find_token_rows, list_attended_tokens

PLACEMENTS = pytest.mark.parametrize("legacy", [False, True], ids=["in_place", "legacy"])


def make_table(branch: DilatedBranch, n: int, *, legacy: bool = False) -> AttentionTable:
    rows = find_token_rows(n, *branch, legacy_placement=legacy)
    return AttentionTable(
        torch.from_numpy(list_attended_tokens(n, *branch)), torch.from_numpy(rows)
    )


def make_tables(branches, n: int, *, legacy: bool = False):
    return [make_table(branch, n, legacy=legacy) for branch in branches]


def mix(q, k, v, branches, *, legacy: bool = False) -> torch.Tensor:
    return dilated_attention(q, k, v, branches, make_tables(branches, len(q), legacy=legacy))


def attend(branch, q, k, v, *, legacy: bool = False):
    return branch.attend(q, k, v, make_table(branch, len(q), legacy=legacy))


def filled(x: torch.Tensor, rows: int, heads: int) -> torch.Tensor:
    """x (n, h, d) with zero rows and zero heads after its own."""
    out = x.new_zeros(rows, heads, x.shape[2])
    out[: x.shape[0], : x.shape[1]] = x
    return out


def branch_by_loops(q, k, v, w: int, r: int, *, legacy: bool):
    """Output and log-sum-exp of one branch: every padded row, one query at a time."""
    n, heads, d = q.shape
    w = min(w, n)
    count, length = math.ceil(n / w), math.ceil(w / r) * r
    group = math.ceil(heads / r)
    rows = count * (length if legacy else w)
    out = [[torch.zeros(d, dtype=q.dtype) for _ in range(heads)] for _ in range(rows)]
    lse = torch.full((rows, heads), -1e8, dtype=q.dtype)
    q, k, v = (filled(x, count * w, group * r) for x in (q, k, v))
    for i in range(count):
        qi, ki, vi = (filled(x[i * w : (i + 1) * w], length, group * r) for x in (q, k, v))
        for head in range(heads):
            for t in range(head // group, length if legacy else w, r):
                tokens = list(range(head // group, length, r))
                e = (ki[tokens, head] @ qi[t, head] / math.sqrt(d)).exp()
                row = i * (length if legacy else w) + t
                out[row][head] = e @ vi[tokens, head] / e.sum()
                lse[row, head] = e.sum().log().detach()
    return torch.stack([torch.stack(row) for row in out])[:n], lse[:n]


def by_loops(q, k, v, branches, *, legacy: bool) -> torch.Tensor:
    found = [branch_by_loops(q, k, v, w, r, legacy=legacy) for w, r in branches]
    weights = [lse.exp() for _, lse in found]
    total = sum(weights).clamp(min=1e-300)
    return sum((w / total)[:, :, None] * out for w, (out, _) in zip(weights, found, strict=True))


def some(n: int, heads: int, d: int = 3, seed: int = 0) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [
        torch.randn(n, heads, d, generator=random, dtype=torch.float64, requires_grad=True)
        for _ in range(3)
    ]


CASES = [
    (1, 1, [(4, 1)]),
    (1, 2, [(4, 3), (2, 2)]),
    (2, 16, [(1, 1), (8, 16)]),
    (7, 1, [(7, 1), (3, 2)]),  # one head: only group 0 is there
    (9, 3, [(1, 1), (2, 2), (3, 3)]),
    (10, 4, [(4, 2), (8, 4)]),  # everything divides
    (11, 5, [(4, 3), (7, 5), (20, 2)]),  # nothing does
    (13, 16, [(5, 3), (5, 5)]),  # 16 heads to 18 and to 20
    (17, 6, [(6, 4), (17, 4), (16, 3)]),
    (20, 2, [(5, 4), (10, 7)]),  # groups of nothing but filling
    (21, 4, [(5, 3)]),  # a single branch leaves places uncovered
    (24, 3, [(6, 1), (12, 2), (24, 3), (99, 8)]),
]


@PLACEMENTS
@pytest.mark.parametrize(("n", "heads", "branches"), CASES, ids=str)
def test_it_is_the_official_procedure_in_a_loop(n, heads, branches, legacy) -> None:
    q, k, v = some(n, heads)
    found = mix(q, k, v, [DilatedBranch(*pair) for pair in branches], legacy=legacy)
    wanted = by_loops(q, k, v, branches, legacy=legacy)
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-12)
    direction = torch.randn_like(wanted)
    gradients = [
        torch.autograd.grad((y * direction).sum(), (q, k, v), allow_unused=True)
        for y in (found, wanted)
    ]
    for ours, theirs in zip(*gradients, strict=True):
        # A loop that never touches a key leaves no gradient at all.
        theirs = torch.zeros_like(ours) if theirs is None else theirs
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@PLACEMENTS
@pytest.mark.parametrize(("n", "heads", "branches"), CASES, ids=str)
def test_every_branch_knows_its_log_sum_exp(n, heads, branches, legacy) -> None:
    q, k, v = some(n, heads, seed=1)
    for w, r in branches:
        out, lse = attend(DilatedBranch(w, r), q, k, v, legacy=legacy)
        wanted, wanted_lse = branch_by_loops(q, k, v, w, r, legacy=legacy)
        torch.testing.assert_close(out, wanted, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(lse, wanted_lse, rtol=1e-10, atol=1e-12)
        assert not lse.requires_grad


def test_the_placements_differ_exactly_where_an_uneven_segment_has_a_successor() -> None:
    for n, w, r in [(20, 5, 1), (20, 6, 2), (20, 6, 3), (20, 20, 3), (5, 7, 3)]:
        q, k, v = some(n, 4)
        ours, theirs = (
            mix(q, k, v, [DilatedBranch(w, r)], legacy=legacy) for legacy in (False, True)
        )
        assert ours.equal(theirs), (n, w, r)
    q, k, v = some(20, 4)
    ours, _ = attend(DilatedBranch(5, 3), q, k, v)
    theirs, _ = attend(DilatedBranch(5, 3), q, k, v, legacy=True)
    assert theirs[:5].equal(ours[:5])
    assert theirs[6:11].equal(ours[5:10])  # row 5 holds the filling
    assert not theirs[5:10].equal(ours[5:10])


def test_one_whole_branch_is_plain_attention() -> None:
    q, k, v = some(30, 4, d=5)
    weights = (torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(5)).softmax(-1)
    found = mix(q, k, v, [DilatedBranch(1000, 1)])
    torch.testing.assert_close(found, torch.einsum("hij,jhd->ihd", weights, v))


@pytest.mark.parametrize("at_once", [1, 7, 40, 100, 250, 10_000])
def test_blocks_of_any_size_give_the_same_log_sum_exp(at_once, monkeypatch) -> None:
    monkeypatch.setattr(module, "MAX_LOGITS", at_once)
    q, k = torch.randn(2, 6, 10, 4, dtype=torch.float64)
    wanted = (q @ k.mT / 2).logsumexp(-1)
    torch.testing.assert_close(log_sum_exp(q, k), wanted, rtol=1e-12, atol=0)


def test_logits_of_hundreds_do_not_overflow() -> None:
    q, k, v = (200 * x.detach().float() for x in some(12, 4))
    found = mix(q, k, v, [DilatedBranch(6, 1), DilatedBranch(12, 3)])
    wanted = mix(q.double(), k.double(), v.double(), [DilatedBranch(6, 1), DilatedBranch(12, 3)])
    torch.testing.assert_close(found.double(), wanted, rtol=1e-3, atol=1e-2)


def test_half_precision_mixes_in_full() -> None:
    q, k, v = (x.detach().bfloat16() for x in some(20, 3))
    branches = [DilatedBranch(4, 2), DilatedBranch(20, 8)]  # some places are in no branch
    found = mix(q, k, v, branches)
    assert found.dtype == torch.bfloat16
    wanted = mix(q.double(), k.double(), v.double(), branches)
    torch.testing.assert_close(found.double(), wanted, rtol=0.05, atol=0.05)


def test_a_norm_stands_before_the_output_layer() -> None:
    block = DilatedAttention(
        12, heads=4, branches=[DilatedBranch(5, 1), DilatedBranch(9, 2)]
    ).double()
    x = torch.randn(14, 12, dtype=torch.float64)
    q, k, v = (part(x).reshape(14, 4, 3) for part in (block.query, block.key, block.value))
    h = by_loops(q, k, v, [(5, 1), (9, 2)], legacy=False).reshape(14, 12)
    h = (h - h.mean(1, keepdim=True)) / (h.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    torch.testing.assert_close(block(x, make_tables(block.branches, 14)), block.out(h))


BRANCHES = {"segments": [32, 64, 128, 256, 512], "dilations": [1, 2, 4, 8, 16]}
SMALL = {"dim": 16, "depth": 2, "heads": 4, "segments": (8, 16), "dilations": (1, 2)}


@pytest.fixture
def loaded(golden, official):
    """Model, official run, coordinates in patches."""
    run = official("longnet")
    model = load_reference("longnet", run.state, **BRANCHES).double()
    return model, run, torch.from_numpy(golden("longnet")["coords"]).double().reshape(-1, 2) / 256


def class_states(model, features, coords) -> dict[str, torch.Tensor]:
    x = model.embed_tokens(features, coords)
    states = {"layer0": model.norm(x[0])}
    tables = make_tables(model.branches, len(x), legacy=model.legacy)
    for i, layer in enumerate(model.layers):
        x = layer(x, tables)
        states[f"layer{i + 1}"] = model.norm(x[0])
    return states | {"last": x[0]}


def test_answers_are_the_official_ones_up_to_their_float32(loaded) -> None:
    model, run, coords = loaded
    found = class_states(model, run.features, coords)
    weight, bias = (
        torch.from_numpy(run.state[f"encoder.layer_norm.{part}"]).double()
        for part in ("weight", "bias")
    )
    found["cls_final"] = model.norm(F.layer_norm(found.pop("last"), weight.shape, weight, bias))
    found["logits"] = model(run.features, coords).logits
    assert set(found) == set(run.out)
    for key, wanted in run.out.items():
        # The official float64 run has a GELU and a table of places in float32. Relative to the
        # largest value, as single values near zero carry the same rounding.
        atol = 2e-7 * wanted.abs().max().item()
        torch.testing.assert_close(found[key], wanted.flatten(), rtol=0, atol=atol)


def test_gradients_are_the_official_ones(loaded, assert_gradient_norms) -> None:
    model, run, coords = loaded
    loss = model.losses(model(run.features, coords), torch.tensor(1))["all"]
    assert_gradient_norms(model, run, loss, tolerance=1e-6)


def test_official_weights_get_what_they_were_trained_with(loaded) -> None:
    options = loaded[0].options
    assert options["preset"] == "gigapath"
    assert options["legacy_placement"] is True
    assert options["states"] == [1, 2]
    assert all(layer.attention.heads == 16 for layer in loaded[0].layers)


def test_a_head_of_one_state_is_that_before_the_last(official) -> None:
    state = official("longnet").state
    state["head.weight"] = state["head.weight"][:, :48]
    model = load_reference("longnet", state)
    assert model.states == (1,)
    assert load_reference("longnet", state, states=[2]).states == (2,)
    assert load_reference("longnet", state, states=[2]).dead_parameters == frozenset()


@pytest.mark.parametrize(("in_dim", "official_count"), [(1536, 86_330_880), (1024, 85_937_664)])
def test_there_are_as_many_parameters_as_officially(in_dim, official_count) -> None:
    with torch.device("meta"):
        model = create_model("longnet", in_dim=in_dim, num_classes=2, preset="gigapath")
    dropped, classifier = 2 * 768, 2 * 768 + 2
    assert sum(p.numel() for p in model.parameters()) == official_count - dropped + classifier
    assert model.states == (11,)
    assert {name.split(".")[1] for name in model.dead_parameters} == {"11"}


def test_layers_beyond_the_last_state_do_nothing() -> None:
    model = create_model("longnet", in_dim=6, num_classes=2, states=[0, 1], **SMALL).eval()
    features, coords = torch.randn(20, 6), torch.randint(0, 9, (20, 2))
    before = model(features, coords)
    for parameter in model.layers[1].parameters():
        nn.init.constant_(parameter, torch.nan)
    after = model(features, coords)
    assert after.logits.equal(before.logits)
    assert after.scores.equal(before.scores)
    after.logits.sum().backward()
    without = {name for name, p in model.named_parameters() if p.grad is None}
    assert without == model.dead_parameters
    assert all(name.startswith("layers.1.") for name in without)
    assert len(without) == len(model.layers[1].state_dict())


def test_a_layer_is_its_equations() -> None:
    model = create_model("longnet", in_dim=6, num_classes=2, **SMALL).double().eval()
    layer = model.layers[0]
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(21, 16, dtype=torch.float64)

    def normed(h, norm):
        spread = (h.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        return (h - h.mean(1, keepdim=True)) / spread * norm.weight + norm.bias

    part = layer.attention
    inner = normed(x, layer.attention_norm)
    q, k, v = (linear(inner).reshape(21, 4, 4) for linear in (part.query, part.key, part.value))
    mixed = mix(q, k, v, part.branches).reshape(21, 16)
    y = x + part.out(normed(mixed, part.norm))
    fc1, _, norm, fc2 = layer.feed
    h = fc1(normed(y, layer.feed_norm))
    h = h * (1 + torch.erf(h / math.sqrt(2))) / 2
    torch.testing.assert_close(layer(x, make_tables(part.branches, 21)), y + fc2(normed(h, norm)))


def test_each_place_has_its_sines_and_cosines() -> None:
    coords = [(0, 0), (3.7, 1200.2), (5 - 4e-7, 7 + 4e-7), (2500, 2)]
    found = embed_positions(torch.tensor(coords, dtype=torch.float64), 16)
    for row, (i, j) in zip(found.tolist(), [(0, 0), (3, 1200), (5, 7), (2500, 2)], strict=True):
        wanted = [
            wave(place * 10000 ** (-t / 4))
            for place in (j, i)
            for wave in (math.sin, math.cos)
            for t in range(4)
        ]
        assert row == pytest.approx(wanted, abs=1e-12)


def test_the_class_token_has_no_place_and_tiles_keep_their_order() -> None:
    model = create_model("longnet", in_dim=6, num_classes=2, **SMALL)
    features, coords = torch.randn(5, 6), torch.rand(5, 2) * 2000
    x = model.embed_tokens(features, coords)
    assert x[0].equal(model.cls_token[0])
    places = embed_positions(coords, 16).float()
    torch.testing.assert_close(x[1:], model.project(features) + places)


def test_scores_are_the_lengths_of_the_last_tokens() -> None:
    model = create_model("longnet", in_dim=6, num_classes=2, **SMALL).eval()
    features, coords = torch.randn(30, 6), torch.randint(0, 9, (30, 2))
    x = model.embed_tokens(features, coords)
    tables = make_tables(model.branches, len(x), legacy=model.legacy)
    x = model.layers[1](model.layers[0](x, tables), tables)
    torch.testing.assert_close(model(features, coords).scores, x[1:].square().sum(1).sqrt())


def test_legacy_placement_matters_for_uneven_segments_only() -> None:
    features, coords = torch.randn(40, 6), torch.randint(0, 9, (40, 2))
    for segments, dilations, same in [((8, 41), (2, 3), True), ((8, 41), (3, 3), False)]:
        answers = []
        for legacy in (False, True):
            torch.manual_seed(0)
            options = SMALL | {"segments": segments, "dilations": dilations}
            model = create_model(
                "longnet", in_dim=6, num_classes=2, legacy_placement=legacy, **options
            )
            answers.append(model.eval()(features, coords).scores)
        assert torch.allclose(*answers) == same


def test_weights_start_as_glorot_has_them() -> None:
    model = create_model("longnet", in_dim=64, num_classes=2, dim=64, depth=1, heads=4)
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            bound = math.sqrt(6 / (layer.in_features + layer.out_features))
            assert 0.9 * bound < layer.weight.abs().max() <= bound
            assert (layer.bias == 0).all()
    assert model.cls_token.std().item() == pytest.approx(0.02, rel=0.4)


@pytest.mark.parametrize("dropout", [0.1, 1.0])
def test_dropout_thins_what_layers_add(dropout) -> None:
    model = create_model("longnet", in_dim=6, num_classes=2, dropout=dropout, **SMALL).train()
    features, coords = torch.randn(9, 6), torch.randint(0, 9, (9, 2))
    first, second = model(features, coords).scores, model(features, coords).scores
    if dropout == 1:
        assert first.equal(model.embed_tokens(features, coords)[1:].norm(dim=1))
    else:
        assert not torch.allclose(first, second)


def test_tiny_bags_can_be_learned_from() -> None:
    for instances in (1, 2, 3):
        model = create_model("longnet", in_dim=6, num_classes=1, dim=16, depth=1, heads=4)
        output = model(torch.randn(instances, 6), torch.zeros(instances, 2))
        model.losses(output, torch.tensor(1))["all"].backward()
        assert all(p.grad.isfinite().all() for p in model.parameters())


def test_a_saved_model_answers_the_same(tmp_path) -> None:
    options = SMALL | {"states": (0, 2), "legacy_placement": True}
    model = create_model("longnet", in_dim=6, num_classes=3, **options).eval()
    assert json.loads(json.dumps(model.options))["states"] == [0, 2]
    save_model(tmp_path / "model", model)
    features, coords = torch.randn(30, 6), torch.randint(0, 9, (30, 2))
    twin = load_model(tmp_path / "model")
    assert twin(features, coords).logits.equal(model(features, coords).logits)
    assert twin.states == model.states


def test_depth_moves_the_state_that_is_seen() -> None:
    with torch.device("meta"):
        seen = {
            (preset, depth): create_model(
                "longnet", in_dim=6, num_classes=2, preset=preset, depth=depth
            ).states
            for preset in ("small", "gigapath")
            for depth in (None, 1, 6)
        }
    assert seen == {
        ("small", None): (4,),
        ("small", 1): (1,),
        ("small", 6): (6,),
        ("gigapath", None): (11,),
        ("gigapath", 1): (1,),
        ("gigapath", 6): (5,),
    }


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"preset": "samll"}, "did you mean 'small'"),
        ({"dim": 18, "heads": 2}, "of 4"),
        ({"dim": 20, "heads": 3}, "heads=3 does not divide dim=20"),
        ({"heads": 0}, "at least 1"),
        ({"depth": 0}, "at least 1"),
        ({"segments": [8, 16]}, "2 segments and 5 dilations"),
        ({"segments": [8], "dilations": [0]}, "at least 1"),
        ({"segments": [0], "dilations": [1]}, "at least 1"),
        ({"segments": [], "dilations": []}, "expected whole numbers"),
        ({"segments": "12", "dilations": [1, 2]}, "expected whole numbers"),
        ({"dilations": 4}, "expected whole numbers"),
        ({"states": [5]}, "up to depth=4"),
        ({"states": [-1]}, "at least 0"),
        ({"states": [0]}, "at least one above 0"),
        ({"states": []}, "expected whole numbers"),
        ({"dropout": 1.5}, "from 0 to 1"),
        ({"legacy_placement": 1}, "True or False"),
    ],
    ids=str,
)
def test_wrong_options_are_refused_in_words(options, words) -> None:
    with torch.device("meta"), pytest.raises(OptionError, match=words):
        create_model("longnet", in_dim=4, num_classes=2, **options)


def test_foreign_checkpoints_are_refused_in_words(official) -> None:
    state = official("longnet").state
    for broken, words in [
        ({"fc.weight": np.zeros((2, 4), np.float32)}, r"patch_embed\.proj\.weight is missing"),
        ({k: v for k, v in state.items() if "layers" not in k}, "it has 0 layers"),
        (state | {"head.weight": np.zeros((2, 50), np.float32)}, "a head for 50 values"),
        (state | {"mask": np.zeros(3, np.float32)}, "mask is not known"),
        ({k: v for k, v in state.items() if k != "cls_token"}, "cls_token is missing"),
        (
            {k: v for k, v in state.items() if "1.ffn.fc2" not in k},
            "layers.1.ffn.fc2.weight is missing",
        ),
    ]:
        with pytest.raises(ModelError, match=words):
            load_reference("longnet", broken)
