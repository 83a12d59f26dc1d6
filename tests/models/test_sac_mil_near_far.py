"""SAC-MIL near and far: both blocks are the sums over instances that they say they are."""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import pytest
import torch
from torch import Tensor

from sacmil import create_model, describe_model
from sacmil.errors import OptionError
from sacmil.kernels.config import use_plain_path
from sacmil.models import MILModel
from sacmil.models.sac_mil_near_far import FarBlock, NearBlock, shuffle_regions
from sacmil.regions import arrange

DIM, WAVES = 12, 5


def make_block(waves: int = WAVES, longest: float = 9.0, shortest: float = 1.5) -> FarBlock:
    torch.manual_seed(3)
    waves_of = {"waves": waves, "longest": longest, "shortest": shortest}
    training = {"jitter": 0.3, "dropout": 0.5, "sample": 20}
    return randomize(FarBlock(DIM, **waves_of, strength=0.7, **training))


def make_near_block(width: int = 8) -> NearBlock:
    torch.manual_seed(4)
    return randomize(NearBlock(DIM, width, k=4, strength=0.6, dropout=0.5))


Block = TypeVar("Block", FarBlock, NearBlock)


def randomize(block: Block) -> Block:
    block = block.double().eval()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return block


def make_model(num_classes: int = 2, *, trained: bool = True) -> MILModel:
    torch.manual_seed(1)
    options = {"dim": 16, "k": 4, "width": 12, "waves": 6, "far_strength": 1.0}
    model = create_model("sac_mil_near_far", in_dim=8, num_classes=num_classes, **options)
    for parameter in model.parameters() if trained else ():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.double().eval()


def make_bag(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(seed)
    side = math.ceil(math.sqrt(3 * n))
    places = random.choice(side * side, n, replace=False)
    coords = np.stack(np.divmod(places, side), axis=1).astype(np.float64)
    return torch.from_numpy(random.standard_normal((n, 8))), torch.from_numpy(coords)


def rows_and_coords(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(n, DIM, dtype=torch.float64), make_bag(n, seed)[1]


def normed(block: FarBlock | NearBlock, x: Tensor) -> np.ndarray:
    y = x.detach().numpy()
    y = (y - y.mean(1, keepdims=True)) / np.sqrt(y.var(1, keepdims=True) + block.norm.eps)
    y = y * block.norm.weight.detach().numpy()
    return y - y.mean(0)


def sum_over_pairs(block: FarBlock, x: Tensor, coords: Tensor) -> Tensor:
    """The block's definition, pair by pair, with complex numbers for pairs of channels."""
    p = (coords - coords.mean(0)).numpy()
    p = p / np.sqrt(np.square(p).sum(1).mean())
    t = np.arange(WAVES)
    wavelength = np.geomspace(9.0, 1.5, WAVES)
    turn = np.pi * (3 - np.sqrt(5)) * t
    w = 2 * np.pi / wavelength[:, None] * np.stack([np.cos(turn), np.sin(turn)], axis=1)
    y = normed(block, x)

    def as_complex(layer: torch.nn.Linear) -> np.ndarray:
        real, imaginary = np.split(y @ layer.weight.detach().numpy().T, 2, axis=1)
        return real + 1j * imaginary

    own, value = as_complex(block.own), as_complex(block.value)
    slide = (np.exp(1j * p @ w.T) * value).mean(0)
    size = np.sqrt(np.square(np.abs(slide)).mean() / 2)
    out = []
    for i in range(len(y)):
        seen = sum(np.exp(1j * (p[j] - p[i]) @ w.T) * value[j] for j in range(len(y)))
        seen = block.strength * seen / len(y) / size
        out.append(np.concatenate([own[i].real * seen.real, own[i].imag * seen.imag]))
    return x + block.out(torch.from_numpy(np.array(out)))


@torch.no_grad()
@pytest.mark.parametrize("n", [2, 3, 40])
def test_the_far_block_is_a_sum_over_all_pairs(n: int) -> None:
    block, (x, coords) = make_block(), rows_and_coords(n)
    expected = sum_over_pairs(block, x, coords)
    torch.testing.assert_close(block(x, coords), expected, atol=2e-5, rtol=2e-5)


@torch.no_grad()
def test_only_relative_positions_in_radii_of_the_slide_matter() -> None:
    block, (x, coords) = make_block(), rows_and_coords(30)
    moved = block(x, 7.5 * coords + torch.tensor([4_000.0, -90.0]))
    torch.testing.assert_close(moved, block(x, coords), atol=1e-5, rtol=1e-5)
    turned = block(x, coords.flip(1))
    assert not torch.allclose(turned, block(x, coords), atol=1e-2), "direction matters"


@torch.no_grad()
def test_the_order_of_rows_does_not_matter() -> None:
    block, (x, coords) = make_block(), rows_and_coords(30)
    order = torch.randperm(30)
    torch.testing.assert_close(block(x[order], coords[order]), block(x, coords)[order])


@torch.no_grad()
def test_every_instance_meets_every_other() -> None:
    """Two blocks of the paper with regions of 4 would reach 16."""
    block, (x, coords) = make_block(), rows_and_coords(200)
    before = block(x, coords)
    changed = x.clone()
    changed[77] += torch.randn(DIM, dtype=torch.float64)
    difference = (block(changed, coords) - before).abs().amax(1)
    assert (difference > 1e-6).all()


@torch.no_grad()
def test_what_all_instances_share_is_not_seen() -> None:
    """A slide of one kind of tissue gives no signal, whatever its outline."""
    block, (_, coords) = make_block(), rows_and_coords(50)
    alike = torch.randn(1, DIM, dtype=torch.float64).expand(50, -1)
    torch.testing.assert_close(block(alike, coords) - alike, block.out.bias.expand(50, -1))


def test_waves_run_from_the_longest_to_the_shortest_in_all_directions() -> None:
    block = make_block(waves=64, longest=16.0, shortest=1.0)
    coords = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, -1.0], [0.0, 1.0]])  # of radius 1
    first, second = block.angles(coords).chunk(2, dim=1)
    assert torch.equal(first, -second), "the two channels of a pair turn in opposite directions"
    w = torch.stack([second[1], second[3]], dim=1).double()
    wavelength = 2 * math.pi / torch.linalg.vector_norm(w, dim=1)
    expected = torch.from_numpy(np.geomspace(16.0, 1.0, 64))
    torch.testing.assert_close(wavelength, expected, atol=1e-4, rtol=1e-4)
    direction = torch.atan2(w[:, 1], w[:, 0]).remainder(math.pi).sort().values
    gaps = direction.diff(append=direction[:1] + math.pi)
    assert gaps.max() < 3 * math.pi / 64


@pytest.mark.parametrize("n", [1, 2, 5])
def test_a_slide_without_extent_gives_finite_numbers_and_gradients(n: int) -> None:
    model = make_model()
    features = torch.randn(n, 8, dtype=torch.float64)
    for coords in (torch.zeros(n, 2), torch.full((n, 2), 1e6)):
        model.zero_grad()
        output = model(features, coords.double(), {"order": torch.arange(n)})
        output.logits.sum().backward()
        assert output.logits.isfinite().all()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


def test_alike_instances_give_finite_gradients() -> None:
    model = make_model()
    output = model(torch.ones(30, 8, dtype=torch.float64), make_bag(30)[1])
    output.logits[0].backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@torch.no_grad()
def test_training_draws_other_positions_waves_and_tiles_each_time() -> None:
    block, (x, coords) = make_block(), rows_and_coords(40)
    usual = block(x, coords)
    off = {"jitter": 0.0, "dropout": torch.nn.Dropout(0.0), "sample": 40}
    for name in off:
        block = make_block().train()
        for other in set(off) - {name}:
            setattr(block, other, off[other])
        torch.manual_seed(0)
        first, second = block(x, coords), block(x, coords)
        assert not torch.allclose(first, second), f"{name} is drawn anew"
        torch.manual_seed(0)
        assert torch.equal(block(x, coords), first), "a seed repeats it"
    for name, value in off.items():
        setattr(block, name, value)
    torch.testing.assert_close(block(x, coords), usual, atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize(("sample", "fewest", "most"), [(100, 60, 140), (5_000, 2_000, 2_000)])
def test_a_training_step_takes_the_mean_of_about_so_many_tiles(
    sample: int, fewest: int, most: int
) -> None:
    block, (x, coords) = make_block().train(), rows_and_coords(2_000)
    block.sample, values = sample, []

    def keep(_: torch.nn.Module, __: object, value: Tensor) -> None:
        value.retain_grad()
        values.append(value)

    block.value.register_forward_hook(keep)
    block(x, coords).square().sum().backward()
    assert fewest <= (values[0].grad != 0).any(1).sum() <= most


@pytest.mark.parametrize("block", [make_block(waves=40), make_near_block(width=32)])
def test_channels_are_left_out_in_pairs_and_the_others_make_up_for_them(
    block: FarBlock | NearBlock,
) -> None:
    (x, coords), width = rows_and_coords(5), block.own.out_features
    block.jitter, block.sample = 0.0, 5
    torch.manual_seed(0)
    block.train()(x, coords).sum().backward()
    left = block.own.weight.grad.clone()
    block.own.weight.grad = None
    block.eval()(x, coords).sum().backward()
    kept = (left != 0).any(1)
    assert torch.equal(kept[: width // 2], kept[width // 2 :]), "both channels of a wave"
    assert 0 < kept.sum() < width
    expected = 2 * block.own.weight.grad * kept[:, None]
    torch.testing.assert_close(left, expected, atol=2e-5, rtol=2e-5)


# --- the near block ------------------------------------------------------------------------------


@torch.no_grad()
@pytest.mark.parametrize("n", [1, 3, 8, 22])
def test_the_near_block_mixes_a_fold_of_each_instance_of_the_region(n: int) -> None:
    """Eq. (9) to (13) of the paper, instance by instance; the last region has what is left."""
    block, (x, coords) = make_near_block(), rows_and_coords(n)
    y, k, width = normed(block, x), block.k, 8
    value, own = block.value.weight.numpy(), block.own.weight.numpy()
    seen = np.zeros((n, width))
    for i in range(n):
        start = min(i // k, max(n // k - 1, 0)) * k
        size = (n - start) if n - start < 2 * k else k
        for fold in range(k):
            # Where the channels of this fold of the output are mixed, before they move back.
            place = start + (i - start + fold) % size
            mixed = np.concatenate(
                [
                    y[start + (place - start - other) % size, 3 * other : 3 * other + 3]
                    for other in range(k)
                ]
            )
            channels = slice(2 * fold, 2 * fold + 2)
            seen[i, channels] = value[channels] @ mixed
    expected = x + 0.6 * torch.from_numpy(y @ own.T * seen) @ block.out.weight.T + block.out.bias
    torch.testing.assert_close(block(x, coords), expected)


@torch.no_grad()
def test_the_near_block_sees_its_region_only() -> None:
    block, (x, coords) = make_near_block(), rows_and_coords(40)
    changed = x.clone()
    changed[13] += torch.randn(DIM, dtype=torch.float64)
    center = changed.mean(0) - x.mean(0)  # the mean over the slide is subtracted
    assert center.abs().max() < 0.1
    difference = (block(changed, coords) - block(x, coords)).abs().amax(1)
    region = torch.arange(40) // 4 == 3
    assert difference[region].min() > 3 * difference[~region].max()


@pytest.mark.parametrize(("n", "k"), [(1, 4), (3, 4), (4, 4), (22, 4), (800, 8)])
def test_instances_change_places_within_their_region_only(n: int, k: int) -> None:
    order = torch.randperm(n)
    torch.manual_seed(0)
    shuffled = shuffle_regions(order, k)
    whole = n // k * k
    assert torch.equal(shuffled[whole:], order[whole:])
    regions, before = shuffled[:whole].reshape(-1, k), order[:whole].reshape(-1, k)
    assert torch.equal(regions.sort(1).values, before.sort(1).values)
    if whole:
        places = [(before[0] == one).nonzero().item() for one in regions[0]]
        assert torch.equal(regions, before[:, places]), "in all regions alike"
    if n > 100:
        assert not torch.equal(shuffled, order)
        assert not torch.equal(shuffle_regions(order, k), shuffled), "drawn anew"


# --- the model -----------------------------------------------------------------------------------


def test_the_defaults_are_what_the_studies_chose() -> None:
    blocks = {"dim": 256, "k": 8, "width": 256, "waves": 64}
    waves = {"longest": 16.0, "shortest": 1.0, "near_strength": 0.2, "far_strength": 0.03}
    training = {"dropout": 0.5, "shuffle": True, "jitter": 0.3, "sample": 256}
    expected = blocks | waves | training
    assert describe_model("sac_mil_near_far").options == expected


def test_parameters_are_as_many_as_the_documents_say() -> None:
    with torch.device("meta"):
        model = create_model("sac_mil_near_far", in_dim=1024, num_classes=2)
    assert sum(parameter.numel() for parameter in model.parameters()) == 591_875


@torch.no_grad()
def test_before_training_instances_are_independent() -> None:
    model = make_model(trained=False)
    features, coords = make_bag(90)
    independent = model.head(model.pool(model.project(features)))
    torch.testing.assert_close(model(features, coords).logits, independent)


def test_both_blocks_begin_to_learn_at_once() -> None:
    model = make_model(trained=False)
    model.losses(model(*make_bag(90)), torch.tensor(1))["all"].backward()
    for layer in (model.near.out, model.far.out):
        assert not layer.weight.any()
        assert layer.weight.grad.any()


@torch.no_grad()
def test_near_regions_are_those_of_sac_mil_local() -> None:
    coords = make_bag(300)[1].numpy()
    model = create_model("sac_mil_near_far", in_dim=16, num_classes=2)
    np.testing.assert_array_equal(
        model.plan(coords)["order"], arrange(coords, 8, "peel", "hilbert")
    )


@torch.no_grad()
@pytest.mark.parametrize("num_classes", [1, 2, 3])
def test_what_instances_add_is_the_logits(num_classes: int) -> None:
    model = make_model(num_classes)
    output = model(*make_bag(90))
    without_bias = output.logits - model.head.bias
    shared = without_bias.mean() if num_classes > 1 else 0.0
    torch.testing.assert_close(output.class_scores.sum(0), without_bias - shared)


@torch.no_grad()
def test_fast_and_plain_paths_agree() -> None:
    model, bag = make_model(), make_bag(500)
    fast = model(*bag)
    with use_plain_path():
        plain = model(*bag)
    torch.testing.assert_close(fast.logits, plain.logits)
    torch.testing.assert_close(fast.class_scores, plain.class_scores)


@torch.no_grad()
def test_bfloat16_is_close_to_float64() -> None:
    exact = make_model().to(torch.bfloat16).double()
    rough = make_model().to(torch.bfloat16)
    features, coords = make_bag(2_000)
    features = features.to(torch.bfloat16)
    found = rough(features, coords).logits.double()
    torch.testing.assert_close(found, exact(features.double(), coords).logits, atol=0.1, rtol=0.05)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 4, "width": 7}, "width=7; expected an even number"),
        ({"k": 20, "width": 16}, "k=20, dim=256, width=16; a fold needs a channel"),
    ],
)
def test_a_width_that_does_not_fit_is_rejected(options: dict[str, int], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        create_model("sac_mil_near_far", in_dim=8, num_classes=2, **options)


def test_wavelengths_the_wrong_way_round_are_rejected() -> None:
    with pytest.raises(OptionError, match="shortest=9, longest=2; expected the reverse"):
        create_model("sac_mil_near_far", in_dim=8, num_classes=2, longest=2.0, shortest=9.0)


# --- what it is for ------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_learns_at_which_distance_two_lesions_are() -> None:
    """They are corners of a rectangle: where a single one is says nothing."""
    random = np.random.default_rng(0)
    grid = np.stack(np.divmod(np.arange(256), 16), axis=1).astype(np.float64)

    def make_slide(label: int) -> tuple[Tensor, Tensor]:
        features = random.standard_normal((256, 8))
        rows, columns = random.integers(1, 10) + [0, 4], random.integers(1, 5) + [0, 9]
        side = random.integers(2)
        near = [(row, columns[side]) for row in rows]
        far = [(rows[side], column) for column in columns]
        for row, column in (near, far)[label]:
            inside = (abs(grid[:, 0] - row) <= 1) & (abs(grid[:, 1] - column) <= 1)
            features[inside, 0] += 4.0
        return torch.from_numpy(features).float(), torch.from_numpy(grid)

    slides = [(make_slide(number % 2), number % 2) for number in range(240)]
    torch.manual_seed(0)
    options = {"dim": 32, "waves": 32, "far_strength": 1.0}
    model = create_model("sac_mil_near_far", in_dim=8, num_classes=2, **options)
    plan = model.plan(grid)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(8):
        for bag, label in slides[:180]:
            optimizer.zero_grad()
            model.losses(model(*bag, plan), torch.tensor(label))["all"].backward()
            optimizer.step()
    with torch.no_grad():
        found = [int(model.eval()(*bag, plan).logits.argmax()) == y for bag, y in slides[180:]]
    assert np.mean(found) > 0.85
