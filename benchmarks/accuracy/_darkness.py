"""A baseline that learns nothing: the darker a patch, the more it counts."""

from __future__ import annotations

import torch
from torch import Tensor

from sacmil.models import MILModel
from sacmil.models._base import Output

DARKNESS = "darkness"
"""Its name in jobs; it is not a model of the zoo."""


class Darkness(MILModel):
    """Scores are minus the mean of a patch's colours, the answer is their mean over the bag."""

    name = DARKNESS

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """features (N, 3)."""
        scores = -features.float().mean(1)
        darkness = scores.mean()
        return Output(torch.stack([-darkness, darkness]), scores)
