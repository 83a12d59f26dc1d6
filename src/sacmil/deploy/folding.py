"""Folds layer norms of an exported model into the linear layers that follow."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from sacmil.models._base import MILModel
from sacmil.models.sac_mil import SACBlock


@torch.no_grad()
def fold_norms(model: MILModel) -> MILModel:
    """Return a copy with the same predictions and fewer operations.

    Shifting folds of channels does not change the scale of a channel, so the weight and bias of a
    SAC block's norm can move into the layer after it.
    """
    model = deepcopy(model)
    for block in model.modules():
        if isinstance(block, SACBlock) and isinstance(block.decay, nn.Identity):
            _fold_norm(block.norm, _find_first_linear(block.w1))
    return model


def _fold_norm(norm: nn.LayerNorm, layer: nn.Linear) -> None:
    """Move the parameters of the norm into the layer; layer(norm(x)) stays the same."""
    layer.bias.add_(layer.weight @ norm.bias)
    layer.weight.mul_(norm.weight)
    norm.register_parameter("weight", None)
    norm.register_parameter("bias", None)


def _find_first_linear(module: nn.Module) -> nn.Linear:
    return next(layer for layer in module.modules() if isinstance(layer, nn.Linear))
