"""Both scans and the causal convolution agree with loops, in values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sacmil.nn import state_space as module
from sacmil.nn.state_space import (
    CHUNK,
    DOUBLING,
    STEPS,
    CausalConvolution,
    Recurrence,
    selective_scan,
    state_space_duality,
)

Inputs = tuple[Tensor, ...]

BOTH = pytest.mark.parametrize("recurrence", [STEPS, DOUBLING], ids=["steps", "doubling"])


def inputs(length: int, channels: int = 3, state: int = 4, dtype=torch.float64) -> Inputs:
    torch.manual_seed(length)
    u = torch.randn(length, channels, dtype=dtype)
    dt = torch.rand(length, channels, dtype=dtype) + 0.01
    A = -torch.rand(channels, state, dtype=dtype) * 2
    B, C = torch.randn(2, length, state, dtype=dtype)
    return tuple(tensor.requires_grad_() for tensor in (u, dt, A, B, C))


def loop(u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """The definition, a step and a channel at a time."""
    rows = []
    s = torch.zeros_like(A)
    for t in range(len(u)):
        s = torch.exp(dt[t][:, None] * A) * s + (dt[t] * u[t])[:, None] * B[t][None, :]
        rows.append((s * C[t]).sum(1))
    return torch.stack(rows)


def small(recurrence: Recurrence) -> Recurrence:
    return recurrence._replace(chunk=8)


def gradients(y: Tensor, of: Inputs) -> Inputs:
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return torch.autograd.grad((y * weights).sum(), of)


@BOTH
@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 16, 17, 43])
def test_it_is_the_loop_over_steps_however_chunks_fall(recurrence, length: int) -> None:
    given = inputs(length)
    ours, wanted = selective_scan(*given, recurrence=small(recurrence)), loop(*given)
    torch.testing.assert_close(ours, wanted, rtol=1e-12, atol=1e-12)
    for one, other in zip(gradients(ours, given), gradients(wanted, given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-11)


@BOTH
@pytest.mark.parametrize("beside", [-1, 0, 1])
def test_it_is_the_loop_over_steps_at_the_chunks_it_really_uses(recurrence, beside: int) -> None:
    for chunks in (1, 2):
        given = inputs(chunks * recurrence.chunk + beside)
        ours, wanted = selective_scan(*given, recurrence=recurrence), loop(*given)
        torch.testing.assert_close(ours, wanted, rtol=1e-11, atol=1e-11)
        for one, other in zip(gradients(ours, given), gradients(wanted, given), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@BOTH
def test_steps_that_forget_everything_stay_finite_and_exact(recurrence) -> None:
    u, dt, A, B, C = inputs(140)
    A = torch.full_like(A, -11.0).requires_grad_()
    dt = torch.ones_like(dt)
    dt[40:60] = 1e-4  # some that keep nearly all, between those that keep e^-11
    given = (u, dt.requires_grad_(), A, B, C)
    single = tuple(tensor.detach().float().requires_grad_() for tensor in given)
    ours, wanted = selective_scan(*single, recurrence=recurrence), loop(*given)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=1e-5)
    for one, other in zip(gradients(ours, single), gradients(wanted, given), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


@BOTH
def test_gradients_are_those_of_finite_differences(recurrence) -> None:
    given = inputs(11, channels=2, state=2)
    assert torch.autograd.gradcheck(
        lambda *tensors: selective_scan(*tensors, recurrence=small(recurrence)), given
    )


def test_a_processor_goes_by_steps() -> None:
    given = inputs(100)
    assert selective_scan(*given).equal(selective_scan(*given, recurrence=STEPS))


def test_states_are_kept_in_float32_whatever_comes_in() -> None:
    given = tuple(tensor.detach().bfloat16() for tensor in inputs(200))
    y = selective_scan(*given)
    assert y.dtype == torch.float32
    wanted = loop(*(tensor.double() for tensor in given))
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)


def test_mixed_precision_around_it_does_not_reach_inside() -> None:
    given = inputs(50, dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = selective_scan(*given)
    assert y.equal(selective_scan(*given))


def test_what_it_keeps_for_the_backward_pass_is_a_state_per_chunk() -> None:
    kept: list[Tensor] = []
    length, channels, state = 640, 8, 16
    given = inputs(length, channels, state)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        selective_scan(*given)
    chunks = length // STEPS.chunk
    largest = max(tensor.numel() for tensor in kept)
    assert largest <= max((chunks + 1) * channels * state, length * state)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 30])
def test_the_convolution_sees_the_last_four_values_only(length: int) -> None:
    torch.manual_seed(0)
    convolution = CausalConvolution(6).double()
    x = torch.randn(length, 6, dtype=torch.float64, requires_grad=True)
    padded = torch.nn.functional.pad(x.T[None], (3, 0))
    wanted = torch.nn.functional.conv1d(padded, convolution.weight, convolution.bias, groups=6)
    ours, wanted = convolution(x), wanted[0].T
    torch.testing.assert_close(ours, wanted)
    of = (x, *convolution.parameters())
    for one, other in zip(gradients(ours, of), gradients(wanted, of), strict=True):
        torch.testing.assert_close(one, other)


DualInputs = tuple[Tensor, ...]


def dual_inputs(length: int, heads: int = 3, dim: int = 2, state: int = 4) -> DualInputs:
    torch.manual_seed(length)
    x = torch.randn(length, heads, dim, dtype=torch.float64)
    dt = torch.rand(length, heads, dtype=torch.float64) + 0.01
    A = -torch.rand(heads, dtype=torch.float64) * 2
    B, C = torch.randn(2, length, state, dtype=torch.float64)
    return tuple(tensor.requires_grad_() for tensor in (x, dt, A, B, C))


def dual_loop(x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor) -> Tensor:
    """The definition, step by step."""
    rows = []
    S = x.new_zeros(*x.shape[1:], B.shape[1])
    for t in range(len(x)):
        kept = torch.exp(dt[t] * A)[:, None, None]
        S = kept * S + (dt[t][:, None] * x[t])[:, :, None] * B[t][None, None, :]
        rows.append(S @ C[t])
    return torch.stack(rows)


def dual_gradients(y: Tensor, of: DualInputs) -> DualInputs:
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return torch.autograd.grad((y * weights).sum(), of)


def assert_same(ours: Tensor, wanted: Tensor, given: DualInputs) -> None:
    torch.testing.assert_close(ours, wanted, rtol=1e-11, atol=1e-11)
    for one, other in zip(dual_gradients(ours, given), dual_gradients(wanted, given), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("length", [1, 2, 7, 8, 9, 15, 16, 17, 43])
def test_duality_is_the_loop_over_steps_however_chunks_fall(length: int) -> None:
    given = dual_inputs(length)
    assert_same(state_space_duality(*given, chunk=8), dual_loop(*given), given)


@pytest.mark.parametrize("length", [CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 5])
def test_duality_is_the_loop_over_steps_at_the_chunks_it_really_uses(length: int) -> None:
    given = dual_inputs(length)
    assert_same(state_space_duality(*given), dual_loop(*given), given)


@pytest.mark.parametrize("at_once", [1, 2, 3, 64])
def test_chunks_taken_together_change_nothing(monkeypatch, at_once: int) -> None:
    monkeypatch.setattr(module, "_count_chunks_per_group", lambda tensor: at_once)
    given = dual_inputs(43)
    assert_same(state_space_duality(*given, chunk=8), dual_loop(*given), given)


def test_duality_stays_finite_and_exact_where_steps_forget_everything() -> None:
    x, dt, A, B, C = dual_inputs(140)
    dt = torch.ones_like(dt)
    dt[40:60] = 1e-4  # some that keep nearly all, between those that keep e^-11
    given = (x, dt.requires_grad_(), torch.full_like(A, -11.0).requires_grad_(), B, C)
    single = tuple(tensor.detach().float().requires_grad_() for tensor in given)
    ours, wanted = state_space_duality(*single), dual_loop(*given)
    assert ours.dtype == torch.float32
    torch.testing.assert_close(ours.double(), wanted, rtol=1e-5, atol=1e-5)
    for one, other in zip(dual_gradients(ours, single), dual_gradients(wanted, given), strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_a_sum_of_small_steps_keeps_its_digits_behind_large_ones() -> None:
    x, dt, A, B, C = (tensor.detach() for tensor in dual_inputs(120))
    dt = torch.full_like(dt, 1e-4)
    dt[:60] = 1.0
    given = (x, dt, torch.full_like(A, -11.0), B, C)
    single = [tensor.float() for tensor in given]
    found = state_space_duality(*single)[61:].double()
    wanted = dual_loop(*(tensor.double() for tensor in single))[61:]
    assert ((found - wanted).abs().max() / wanted.abs().max()).item() < 1e-6


def test_duality_has_gradients_that_are_those_of_finite_differences() -> None:
    given = dual_inputs(7, heads=2, dim=1, state=2)
    assert torch.autograd.gradcheck(lambda *t: state_space_duality(*t, chunk=3), given)


def test_duality_keeps_states_in_float32_whatever_comes_in() -> None:
    given = tuple(tensor.detach().bfloat16() for tensor in dual_inputs(200))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = state_space_duality(*given)
    assert y.dtype == torch.float32
    wanted = dual_loop(*(tensor.double() for tensor in given))
    torch.testing.assert_close(y.double(), wanted, rtol=1e-5, atol=1e-5)
