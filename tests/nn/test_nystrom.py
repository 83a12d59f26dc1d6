"""The iteration is Razavi et al.'s, its gradient that of finite differences."""

import pytest
import torch

from sacmil.nn.nystrom import pseudo_inverse, pseudo_inverse_of_repeated


def softmaxes(heads: int, m: int) -> torch.Tensor:
    return (3 * torch.randn(heads, m, m, dtype=torch.float64)).softmax(-1)


def as_published(a: torch.Tensor, iterations: int = 6) -> torch.Tensor:
    z = a.mT / (a.abs().sum(-1).max() * a.abs().sum(-2).max())
    one = torch.eye(a.shape[-1], dtype=a.dtype)
    for _ in range(iterations):
        y = a @ z
        z = 0.25 * z @ (13 * one - y @ (15 * one - y @ (7 * one - y)))
    return z


@pytest.mark.parametrize(("heads", "m"), [(1, 1), (2, 5), (8, 33)])
def test_it_is_the_published_iteration_and_so_is_its_gradient(heads: int, m: int) -> None:
    a = softmaxes(heads, m).requires_grad_()
    weights = torch.randn(heads, m, m, dtype=torch.float64)
    found, expected = pseudo_inverse(a), as_published(a)
    torch.testing.assert_close(found, expected)
    (one,) = torch.autograd.grad((found * weights).sum(), a)
    (other,) = torch.autograd.grad((expected * weights).sum(), a)
    torch.testing.assert_close(one, other)


def test_gradients_are_those_of_finite_differences() -> None:
    a = torch.rand(2, 4, 4, dtype=torch.float64, requires_grad=True)  # no two sums alike
    assert torch.autograd.gradcheck(lambda given: pseudo_inverse(given, 3), a)
    assert torch.autograd.gradcheck(lambda given: pseudo_inverse_of_repeated(given, 2, 3), a)


def test_many_iterations_end_at_the_pseudo_inverse() -> None:
    a = softmaxes(3, 12)
    torch.testing.assert_close(pseudo_inverse(a, 40), torch.linalg.pinv(a))


@pytest.mark.parametrize("inside", [True, False], ids=["inside", "outside"])
def test_autocast_takes_no_digits_away(*, inside: bool) -> None:
    a = softmaxes(2, 30).float().requires_grad_()
    exact = pseudo_inverse(a)
    (gradient,) = torch.autograd.grad(exact.square().sum(), a, retain_graph=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = pseudo_inverse(a)
        loss = found.square().sum()
        again = torch.autograd.grad(loss, a) if inside else None
    assert torch.equal(found, exact)
    assert torch.equal((again or torch.autograd.grad(loss, a))[0], gradient)


def test_autocast_gives_back_digits_that_softmax_did_not_take() -> None:
    a = softmaxes(2, 30).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(pseudo_inverse(a), pseudo_inverse(a.float()))


def test_shapes_can_be_found_without_numbers() -> None:
    assert pseudo_inverse(torch.empty(2, 6, 6, device="meta")).shape == (2, 6, 6)


def test_a_compiler_gets_the_same() -> None:
    a = softmaxes(2, 6)
    made = torch.export.export(_Inverse(), (a,)).module()
    torch.testing.assert_close(made(a), pseudo_inverse(a))


class _Inverse(torch.nn.Module):
    def forward(self, a: torch.Tensor) -> torch.Tensor:
        return pseudo_inverse(a)
