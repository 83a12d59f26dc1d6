"""What is made anew in the backward pass is what was there before."""

from __future__ import annotations

import torch
from torch.nn import functional as F

from sacmil.nn.layers import recompute_in_backward


def test_gradients_are_those_of_what_was_drawn_first() -> None:
    x = torch.randn(40, 8, dtype=torch.float64, requires_grad=True)

    def step(x: torch.Tensor) -> torch.Tensor:
        return (F.dropout(x, 0.5).exp() ** 2).sum()

    found = []
    for run in (recompute_in_backward, lambda function, *given: function(*given)):
        torch.manual_seed(3)
        found.append(torch.autograd.grad(run(step, x), x)[0])
    torch.testing.assert_close(found[0], found[1])


def test_a_step_is_made_twice_only_where_gradients_are_wanted() -> None:
    calls = []

    def step(x: torch.Tensor) -> torch.Tensor:
        calls.append(torch.is_grad_enabled())
        return (x**2).sum()

    x = torch.ones(3, requires_grad=True)
    with torch.no_grad():
        recompute_in_backward(step, x)
    assert calls == [False]
    recompute_in_backward(step, x).backward()
    assert calls == [False, True, True]


def test_nothing_within_a_step_is_remembered() -> None:
    kept = []
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        y = recompute_in_backward(lambda x: x[:, None].expand(3, 50).exp().exp().sum(), x)
    assert torch.Size([3, 50]) not in kept
    y.backward()
    assert x.grad is not None
