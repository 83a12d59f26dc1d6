"""HIPT against the official implementation, and what that one does not have: missing patches."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from sacmil import create_model, load_reference
from sacmil.errors import ModelError, OptionError
from sacmil.models import hipt

SMALL = {"dim": 12, "depth": 3, "heads": 2, "region": 3}


def full_regions(count: int, side: int = 16) -> torch.Tensor:
    """Places of full regions side by side, in order of region, row, column."""
    region, row, column = np.indices((count, side, side)).reshape(3, -1)
    return torch.from_numpy(np.stack([region * side + column, row], axis=1)).double()


def sparse(instances: int, side: int, seed: int = 0) -> torch.Tensor:
    """Distinct places in no particular order."""
    random = np.random.default_rng(seed)
    places = random.choice(side * side, instances, replace=False)
    return torch.from_numpy(np.stack(np.divmod(places, side), axis=1)).double()


def make(num_classes: int = 2, in_dim: int = 5, **options: object) -> hipt.HIPT:
    torch.manual_seed(3)
    options = SMALL | options
    model = create_model("hipt", in_dim=in_dim, num_classes=num_classes, **options)
    with torch.no_grad():  # far from uniform attention, no zero biases
        for parameter in model.parameters():
            parameter.normal_(std=0.5)
    return model.double().eval()


GOLDENS = pytest.mark.parametrize("name", ["hipt_lgp", "hipt_gp"])


def places_of(name: str, instances: int) -> torch.Tensor:
    return full_regions(5) if name == "hipt_lgp" else torch.zeros(instances, 2)


@GOLDENS
def test_answers_are_the_official_ones(name, official) -> None:
    golden = official(name)
    model = load_reference("hipt", golden.state).double()
    output = model(golden.features, places_of(name, len(golden.features)))
    ours = {
        "logits": output.logits,
        "Y_prob": model.probabilities(output),
        "h4k": output.extras["regions"],
    }
    for key, wanted in golden.out.items():
        found = ours[key].detach().reshape(wanted.shape)
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-12)


@GOLDENS
def test_gradients_are_the_official_ones(name, official, assert_gradient_norms) -> None:
    golden = official(name)
    model = load_reference("hipt", golden.state).double()
    output = model(golden.features, places_of(name, len(golden.features)))
    assert_gradient_norms(model, golden, model.losses(output, torch.tensor(1))["all"])


@pytest.mark.parametrize(
    ("in_dim", "options", "count"),
    [(384, {}, 3_376_515), (1024, {}, 3_499_395), (192, {"local": "none"}, 595_011)],
)
def test_there_are_as_many_parameters_as_officially(in_dim, options, count) -> None:
    with torch.device("meta"):
        model = create_model("hipt", in_dim=in_dim, num_classes=2, **options)
    assert sum(p.numel() for p in model.parameters()) == count


def one_region(vit: hipt.RegionViT, x: dict[int, torch.Tensor]) -> tuple[torch.Tensor, list]:
    """The class token after looking at the patches by slot, and their weights; one by one."""
    positions = vit.resize_positions()
    tokens = [vit.cls[0] + vit.position[0]]
    tokens += [F.gelu(vit.project[0](value)) + positions[slot] for slot, value in x.items()]
    for block in [*vit.blocks, vit.last]:
        normed = [block.norm1(t) for t in tokens]
        q, k, v = (
            [part.chunk(block.heads) for part in parts]
            for parts in zip(*(block.qkv(t).chunk(3) for t in normed), strict=True)
        )
        weights, attended = [], []
        for i in range(len(tokens)):
            heads = []
            for h in range(block.heads):
                logits = torch.stack([q[i][h] @ key[h] / len(key[h]) ** 0.5 for key in k])
                weight = logits.exp() / logits.exp().sum()
                weights.append(weight)
                heads.append(sum(w * value[h] for w, value in zip(weight, v, strict=True)))
            attended.append(torch.cat(heads))
        tokens = [t + block.out(a) for t, a in zip(tokens, attended, strict=True)]
        tokens = [t + block.mlp(block.norm2(t)) for t in tokens]
    of_cls = sum(weights[: vit.last.heads]) / vit.last.heads
    return vit.norm(tokens[0]), list(of_cls[1:])


def by_hand(model: hipt.HIPT, features: torch.Tensor, coords: torch.Tensor):
    """Logits and scores, region by region, with the sheet's formulas for distinct places."""
    side = model.region
    regions: dict[tuple[int, int], dict[int, int]] = {}
    for i, (x, y) in enumerate((coords - coords.amin(0)).long().tolist()):
        slots = regions.setdefault((y // side, x // side), {})
        slots[(y % side) * side + x % side] = i
    vectors, scores = [], torch.zeros(len(features)).double()
    for key in sorted(regions):
        slots = regions[key]
        vector, weights = one_region(model.local, {s: features[i] for s, i in slots.items()})
        vectors.append(vector)
        for i, weight in zip(slots.values(), weights, strict=True):
            scores[i] = weight
    h = model.project(torch.stack(vectors))
    for layer in model.layers:
        h = layer(h)
    a = model.attention(h)[:, 0].exp()
    a = a / a.sum()
    for key, weight in zip(sorted(regions), a, strict=True):
        for i in regions[key].values():
            scores[i] = scores[i] * weight
    return model.head(model.refine(a @ h)), scores


def test_missing_patches_are_as_if_the_region_had_fewer_tokens(monkeypatch) -> None:
    monkeypatch.setattr(hipt, "REGION_CHUNK_SIZE", 3)
    model, features, coords = make(), torch.randn(25, 5).double(), sparse(25, side=11)
    output = model(features, coords)
    logits, scores = by_hand(model, features, coords)
    torch.testing.assert_close(output.logits, logits)
    torch.testing.assert_close(output.scores, scores)
    ours = torch.autograd.grad(output.logits[0], list(model.parameters()), allow_unused=True)
    theirs = torch.autograd.grad(logits[0], list(model.parameters()), allow_unused=True)
    for (name, _), a, b in zip(model.named_parameters(), ours, theirs, strict=True):
        torch.testing.assert_close(a, b, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.parametrize("local", ["vit", "attention"])
def test_slots_are_numbered_by_region_row_and_column(local) -> None:
    model = make(local=local)
    coords = np.array([[7, 4], [0, 2], [1, 0], [4, 1], [2, 5], [8, 3], [0, 0]], np.float64)
    # Regions that have a patch: rows 0-2 with columns 0-2 and 3-5, rows 3-5 with 0-2 and 6-8.
    wanted = [3 * 9 + 3 + 1, 2 * 3, 1, 9 + 3 + 1, 2 * 9 + 2 * 3 + 2, 3 * 9 + 2, 0]
    assert model.plan(coords + [40.5, -3])["slots"].tolist() == wanted
    assert model.plan(coords)["slots"].dtype == np.int64


def test_a_coordinate_next_to_a_whole_number_is_that_number() -> None:
    model = make()
    exact = np.array([[0, 0], [3, 6], [2, 2], [5, 5]], np.float64)
    noise = np.array([[0, 0], [-1e-9, 1e-9], [1e-9, -1e-9], [-1e-8, -1e-8]])
    assert model.plan(exact + noise)["slots"].tolist() == model.plan(exact)["slots"].tolist()


def test_only_places_relative_to_the_slide_matter() -> None:
    model, features, coords = make(), torch.randn(25, 5).double(), sparse(25, side=11)
    output, moved = model(features, coords), model(features, coords + 170)
    assert output.logits.equal(moved.logits)
    turned = model(features, coords.flip(1))
    assert not torch.allclose(output.logits, turned.logits)


@pytest.mark.parametrize("local", ["vit", "attention"])
def test_patches_in_one_place_are_their_mean_and_each_gets_its_score(local) -> None:
    model, coords = make(local=local), sparse(12, side=6)
    features = torch.randn(12, 5).double()
    spread = torch.randn(5).double()
    single = model(features, coords)
    doubled = torch.cat([features, features[4:5] - 2 * spread])
    doubled[4] += 2 * spread
    output = model(doubled, torch.cat([coords, coords[4:5] + 0.25]))
    torch.testing.assert_close(output.logits, single.logits)
    torch.testing.assert_close(output.scores[:12], single.scores)
    assert output.scores[12] == output.scores[4]


@pytest.mark.parametrize("local", ["vit", "attention", "none"])
def test_row_order_changes_nothing(local) -> None:
    model, features, coords = make(local=local), torch.randn(40, 5).double(), sparse(40, side=12)
    rows = torch.randperm(40)
    output, shuffled = model(features, coords), model(features[rows], coords[rows])
    torch.testing.assert_close(output.logits, shuffled.logits)
    torch.testing.assert_close(output.scores[rows], shuffled.scores)


def cubic(distance: float) -> float:
    """Keys' kernel with the constant torch has, -0.75."""
    d, a = abs(distance), -0.75
    if d <= 1:
        return (a + 2) * d**3 - (a + 3) * d**2 + 1
    return a * (d**3 - 5 * d**2 + 8 * d - 4) if d < 2 else 0.0


@pytest.mark.parametrize("region", [1, 5, 16, 20])
def test_positions_are_the_table_in_bicubic_steps_of_14_by_a_tenth_more_than_a_region(region):
    model = make(region=region)
    resize = np.zeros((region, 14))
    for i in range(region):
        centre = (i + 0.5) * 14 / (region + 0.1) - 0.5
        for j in range(int(np.floor(centre)) - 1, int(np.floor(centre)) + 3):
            resize[i, min(max(j, 0), 13)] += cubic(centre - j)
    table = model.local.position[1:].detach().numpy().reshape(14, 14, -1)
    wanted = np.einsum("ri,cj,ijd->rcd", resize, resize, table).reshape(region**2, -1)
    np.testing.assert_allclose(model.local.resize_positions().detach(), wanted, atol=1e-10)


def test_local_attention_is_attention_in_each_region_and_then_among_them() -> None:
    model, features, coords = make(local="attention"), torch.randn(30, 5).double(), sparse(30, 9)
    home = torch.from_numpy(model.plan(coords.numpy())["slots"]) // 9
    h = model.local.project(features)
    vectors, scores = [], torch.zeros(30).double()
    for region in range(int(home.max()) + 1):
        rows = (home == region).nonzero()[:, 0]
        weights = model.local.attention(h[rows])[:, 0].softmax(0)
        vectors.append(weights @ h[rows])
        scores[rows] = weights
    g = model.project(torch.stack(vectors))
    among = model.attention(g)[:, 0].softmax(0)
    output = model(features, coords)
    torch.testing.assert_close(output.logits, model.head(model.refine(among @ g)))
    torch.testing.assert_close(output.scores, scores * among[home])
    assert output.scores.sum().item() == pytest.approx(1)


def test_a_checkpoint_with_local_attention_is_understood() -> None:
    widths = {"local_phi.0": (256, 7), "global_phi.0": (256, 256), "global_rho.0": (256, 256)}
    for pool in ("local_attn_pool", "global_attn_pool"):
        widths |= {f"{pool}.attention_{part}": (256, 256) for part in ("a.0", "b.0")}
        widths[f"{pool}.attention_c"] = (1, 256)
    widths["classifier"] = (3, 256)
    state = {f"{name}.weight": torch.randn(size) for name, size in widths.items()}
    state |= {f"{name}.bias": torch.randn(size[0]) for name, size in widths.items()}
    model = load_reference("hipt", state)
    assert (model.options["local"], model.options["dim"], model.in_dim) == ("attention", 256, 7)
    assert model.local.attention.gate.weight.equal(state["local_attn_pool.attention_b.0.weight"])
    assert model.attention.value.bias.equal(state["global_attn_pool.attention_a.0.bias"])
    with torch.device("meta"):
        fresh = create_model("hipt", in_dim=7, num_classes=3, local="attention")
    assert {k: v.shape for k, v in fresh.state_dict().items()} == {
        k: v.shape for k, v in model.state_dict().items()
    }


@pytest.mark.parametrize("regions", [1, 7, 30])
def test_queries_in_parts_give_what_the_layer_of_torch_gives(regions, monkeypatch) -> None:
    monkeypatch.setattr(hipt, "QUERY_CHUNK_SIZE", 7)
    layer = nn.TransformerEncoderLayer(12, 3, 12, 0.0).double()
    for training in (True, False):
        layer.train(training)
        x = torch.randn(regions, 12).double().requires_grad_()
        ours, theirs = hipt.apply_layer_in_chunks(layer, x), layer(x)
        torch.testing.assert_close(ours, theirs)
        weight = torch.randn_like(ours)
        a, b = (torch.autograd.grad((y * weight).sum(), x)[0] for y in (ours, theirs))
        torch.testing.assert_close(a, b)
        with torch.no_grad():
            torch.testing.assert_close(hipt.apply_layer_in_chunks(layer, x), theirs)


def test_dropout_is_where_it_is_in_the_layer_of_torch() -> None:
    layer = nn.TransformerEncoderLayer(12, 3, 12, 0.25).double()
    x = torch.randn(6, 12).double()
    torch.manual_seed(5)
    ours = hipt.apply_layer_in_chunks(layer, x)
    torch.manual_seed(5)
    torch.testing.assert_close(ours, layer(x))


def test_places_do_not_matter_when_instances_are_regions() -> None:
    model, features = make(local="none"), torch.randn(40, 5).double()
    here, there = model(features, sparse(40, 12)), model(features, torch.zeros(40, 2))
    assert here.logits.equal(there.logits)
    assert here.scores.sum().item() == pytest.approx(1)


@pytest.mark.parametrize("local", ["vit", "attention", "none"])
@pytest.mark.parametrize("instances", [1, 2, 300])
def test_bags_of_any_size_can_be_learned_from(local, instances) -> None:
    model = make(num_classes=3, local=local).train()
    output = model(torch.randn(instances, 5).double(), sparse(instances, side=40))
    model.losses(output, torch.tensor(2))["all"].backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_the_vit_starts_small_and_without_biases() -> None:
    model = create_model("hipt", in_dim=64, num_classes=2)
    for name, parameter in model.local.named_parameters():
        if "norm" in name:
            assert (parameter == float("weight" in name)).all()
        elif name.endswith("bias"):
            assert (parameter == 0).all()
        else:
            assert parameter.std().item() == pytest.approx(0.02, rel=0.15)
    assert (model.project[0].bias != 0).any()


def test_wrong_options_and_foreign_checkpoints_are_refused() -> None:
    wrong = [{"local": "cnn"}, {"region": 0}, {"dim": 0}, {"depth": 0}, {"dropout": 2}]
    wrong += [{"heads": 5}, {"global_heads": 5}, {"heads": 0}]
    for options in wrong:
        with pytest.raises(OptionError, match=next(iter(options))):
            create_model("hipt", in_dim=4, num_classes=2, **options)
    with pytest.raises(ModelError, match=r"global_phi\.0\.weight is missing"):
        load_reference("hipt", {"classifier.weight": np.zeros((2, 4), np.float32)})
