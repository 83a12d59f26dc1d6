"""Turns a transformer's tokens into one vector where its authors take more than the class token."""

from __future__ import annotations

import torch
from torch import nn


def append_patch_mean(network: nn.Module, *, skip: int) -> None:
    """Let a network that puts out tokens put out the class token and the mean of the patches.

    A hook rather than a wrapper, so that the parameters keep their official names.

    Args:
        network: puts out (B, T, D); then (B, 2 D).
        skip: tokens before the first patch: the class token and the registers.
    """

    def pool(_: nn.Module, __: tuple[torch.Tensor, ...], tokens: torch.Tensor) -> torch.Tensor:
        return torch.cat([tokens[:, 0], tokens[:, skip:].mean(dim=1)], dim=1)

    network.register_forward_hook(pool)
