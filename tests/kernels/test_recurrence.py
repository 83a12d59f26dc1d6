"""Mamba's recurrence in one pass is the loop over steps, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from sacmil.kernels.recurrence import COLUMNS, ROWS
from sacmil.nn.selective_scan import KERNEL, STEPS, selective_scan

pytestmark = pytest.mark.usefixtures("interpreter")


@pytest.mark.parametrize("steps", [1, 2, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS, 3 * ROWS + 5])
@pytest.mark.parametrize("states", [1, COLUMNS, COLUMNS + 3])
def test_every_step_follows_from_the_one_before(steps: int, states: int) -> None:
    torch.manual_seed(steps)
    a, s = torch.rand(steps, states), torch.randn(steps, states)
    for found, expected in ((KERNEL.advance, STEPS.advance), (KERNEL.retreat, STEPS.retreat)):
        ours, wanted, factors = s.clone(), s.clone(), a.clone()
        found(factors, ours)
        expected(a, wanted)
        torch.testing.assert_close(ours, wanted)
        assert torch.equal(factors, a)


def test_a_state_that_forgets_all_leaves_nothing_behind() -> None:
    """Factors of zero, which a product of all factors could not be divided by again."""
    s = torch.randn(ROWS + 9, 3)
    ours = s.clone()
    KERNEL.advance(torch.zeros_like(s), ours)
    assert torch.equal(ours, s)


@pytest.mark.parametrize("length", [7, 8, 9, 43])
def test_a_scan_and_its_gradients_are_those_of_steps(length: int) -> None:
    torch.manual_seed(length)
    u, dt = torch.randn(length, 5), torch.rand(length, 5) + 0.01
    A, B, C = -torch.rand(5, 4), torch.randn(length, 4), torch.randn(length, 4)
    given = [tensor.requires_grad_() for tensor in (u, dt, A, B, C)]
    answers = []
    for recurrence in (KERNEL._replace(chunk=8), STEPS):
        y = selective_scan(*given, recurrence=recurrence)
        answers.append([y, *torch.autograd.grad(y.square().sum(), given)])
    for ours, wanted in zip(*answers, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=1e-4, atol=1e-5)
