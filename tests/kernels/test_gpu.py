"""The fast path on a GPU: pytest -m gpu tests/kernels."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy

import pytest
import torch
from block_answers import answers, relative
from small_models import as_if_trained
from torch import Tensor

from sacmil import create_model
from sacmil.kernels import sac_mil
from sacmil.kernels.config import can_run_kernels, load_kernels, use_fast_path, use_plain_path
from sacmil.models import MILModel
from sacmil.models.sac_mil import PROPE, SACBlock
from sacmil.models.sac_mil_near_far import NearBlock

pytestmark = pytest.mark.gpu

SHORT = [*range(1, 10), 63, 64, 65, 127, 128, 129, 1_000, 4_095, 4_096, 4_097, 4_999, 5_000]
SAC_MIL_MODELS = ["sac_mil", "sac_mil_local", "sac_mil_dual", "sac_mil_near_far"]
LONG = [8_191, 8_192, 8_193, 65_537, 100_003, 262_143, 262_144, 262_145, 520_000]


def random_lengths(count: int) -> list[int]:
    return torch.randint(1, 5_001, (count,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture(scope="module", autouse=True)
def _seeded() -> Iterator[None]:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    with torch.random.fork_rng(), use_fast_path():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("k", [8, 64])
def test_bfloat16_is_as_close_to_the_truth_as_the_plain_path(k: int, level: int) -> None:
    for n in [*SHORT, *random_lengths(20), *LONG]:
        block = SACBlock(512, k, level, "linear", "absorb", residual=True).cuda().bfloat16()
        x, grad = torch.randn(2, n, 512, device="cuda").bfloat16()
        assert can_run_kernels(x)
        found = answers(block, x, grad)
        with use_plain_path():
            usual = answers(block, x, grad)
            exact = answers(block.double(), x.double(), grad.double())
        for one, other, truth in zip(found, usual, exact, strict=True):
            assert relative(one, truth) <= 1.05 * relative(other, truth), n


def see(block: NearBlock, y: Tensor, grad: Tensor, coords: Tensor) -> list[Tensor]:
    """What a near block sees, and the gradients of its input and weight."""
    seen = block.see_context(y, coords)
    return [seen.detach(), *torch.autograd.grad(seen, (y, block.value.weight), grad)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_region_is_seen_as_close_to_the_truth_as_by_the_plain_path(dtype: torch.dtype) -> None:
    block = NearBlock(256, 256, k=8, strength=0.2, dropout=0.0).cuda().to(dtype)
    for n in [*SHORT, *random_lengths(10), *LONG]:
        y, grad = torch.randn(2, n, 256, device="cuda").to(dtype)
        coords = torch.empty(n, 2, device="cuda")
        y.requires_grad_()
        assert sac_mil.see_region(block, y) is not None
        found = see(block, y, grad, coords)
        with use_plain_path():
            usual = see(block, y, grad, coords)
            exact_block = deepcopy(block).double()
            exact = see(exact_block, y.detach().double().requires_grad_(), grad.double(), coords)
        for one, other, truth in zip(found, usual, exact, strict=True):
            assert relative(one, truth) <= 1.02 * relative(other, truth) + 1e-6, n


def model_of(name: str) -> MILModel:
    model = as_if_trained(create_model(name, in_dim=1024, num_classes=2))
    return model.cuda().bfloat16().eval()


def bag(n: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    coords = torch.randint(0, 512, (n, 2), device="cuda").double()
    order = torch.randperm(n, device="cuda")
    return torch.randn(n, 1024, device="cuda").bfloat16(), coords, {"order": order}


@pytest.mark.parametrize("name", SAC_MIL_MODELS)
@torch.no_grad()
def test_a_new_length_compiles_no_kernel(name: str) -> None:
    model = model_of(name)
    model(*bag(16))
    model(*bag(1_001))
    before = compiled()
    for n in (1, 2, 777, 1_024, 5_000, 65_536, 100_003):
        model(*bag(n))
    assert compiled() == before


@torch.no_grad()
def test_rows_may_begin_anywhere() -> None:
    """Those at odd addresses need kernels of their own, even once the usual ones are known."""
    block = model_of("sac_mil").blocks[0]
    held = torch.randn(1_001 * 512 + 1, device="cuda").bfloat16()
    odd = held[1:].view(1_001, 512)
    first, usual, last = block(odd), block(odd.clone()), block(odd)
    assert odd.data_ptr() % 16
    assert torch.equal(first, last)
    torch.testing.assert_close(first, usual, rtol=2**-7, atol=2**-7)  # sums in another order


@pytest.mark.parametrize("n", [1, 33, 1_000, 2_500])
def test_mambas_scan_is_the_one_without_kernels(n: int) -> None:
    torch.manual_seed(n)
    model = create_model("mambamil", in_dim=32, num_classes=2, dim=64).cuda()
    features, coords = torch.randn(n, 32, device="cuda"), torch.rand(n, 2, device="cuda")
    found = []
    for path in (use_fast_path, use_plain_path):
        model.zero_grad()
        with path():
            logits = model(features, coords, {}).logits
            logits.sum().backward()
        found.append([logits, *(p.grad.clone() for p in model.parameters() if p.grad is not None)])
    for ours, wanted in zip(*found, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-3, atol=1e-5)


def compiled() -> int:
    """Kernels compiled so far."""
    names = ("row_statistics", "norm_shift", "move_folds", "prope", "norms_and_mean")
    made = [getattr(load_kernels(), name) for name in names]
    return sum(len(caches[0]) for kernel in made for caches in kernel.device_caches.values())


@pytest.mark.parametrize("name", SAC_MIL_MODELS)
@torch.no_grad()
def test_a_captured_graph_predicts_the_same(name: str) -> None:
    model, given = model_of(name), bag(5_000)
    expected = model(*given).logits
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = model(*given).logits
    found.zero_()
    graph.replay()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", SAC_MIL_MODELS)
def test_torch_compile_takes_it_whole_and_for_all_lengths(name: str) -> None:
    """Inductor may make one for short bags and one for long ones, and that is all."""
    model = model_of(name)
    made = torch.compile(model.aggregate, dynamic=True, fullgraph=True)
    with torch.no_grad():
        for n in (5_000, 65_536):
            made(*bag(n))
        with torch._dynamo.config.patch(error_on_recompile=True):
            for n in (777, 20_000, 100_003):
                given = bag(n)
                torch.testing.assert_close(
                    made(*given).logits, model(*given).logits, rtol=0.05, atol=0.02
                )


@torch.no_grad()
def test_angles_are_exact_to_float32() -> None:
    """Rotating (1, 0) gives cosine and sine of an angle, here of up to two thousand turns."""
    coords = torch.rand(3_000, 2, dtype=torch.float64, device="cuda") * 1e5
    project = torch.nn.Sequential(torch.nn.Linear(1, 256), torch.nn.Identity()).cuda()
    project[0].weight.copy_(torch.tensor([[1.0], [0.0]]).repeat(128, 1))
    project[0].bias.zero_()
    order = torch.arange(3_000, device="cuda")
    h = sac_mil.project_and_rotate(
        project, torch.ones(3_000, 1, device="cuda"), order, coords, 8192.0
    )
    angles = PROPE(256, 8192.0).angles(coords)
    exact = torch.stack((angles.cos(), angles.sin()), dim=2).flatten(1)
    assert float((h.double() - exact).abs().max()) < 3e-7


@torch.no_grad()
@pytest.mark.parametrize("n", [1, 5_000, 100_003, 600_000])
def test_predictions_are_as_close_to_the_truth_as_the_plain_path(n: int) -> None:
    """A mean over many instances is close on both paths, so errors of a few bags are added."""
    wrong = {"fast": 0.0, "plain": 0.0}
    for seed in range(4):
        torch.manual_seed(seed)
        model, given = model_of("sac_mil"), bag(n)
        found = model(*given)
        with use_plain_path():
            usual = model(*given)
            exact = model.double()(given[0].double(), *given[1:])
        for way, output in (("fast", found), ("plain", usual)):
            wrong[way] += relative(output.scores, exact.scores) ** 2
            assert relative(output.logits, exact.logits) < 0.05
    assert wrong["fast"] <= 1.05 * wrong["plain"]
