"""Plans for a compiled model. Imported while compiling only: it loads torch's compiler."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor


@torch.compiler.disable(  # type: ignore[no-untyped-call, untyped-decorator]
    reason="plans are made in numpy, outside the graph. With fullgraph=True call "
    "model(features, coords, plan) with plan = model.plan(coords.numpy(), features.numpy())"
)
def plan_outside_graph(
    make_plan: Callable[[Tensor, Tensor], Mapping[str, Any]], features: Tensor, coords: Tensor
) -> dict[str, Tensor]:
    """Return the plan of a bag as tensors, which a graph takes for bags of any length."""
    plan = make_plan(features, coords)
    return {key: torch.as_tensor(value, device=features.device) for key, value in plan.items()}
