"""Plans for a compiled model. Imported while compiling only: it loads torch's compiler."""

from __future__ import annotations

import torch
from torch import Tensor

from sacmil.models._base import MILModel, to_numpy


@torch.compiler.disable(  # type: ignore[no-untyped-call, untyped-decorator]
    reason="plans are made in numpy, outside the graph. With fullgraph=True call "
    "model(features, coords, plan) with plan = model.plan(coords.numpy(), features.numpy())"
)
def plan_outside_graph(model: MILModel, features: Tensor, coords: Tensor) -> dict[str, Tensor]:
    """The plan of a bag, as tensors: these a graph takes for bags of any length."""
    plan = model.plan(to_numpy(coords), to_numpy(features))
    return {key: torch.as_tensor(value, device=features.device) for key, value in plan.items()}
