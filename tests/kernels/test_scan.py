"""Mamba's scan by tiles, and its recurrence, are the loop over steps, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sacmil.kernels import scan
from sacmil.kernels.config import use_plain_path
from sacmil.kernels.scan import recur
from sacmil.nn import state_space
from sacmil.nn.state_space import selective_scan

pytestmark = pytest.mark.usefixtures("interpreter")

Inputs = tuple[Tensor, ...]

STEPS, CHANNELS = 8, 4
ROWS, COLUMNS = 8, 8
"""Of a tile, and of a program of the recurrence: the interpreter takes a while for each number."""


@pytest.fixture(autouse=True)
def _small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "STEPS", STEPS)
    monkeypatch.setattr(scan, "CHANNELS", CHANNELS)
    monkeypatch.setattr(scan, "RECUR_ROWS", ROWS)
    monkeypatch.setattr(scan, "RECUR_COLUMNS", COLUMNS)


def inputs(length: int, channels: int = 3, state: int = 2) -> Inputs:
    torch.manual_seed(length)
    u, dt = torch.randn(length, channels), torch.rand(length, channels) + 0.01
    A, BC = -2 * torch.rand(channels, state), torch.randn(length, 2 * state)
    B, C = BC.chunk(2, dim=1)  # not dense, as the model has them
    return u, dt, A, B, C


def answered(given: Inputs) -> list[Tensor]:
    """The scan and its gradients."""
    given = tuple(tensor.detach().requires_grad_() for tensor in given)
    y = selective_scan(*given)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    return [y.detach(), *torch.autograd.grad((y * weights).sum(), given)]


def assert_by_steps(given: Inputs) -> None:
    """No farther from float64 than the plain path, but for roundings."""
    found = answered(given)
    with use_plain_path():
        plain = answered(given)
    exact = answered(tuple(tensor.double() for tensor in given))
    for ours, usual, truth in zip(found, plain, exact, strict=True):
        allowed = 3 * (usual - truth).abs().max() + 1e-6 * truth.abs().max()
        assert ours.dtype == torch.float32
        assert (ours - truth).abs().max() <= allowed


@pytest.mark.parametrize("length", [1, 2, STEPS - 1, STEPS, STEPS + 1, 2 * STEPS + 5])
def test_it_is_the_loop_over_steps_however_tiles_fall(length: int) -> None:
    assert_by_steps(inputs(length))


@pytest.mark.parametrize(
    ("channels", "state"), [(1, 1), (CHANNELS - 1, 5), (CHANNELS, 4), (CHANNELS + 1, 2)]
)
def test_channels_and_states_need_fill_no_tile(channels: int, state: int) -> None:
    assert_by_steps(inputs(STEPS + 7, channels, state))


def test_steps_that_forget_everything_stay_finite_and_exact() -> None:
    u, dt, A, B, C = inputs(2 * STEPS)
    dt = torch.ones_like(dt)
    dt[4:12] = 1e-4  # some that keep nearly all, between those that keep e^-11 or less
    assert_by_steps((u, dt, A - 11, B, C))
    assert_by_steps((u, 20 * dt, A - 11, B, C))


def test_what_it_keeps_for_the_backward_pass_is_a_state_per_tile() -> None:
    kept: list[Tensor] = []
    length, channels, state = 4 * STEPS, 4, 4
    given = tuple(tensor.requires_grad_() for tensor in inputs(length, channels, state)[:3])
    B, C = inputs(length, channels, state)[3:]
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t) or t, lambda t: t):
        selective_scan(*given, B, C)
    assert max(tensor.numel() for tensor in kept) <= max(4 * channels * state, length * state)


@pytest.mark.parametrize(
    ("steps", "states"),
    [(1, 1), (2, 1), (ROWS - 1, 1), (ROWS, COLUMNS), (ROWS + 1, COLUMNS + 3), (3 * ROWS + 5, 1)],
)
def test_every_step_follows_from_the_one_before(steps: int, states: int) -> None:
    torch.manual_seed(steps)
    a, s = torch.rand(steps, states), torch.randn(steps, states)
    for back, expected in ((False, state_space.STEPS.advance), (True, state_space.STEPS.retreat)):
        ours, wanted, factors = s.clone(), s.clone(), a.clone()
        recur(factors, ours, back=back)
        expected(a, wanted)
        torch.testing.assert_close(ours, wanted)
        assert torch.equal(factors, a)


def test_a_state_that_forgets_all_leaves_nothing_behind() -> None:
    """Factors of zero, which a product of all factors could not be divided by again."""
    s = torch.randn(ROWS + 9, 3)
    ours = s.clone()
    recur(torch.zeros_like(s), ours)
    assert torch.equal(ours, s)
