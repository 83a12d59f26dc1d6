"""Mamba's recurrence in one pass is the loop over steps, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from sacmil.kernels.recurrence import COLUMNS, ROWS, advance, retreat
from sacmil.nn.state_space import STEPS

pytestmark = pytest.mark.usefixtures("interpreter")


@pytest.mark.parametrize(
    ("steps", "states"),
    [
        *((steps, 1) for steps in (1, 2, ROWS - 1, ROWS, ROWS + 1, 2 * ROWS, 3 * ROWS + 5)),
        *((ROWS + 1, states) for states in (COLUMNS, COLUMNS + 3)),
    ],
)
def test_every_step_follows_from_the_one_before(steps: int, states: int) -> None:
    torch.manual_seed(steps)
    a, s = torch.rand(steps, states), torch.randn(steps, states)
    for found, expected in ((advance, STEPS.advance), (retreat, STEPS.retreat)):
        ours, wanted, factors = s.clone(), s.clone(), a.clone()
        found(factors, ours)
        expected(a, wanted)
        torch.testing.assert_close(ours, wanted)
        assert torch.equal(factors, a)


def test_a_state_that_forgets_all_leaves_nothing_behind() -> None:
    """Factors of zero, which a product of all factors could not be divided by again."""
    s = torch.randn(ROWS + 9, 3)
    ours = s.clone()
    advance(torch.zeros_like(s), ours)
    assert torch.equal(ours, s)
