"""A block in pieces, on a CPU without gradients, is the plain block."""

from __future__ import annotations

import pytest
import torch
from block_answers import relative
from torch import Tensor

from sacmil import create_model
from sacmil.kernels import sac_mil
from sacmil.kernels.config import use_plain_path
from sacmil.kernels.sac_mil import FoldShift
from sacmil.models.sac_mil import SACBlock, shift, unshift

LENGTHS = [1, 2, 3, 4, 5, 15, 16, 17, 31, 33, 63, 64, 65, 79, 130, 200]
"""Around those where rings of 4, 16 and 64 begin and end."""
TAILS = pytest.mark.parametrize("tail", ["absorb", "split"])
LEVELS = pytest.mark.parametrize("level", [0, 1, 2, 9])


def block_of(level: int, tail: str = "absorb", dim: int = 24, k: int = 4) -> SACBlock:
    torch.manual_seed(level)
    block = SACBlock(dim, k, level, "linear", tail, residual=True).double()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=dim**-0.5)
    return block


def plainly(block: SACBlock, x: Tensor) -> Tensor:
    with use_plain_path():
        return block(x)


@torch.no_grad()
@TAILS
@LEVELS
@pytest.mark.parametrize("at_once", [1, 10, 64, 2048])
def test_pieces_of_any_size_give_the_plain_block(
    level: int, tail: str, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sac_mil, "CPU_CHUNK_ROWS", at_once)
    block = block_of(level, tail)
    for n in LENGTHS:
        x = torch.randn(n, 24, dtype=torch.float64)
        before = x.clone()
        found = sac_mil.correlate_in_chunks(block, x)
        torch.testing.assert_close(found, plainly(block, x), rtol=1e-12, atol=1e-13)
        assert torch.equal(x, before)


@TAILS
@LEVELS
def test_what_is_taken_is_what_the_paper_shifts(level: int, tail: str) -> None:
    for n in LENGTHS:
        block, x = block_of(level, tail), torch.randn(n, 24)
        where = FoldShift.for_block(block, n)
        for onward, moved in ((False, shift), (True, unshift)):
            rows = sac_mil.make_gather_indices(where, forward=onward)
            found = x.view(-1, 6).index_select(0, rows).view(n, 24)
            assert torch.equal(found, moved(x, 4, level, tail))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_is_as_close_to_the_truth_as_the_plain_block(dtype: torch.dtype) -> None:
    exact = block_of(1, dim=64, k=8)
    block = block_of(1, dim=64, k=8).to(dtype)
    block.load_state_dict(exact.state_dict())
    exact.load_state_dict(block.state_dict())
    x = torch.randn(1_000, 64).to(dtype)
    truth = exact(x.double())
    assert sac_mil.supports_chunks(block, x)
    assert relative(block(x), truth) <= 1.1 * relative(plainly(block, x), truth)


def test_it_is_taken_without_gradients_and_without_autocast() -> None:
    block, x = block_of(0), torch.randn(9, 24, dtype=torch.float64)
    assert not sac_mil.supports_chunks(block, x)
    with torch.no_grad():
        assert sac_mil.supports_chunks(block, x)
        with use_plain_path():
            assert not sac_mil.supports_chunks(block, x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert not sac_mil.supports_chunks(block, x)
        uneven = SACBlock(25, 4, 0, "linear", "absorb", residual=True)
        assert not sac_mil.supports_chunks(uneven, torch.randn(9, 25))


@pytest.mark.parametrize("name", ["sac_mil", "sac_mil_local", "sac_mil_dual", "sac_mil_near_far"])
def test_a_model_answers_alike_and_learns_after_it(name: str) -> None:
    torch.manual_seed(0)
    model = create_model(name, in_dim=6, num_classes=2, dim=32, k=4).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    features, coords = torch.randn(500, 6), torch.rand(500, 2) * 20
    with torch.inference_mode():
        answer = model(features, coords)
    output = model(features, coords)
    torch.testing.assert_close(answer.logits.clone(), output.logits.detach())
    torch.testing.assert_close(answer.scores.clone(), output.scores.detach())
    output.logits.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
