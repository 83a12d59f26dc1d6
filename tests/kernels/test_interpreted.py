"""The fast path gives the plain path's numbers: all kernels, in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from block_answers import answers, relative
from small_models import as_if_trained
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from sacmil import create_model
from sacmil.kernels import sac_mil
from sacmil.kernels.config import use_plain_path
from sacmil.models import MILModel
from sacmil.models.sac_mil import PROPE, SACBlock
from sacmil.models.sac_mil_near_far import NearBlock
from sacmil.synthetic.tissue_shape import make_tissue_coords

pytestmark = pytest.mark.usefixtures("interpreter")

AROUND_RINGS = [1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 79, 130]
"""Lengths around those where rings of 4, 16 and 64 begin and end."""


@pytest.fixture(autouse=True)
def _few_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter takes a while for each program, however many rows it has."""
    monkeypatch.setattr(sac_mil, "PROPE_ROWS", 32)


def block_of(dim: int, k: int, level: int, tail: str = "absorb") -> SACBlock:
    torch.manual_seed(dim + k + level)
    block = SACBlock(dim, k, level, "linear", tail, residual=True)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=dim**-0.5)
    return block


def assert_same(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            one, other, rtol=1e-5, atol=2e-6 * max(1.0, float(other.abs().max()))
        )


def both(block: SACBlock, n: int, dtype: torch.dtype = torch.float32) -> None:
    dim = block.norm.normalized_shape[0]
    x, grad = torch.randn(2, n, dim, dtype=dtype)
    assert sac_mil.supports_kernels(block, x)
    fast = answers(block, x, grad)
    with use_plain_path():
        assert not sac_mil.supports_kernels(block, x)
        assert_same(fast, answers(block, x, grad))


@pytest.mark.parametrize(
    ("level", "lengths", "tail"),
    [(0, (1, 3, 5), "absorb"), (1, (15, 33), "split"), (2, (65,), "absorb")],
)
def test_a_block_and_its_gradients_are_the_plain_ones(
    level: int, lengths: tuple[int, ...], tail: str
) -> None:
    """Rings have 4, 16 and 64 instances."""
    for n in lengths:
        both(block_of(8, 4, level, tail), n)


@pytest.mark.slow
@pytest.mark.parametrize("tail", ["absorb", "split"])
@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_block_and_its_gradients_are_the_plain_ones_around_all_rings(
    level: int, tail: str
) -> None:
    for n in AROUND_RINGS:
        both(block_of(8, 4, level, tail), n)


@pytest.mark.parametrize(("dim", "k"), [(96, 3), (6, 2), (1056, 2)])
def test_widths_need_not_be_powers_of_two(dim: int, k: int) -> None:
    both(block_of(dim, k, 0), k + 1)


@pytest.mark.parametrize(("dim", "width", "k"), [(16, 8, 4), (24, 48, 8), (6, 9, 3)])
def test_a_region_is_seen_by_the_near_block_as_by_the_plain_path(
    dim: int, width: int, k: int
) -> None:
    torch.manual_seed(dim + width)
    block = NearBlock(dim, width, k=k, strength=0.2, dropout=0.0)
    for n in (1, k - 1, k, k + 1, 3 * k + 2):
        y, coords = torch.randn(n, dim, requires_grad=True), torch.rand(n, 2)
        grad = torch.randn(n, width)
        inputs = (y, block.value.weight)
        fast = sac_mil.see_region(block, y)
        assert fast is not None
        with use_plain_path():
            plain = block.see_context(y, coords)
        found = torch.autograd.grad(fast, inputs, grad)
        expected = torch.autograd.grad(plain, inputs, grad)
        assert_same([fast.detach(), *found], [plain.detach(), *expected])


def test_what_an_answer_leaves_behind_serves_a_gradient() -> None:
    """Tensors made in inference mode may not be kept for one."""
    model = create_model("sac_mil", in_dim=6, num_classes=2, dim=24, k=4, depth=1, scale=77.0)
    features, coords = torch.randn(9, 6), torch.rand(9, 2)
    with torch.inference_mode():
        model(features, coords)
    model(features, coords).logits.sum().backward()
    assert model.get_parameter("head.weight").grad is not None


def test_rings_may_be_longer_than_any_bag() -> None:
    both(block_of(64, 64, 8), 30)


def test_half_precision_is_as_close_to_the_truth_as_the_plain_path() -> None:
    """bfloat16 is for a GPU: the interpreter cuts its last digits off instead of rounding."""
    block = block_of(32, 4, 1).half()
    x, grad = torch.randn(2, 33, 32).half()
    fast = answers(block, x, grad)
    with use_plain_path():
        plain = answers(block, x, grad)
        exact = answers(block.double(), x.double(), grad.double())
    for found, usual, truth in zip(fast, plain, exact, strict=True):
        assert relative(found, truth) <= 1.1 * relative(usual, truth)


@pytest.mark.parametrize("activation", [torch.nn.ReLU, torch.nn.Identity])
def test_rotation_and_its_gradients_are_the_plain_ones(activation: type[torch.nn.Module]) -> None:
    torch.manual_seed(0)
    n, prope = 45, PROPE(68, 512.0)
    project = torch.nn.Sequential(torch.nn.Linear(8, 68), activation())
    features, order, grad = torch.randn(n, 8), torch.randperm(n), torch.randn(n, 68)
    coords = torch.from_numpy(make_tissue_coords(n, seed=0)).double()
    h = sac_mil.project_and_rotate(project, features, order, coords, 512.0)
    h.backward(grad)
    fast = [h.detach(), project[0].weight.grad.clone()]
    project.zero_grad()
    h = prope(project(features).index_select(0, order), coords.index_select(0, order))
    h.backward(grad)
    assert_same(fast, [h.detach(), project[0].weight.grad])


@pytest.mark.parametrize("scale", [-2.0, 0.0, 512.0, 8192.0])
@pytest.mark.parametrize("constant", [None, 0, 1])
def test_angles_are_exact_to_float32(constant: int | None, scale: float) -> None:
    """Rotating (1, 0) gives cosine and sine of an angle, here of up to two thousand turns."""
    torch.manual_seed(0)
    coords = torch.rand(60, 2, dtype=torch.float64) * 1e5
    if constant is not None:
        coords[:, constant] = 7.0
    project = torch.nn.Sequential(torch.nn.Linear(1, 4), torch.nn.Identity())
    with torch.no_grad():
        project[0].weight.copy_(torch.tensor([[1.0], [0], [1], [0]]))
        project[0].bias.zero_()
    h = sac_mil.project_and_rotate(project, torch.ones(60, 1), torch.arange(60), coords, scale)
    angles = PROPE(4, scale).angles(coords)
    exact = torch.stack((angles.cos(), angles.sin()), dim=2).flatten(1)
    assert float((h.detach().double() - exact).abs().max()) < 3e-7


@pytest.fixture(params=["sac_mil", "sac_mil_local", "sac_mil_dual", "sac_mil_near_far"])
def model(request: pytest.FixtureRequest) -> MILModel:
    torch.manual_seed(0)
    options = {"in_dim": 24, "num_classes": 3, "dim": 32, "k": 4}
    options |= {"waves": 4} if request.param == "sac_mil_near_far" else {"depth": 2, "pool": "mean"}
    return as_if_trained(create_model(request.param, **options))


def outputs_and_gradients(model: MILModel, n: int = 37) -> list[Tensor]:
    """Logits, scores, and all gradients."""
    torch.manual_seed(n)
    coords = torch.from_numpy(make_tissue_coords(n, seed=0)).double()
    model.zero_grad()
    output = model(torch.randn(n, 24), coords)
    output.logits.float().logsumexp(0).backward()
    grads = [each.grad.clone() for each in model.parameters() if each.grad is not None]
    return [output.logits.detach(), output.scores.detach(), *grads]


def test_whole_models_predict_as_on_the_plain_path(model: MILModel) -> None:
    fast = outputs_and_gradients(model)
    with use_plain_path():
        assert_same(fast, outputs_and_gradients(model))


@torch.no_grad()
def test_a_prediction_is_that_of_the_plain_path(model: MILModel) -> None:
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    for n in (1, 3, 16, 37):
        fast = predict(model, n)
        with use_plain_path():
            assert_same(fast, predict(model, n))


@torch.no_grad()
@pytest.mark.parametrize("tail", ["absorb", pytest.param("split", marks=pytest.mark.slow)])
def test_long_bags_are_predicted_chunk_by_chunk(tail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = create_model("sac_mil", in_dim=24, num_classes=3, dim=16, k=2, tail=tail)
    whole = predict(model, 19)
    monkeypatch.setattr(sac_mil, "GPU_CHUNK_ROWS", 5)
    assert_same(predict(model, 19), whole)


@torch.no_grad()
@pytest.mark.parametrize("pool", ["max", "attention"])
def test_other_pools_get_the_instances_themselves(pool: str) -> None:
    torch.manual_seed(0)
    model = create_model("sac_mil", in_dim=24, num_classes=3, dim=32, k=4, depth=2, pool=pool)
    fast = predict(model, 20)
    with use_plain_path():
        assert_same(fast, predict(model, 20))


@torch.no_grad()
def test_a_prediction_leaves_the_bag_unchanged() -> None:
    """Rows are written over inside, never those of the caller."""
    options = {"in_dim": 32, "num_classes": 3, "dim": 32, "k": 4, "depth": 2, "position": "none"}
    model = create_model("sac_mil", **options)
    features = torch.randn(20, 32)
    coords = torch.from_numpy(make_tissue_coords(20, seed=0)).double()
    before = features.clone()
    model(features, coords)
    assert torch.equal(features, before)


@torch.no_grad()
def test_a_prediction_under_autocast_has_the_plain_paths_types(model: MILModel) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fast = predict(model, 37)
        with use_plain_path():
            plain = predict(model, 37)
    assert [each.dtype for each in fast] == [each.dtype for each in plain]
    for one, other in zip(fast, plain, strict=True):
        assert relative(one, other.double()) < 0.03


def predict(model: MILModel, n: int) -> list[Tensor]:
    """Logits and scores."""
    torch.manual_seed(n)
    coords = torch.from_numpy(make_tissue_coords(n, seed=0)).double()
    output = model(torch.randn(n, 24), coords)
    return [output.logits, output.scores]


def test_rows_of_another_kind_than_autocasts_keep_it_as_on_the_plain_path() -> None:
    """Products are of autocast's kind, what they are added to is not."""
    block, x = block_of(16, 4, 0), torch.randn(37, 16)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert not sac_mil.supports_kernels(block, x)
        assert sac_mil.supports_kernels(block, x.bfloat16())
        assert block(x).dtype == torch.float32


@pytest.mark.slow
def test_autocast_keeps_working(model: MILModel) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fast = outputs_and_gradients(model)
        with use_plain_path():
            plain = outputs_and_gradients(model)
    assert [each.dtype for each in fast] == [each.dtype for each in plain]
    # The smallest gradients of the far block are off float32 by 0.02 on either path.
    most = 0.04 if model.name == "sac_mil_near_far" else 0.02
    for one, other in zip(fast, plain, strict=True):
        assert relative(one, other.double()) < most


def test_recomputation_gives_the_same_gradients() -> None:
    block, x = block_of(32, 4, 1), torch.randn(37, 32, requires_grad=True)
    whole = torch.autograd.grad(block(x).square().sum(), x)
    again = torch.autograd.grad(checkpoint(block, x, use_reentrant=False).square().sum(), x)
    assert_same(again, whole)


@pytest.mark.parametrize(
    "options",
    [{"mlp": "mlp"}, {"residual": False}, {"position": "alibi"}, {"k": 5}, {"activation": "gelu"}],
    ids=str,
)
def test_options_without_a_fast_path_take_the_plain_one(options: dict[str, object]) -> None:
    torch.manual_seed(0)
    usual = {"in_dim": 24, "num_classes": 3, "dim": 32, "k": 4, "depth": 2}
    model = create_model("sac_mil", **usual | options)
    fast = outputs_and_gradients(model)
    with use_plain_path():
        assert_same(fast, outputs_and_gradients(model))
