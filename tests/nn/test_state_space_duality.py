"""Mamba-2's scan by matrix products against a loop over steps, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sacmil.nn import state_space_duality as module
from sacmil.nn.state_space_duality import CHUNK, state_space_duality

Inputs = tuple[Tensor, ...]


def inputs(length: int, heads: int = 3, dim: int = 2, state: int = 4) -> Inputs:
    torch.manual_seed(length)
    x = torch.randn(length, heads, dim, dtype=torch.float64)
    dt = torch.rand(length, heads, dtype=torch.float64) + 0.01
    A = -torch.rand(heads, dtype=torch.float64) * 2
    B, C = torch.randn(2, length, state, dtype=torch.float64)
    return tuple(tensor.requires_grad_() for tensor in (x, dt, A, B, C))


def loop(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """The definition, step by step."""
    rows = []
    S = x.new_zeros(*x.shape[1:], B.shape[1])
    for t in range(len(x)):
        kept = torch.exp(dt[t] * A)[:, None, None]
        S = kept * S + (dt[t][:, None] * x[t])[:, :, None] * B[t][None, None, :]
        rows.append(S @ C[t])
    return torch.stack(rows)


def gradients(y: Tensor, of: Inputs) -> Inputs:
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return torch.autograd.grad((y * weights).sum(), of)


def assert_same(ours: Tensor, wanted: Tensor, given: Inputs) -> None:
    torch.testing.assert_close(ours, wanted, rtol=1e-11, atol=1e-11)
    for one, other in zip(gradients(ours, given), gradients(wanted, given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 16, 17, 43])
def test_it_is_the_loop_over_steps_however_chunks_fall(length: int) -> None:
    given = inputs(length)
    assert_same(state_space_duality(*given, chunk=8), loop(*given), given)


@pytest.mark.parametrize("length", [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_it_is_the_loop_over_steps_at_the_chunks_it_really_uses(length: int) -> None:
    given = inputs(length)
    assert_same(state_space_duality(*given), loop(*given), given)


@pytest.mark.parametrize("at_once", [1, 2, 3, 64])
def test_chunks_taken_together_change_nothing(monkeypatch, at_once: int) -> None:
    monkeypatch.setattr(module, "_count_chunks_per_group", lambda tensor: at_once)
    given = inputs(43)
    assert_same(state_space_duality(*given, chunk=8), loop(*given), given)


def test_steps_that_forget_everything_stay_finite_and_exact() -> None:
    x, dt, A, B, C = inputs(300)
    dt = torch.ones_like(dt)
    dt[40:60] = 1e-4  # some that keep nearly all, between those that keep e^-11
    given = (x, dt.requires_grad_(), torch.full_like(A, -11.0).requires_grad_(), B, C)
    single = tuple(tensor.detach().float().requires_grad_() for tensor in given)
    ours, wanted = state_space_duality(*single), loop(*given)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients(ours, single), gradients(wanted, given), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_a_sum_of_small_steps_keeps_its_digits_behind_large_ones() -> None:
    x, dt, A, B, C = (tensor.detach() for tensor in inputs(120))
    dt = torch.full_like(dt, 1e-4)
    dt[:60] = 1.0
    given = (x, dt, torch.full_like(A, -11.0), B, C)
    single = [tensor.float() for tensor in given]
    found = state_space_duality(*single)[61:].double()
    wanted = loop(*(tensor.double() for tensor in single))[61:]
    assert ((found - wanted).abs().max() / wanted.abs().max()).item() < 1e-6


def test_gradients_are_those_of_finite_differences() -> None:
    given = inputs(7, heads=2, dim=1, state=2)
    assert torch.autograd.gradcheck(lambda *t: state_space_duality(*t, chunk=3), given)


def test_states_are_kept_in_float32_whatever_comes_in() -> None:
    given = tuple(tensor.detach().bfloat16() for tensor in inputs(200))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = state_space_duality(*given)
    assert y.dtype == torch.float32
    wanted = loop(*(tensor.double() for tensor in given))
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)
