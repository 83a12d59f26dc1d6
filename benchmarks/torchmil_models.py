"""torchmil's models with the layers of ours, where torchmil is installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

AVAILABLE = find_spec("torchmil") is not None


def _projection(in_dim: int) -> nn.Module:
    return nn.Sequential(nn.Linear(in_dim, 512), nn.ReLU())


def _make(name: str, *, project: bool = True, **settings: Any) -> Callable[[int], nn.Module]:
    def make(in_dim: int) -> nn.Module:
        import torchmil.models

        extra = {"feat_ext": _projection(in_dim)} if project else {}
        model: nn.Module = getattr(torchmil.models, name)((in_dim,), **extra, **settings)
        return model

    return make


PAIRS: dict[str, tuple[Callable[[int], nn.Module], dict[str, Any]]] = {
    "abmil": (_make("ABMIL", att_dim=128), {"dropout": 0.0}),
    "abmil_gated": (_make("ABMIL", att_dim=128, gated=True), {"dropout": 0.0}),
    "dsmil": (_make("DSMIL", project=False, att_dim=128, nonlinear_q=True), {}),
    "clam_sb": (_make("CLAM_SB", att_dim=256, gated=True, k_sample=8), {"dropout": 0.0}),
    "dtfd": (
        _make("DTFDMIL", att_dim=128, n_groups=4, distill_mode="maxmin"),
        {"distill": "MaxMinS", "groups": 4},
    ),
}
"""Our name: how to make theirs, and our options that make the two alike."""


def forward(model: nn.Module, features: Tensor) -> object:
    """One bag; the mask of all ones is for DTFDMIL, which fails without one."""
    return model(features, mask=torch.ones(features.shape[:2], dtype=torch.bool))


def loss(model: nn.Module, features: Tensor, target: Tensor) -> Tensor:
    """The sum of what torchmil's training would minimise."""
    mask = torch.ones(features.shape[:2], dtype=torch.bool)
    losses: dict[str, Tensor] = model.compute_loss(target, features, mask=mask)[-1]
    return torch.stack([value.mean() for value in losses.values()]).sum()
