"""Predictions on a GPU, captured where a shape repeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sacmil.kernels.cuda_graphs import (
    GraphCache,
    Tensors,
    describe_shapes,
    is_capture_enabled,
    watch_obstacles,
)
from sacmil.models._base import MILModel, Output

ComputeOutput = Callable[[Tensor, Tensor, Mapping[str, Tensor]], Output]
"""Maps features, coordinates and plan to an output."""

_PLAN, _EXTRAS = "plan/", "extras/"
_FIRST_CALLS = 2
"""May wait for the GPU: libraries initialise themselves, kernels are compiled."""


def make_compute_output(model: MILModel, device: torch.device) -> ComputeOutput:
    """Return what computes outputs of a model whose weights do not change."""
    return CapturedModel(model, device) if is_capture_enabled(device) else model


class CapturedModel:
    """Computes the outputs of a model; replays them for bags of a shape that came before."""

    def __init__(self, model: MILModel, device: torch.device) -> None:
        self._model, self._device = model, device
        self._graphs = GraphCache(device)
        self._calls = 0

    def __call__(self, features: Tensor, coords: Tensor, plan: Mapping[str, Tensor]) -> Output:
        """Return the output for a bag."""
        inputs = name_inputs(features, coords, plan)
        key = describe_shapes(inputs)
        self._calls += 1
        is_new = not self._graphs.obstacle and not self._graphs.has_seen(key)
        call = self._compute_and_look if is_new else self._compute
        return _make_output(self._graphs.run(key, call, inputs, is_shared=True))

    def _compute(self, inputs: Tensors) -> dict[str, Tensor]:
        output = self._model(inputs["features"], inputs["coords"], take_plan(inputs))
        extras = _add_prefix(_EXTRAS, output.extras or {})
        parts = {**output._asdict(), "extras": None, **extras}
        return {name: value for name, value in parts.items() if value is not None}

    def _compute_and_look(self, inputs: Tensors) -> dict[str, Tensor]:
        """Compute an output, and look for what cannot be captured."""
        with watch_obstacles(self._device) as found:
            computed = self._compute(inputs)
        if found and self._calls > _FIRST_CALLS:
            self._graphs.stop(found[0])
        return computed


def name_inputs(features: Tensor, coords: Tensor, plan: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return what a model reads by name, features first."""
    return {"features": features, "coords": coords, **_add_prefix(_PLAN, plan)}


def take_plan(tensors: Tensors) -> dict[str, Tensor]:
    """Return the plan among named tensors."""
    return _select_prefix(_PLAN, tensors)


def _add_prefix(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def _select_prefix(prefix: str, tensors: Tensors) -> dict[str, Tensor]:
    named = {name: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
    return {name.removeprefix(prefix): tensor for name, tensor in named.items()}


def _make_output(parts: Tensors) -> Output:
    return Output(
        parts["logits"],
        parts["scores"],
        parts.get("class_scores"),
        _select_prefix(_EXTRAS, parts) or None,
        parts.get("embedding"),
    )
