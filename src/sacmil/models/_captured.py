"""Predictions on a GPU, captured where a shape repeats."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sacmil.kernels.cuda_graphs import (
    CapturedCall,
    GraphCache,
    Key,
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
        self.obstacle = ""
        """Why calls are not captured; empty if they can be."""

    def __call__(self, features: Tensor, coords: Tensor, plan: Mapping[str, Tensor]) -> Output:
        """Return the output for a bag."""
        given = {"features": features, "coords": coords}
        given |= {_PLAN + key: value for key, value in plan.items()}
        return _make_output(self._replay_or_call(given))

    def _replay_or_call(self, given: Tensors) -> dict[str, Tensor]:
        key, graph = describe_shapes(given), None
        self._calls += 1
        if not self.obstacle:
            graph = self._graphs.get(key)
            if graph is None and self._graphs.should_capture(key):
                graph = self._capture(key, given)
            elif graph is None:
                return self._call_and_look(given)
        return self._compute(given) if graph is None else graph.replay(given)

    def _capture(self, key: Key, given: Tensors) -> CapturedCall | None:
        try:
            return self._graphs.capture(key, self._compute, given, is_shared=True)
        except RuntimeError as error:
            self.obstacle = str(error).splitlines()[0]
            return None

    def _call_and_look(self, given: Tensors) -> dict[str, Tensor]:
        """Compute an output, and look for what cannot be captured."""
        with watch_obstacles(self._device) as found:
            computed = self._compute(given)
        if found and self._calls > _FIRST_CALLS:
            self.obstacle = found[0]
        return computed

    def _compute(self, given: Tensors) -> dict[str, Tensor]:
        plan = {
            name.removeprefix(_PLAN): tensor
            for name, tensor in given.items()
            if name.startswith(_PLAN)
        }
        output = self._model(given["features"], given["coords"], plan)
        extras = {_EXTRAS + name: value for name, value in (output.extras or {}).items()}
        parts = {**output._asdict(), "extras": None, **extras}
        return {name: value for name, value in parts.items() if value is not None}


def _make_output(parts: Tensors) -> Output:
    extras = {
        name.removeprefix(_EXTRAS): value
        for name, value in parts.items()
        if name.startswith(_EXTRAS)
    }
    return Output(
        parts["logits"],
        parts["scores"],
        parts.get("class_scores"),
        extras or None,
        parts.get("embedding"),
    )
