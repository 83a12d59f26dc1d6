"""What a model need not do for every instance, done once to its parameters."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from sacmil.models._base import MILModel
from sacmil.models.sac_mil import SACBlock


@torch.no_grad()
def fold_norms(model: MILModel) -> MILModel:
    """The same answers with fewer passes; the model itself is left as it is.

    Moving folds of channels does not touch what each channel is scaled by, so a SAC block's norm
    can leave its weight and bias to the layer after it.
    """
    model = deepcopy(model)
    for block in model.modules():
        if isinstance(block, SACBlock) and isinstance(block.decay, nn.Identity):
            _fold_norm(block.norm, _find_first_linear(block.w1))
    return model


def _fold_norm(norm: nn.LayerNorm, layer: nn.Linear) -> None:
    """layer(norm(x)), with a norm that has no parameters."""
    layer.bias.add_(layer.weight @ norm.bias)
    layer.weight.mul_(norm.weight)
    norm.register_parameter("weight", None)
    norm.register_parameter("bias", None)


def _find_first_linear(module: nn.Module) -> nn.Linear:
    return next(layer for layer in module.modules() if isinstance(layer, nn.Linear))
