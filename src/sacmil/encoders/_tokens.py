"""Pools a transformer's tokens for models that use more than the class token."""

from __future__ import annotations

import torch
from torch import nn


def append_patch_mean(network: nn.Module, *, skip: int) -> None:
    """Make a network return the class token and the mean of the patch tokens.

    A hook instead of a wrapper, so that the parameters keep their official names.

    Args:
        network: returns (B, T, D) before and (B, 2 D) after.
        skip: number of tokens before the first patch: the class token and the registers.
    """

    def pool(_: nn.Module, __: tuple[torch.Tensor, ...], tokens: torch.Tensor) -> torch.Tensor:
        return torch.cat([tokens[:, 0], tokens[:, skip:].mean(dim=1)], dim=1)

    network.register_forward_hook(pool)
