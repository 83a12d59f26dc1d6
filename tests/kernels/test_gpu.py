"""The fast path on a GPU: pytest -m gpu tests/kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from block_answers import answers, relative
from torch import Tensor

from sacmil import create_model
from sacmil.kernels.switch import fast, fast_path, kernels, plain_path
from sacmil.models import MILModel
from sacmil.models.sac_mil import SACBlock

pytestmark = pytest.mark.gpu

SHORT = [*range(1, 10), 63, 64, 65, 127, 128, 129, 1_000, 4_095, 4_096, 4_097, 4_999, 5_000]
LONG = [8_191, 8_192, 8_193, 65_537, 100_003, 262_143, 262_144, 262_145, 520_000]


def random_lengths(count: int) -> list[int]:
    return torch.randint(1, 5_001, (count,), generator=torch.Generator().manual_seed(0)).tolist()


@pytest.fixture(scope="module", autouse=True)
def _seeded() -> Iterator[None]:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    with torch.random.fork_rng(), fast_path():
        torch.manual_seed(0)
        yield


@pytest.mark.parametrize("level", [0, 1, 2])
@pytest.mark.parametrize("k", [8, 64])
def test_bfloat16_is_as_close_to_the_truth_as_the_plain_path(k: int, level: int) -> None:
    for n in [*SHORT, *random_lengths(20), *LONG]:
        block = SACBlock(512, k, level, "linear", "absorb", residual=True).cuda().bfloat16()
        x, grad = torch.randn(2, n, 512, device="cuda").bfloat16()
        assert fast(x)
        found = answers(block, x, grad)
        with plain_path():
            usual = answers(block, x, grad)
            exact = answers(block.double(), x.double(), grad.double())
        for one, other, truth in zip(found, usual, exact, strict=True):
            assert relative(one, truth) <= 1.02 * relative(other, truth), n


def model_of(name: str) -> MILModel:
    return create_model(name, in_dim=1024, num_classes=2).cuda().bfloat16().eval()


def bag(n: int) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    coords = torch.randint(0, 512, (n, 2), device="cuda").double()
    order = torch.randperm(n, device="cuda")
    return torch.randn(n, 1024, device="cuda").bfloat16(), coords, {"order": order}


@pytest.mark.parametrize("name", ["sac_mil", "sac_mil_local"])
@torch.no_grad()
def test_a_new_length_compiles_no_kernel(name: str) -> None:
    model = model_of(name)
    model(*bag(16))
    model(*bag(1_001))
    before = compiled()
    for n in (1, 2, 777, 1_024, 5_000, 65_536, 100_003):
        model(*bag(n))
    assert compiled() == before


def compiled() -> int:
    """Kernels compiled so far."""
    made = (kernels().norm_shift, kernels().gelu_unshift, kernels().place)
    return sum(len(caches[0]) for kernel in made for caches in kernel.device_caches.values())


@pytest.mark.parametrize("name", ["sac_mil", "sac_mil_local"])
@torch.no_grad()
def test_a_recorded_graph_answers_alike(name: str) -> None:
    model, given = model_of(name), bag(5_000)
    expected = model(*given).logits
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = model(*given).logits
    found.zero_()
    graph.replay()
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", ["sac_mil", "sac_mil_local"])
def test_torch_compile_takes_it_whole_and_for_all_lengths(name: str) -> None:
    model = model_of(name)
    made = torch.compile(model.aggregate, dynamic=True, fullgraph=True)
    with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=True):
        for n in (5_000, 777, 65_536):
            given = bag(n)
            torch.testing.assert_close(
                made(*given).logits, model(*given).logits, rtol=0.05, atol=0.02
            )
