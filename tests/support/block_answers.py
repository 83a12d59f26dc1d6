"""What a block answers, with every gradient, and how far that is from the truth."""

from __future__ import annotations

from torch import Tensor

from sacmil.models.sac_mil import SACBlock


def answers(block: SACBlock, x: Tensor, grad: Tensor) -> list[Tensor]:
    """The output and every gradient."""
    x = x.clone().requires_grad_()
    block.zero_grad()
    out = block(x)
    out.backward(grad)
    found = [x.grad, *(parameter.grad for parameter in block.parameters())]
    return [out.detach(), *(each.clone() for each in found if each is not None)]


def relative(found: Tensor, exact: Tensor) -> float:
    """The norm of the difference over that of the truth."""
    return float((found.double() - exact).norm() / exact.norm())
