"""Optimizers of a recipe: update rules, weight decay, Lookahead, the learning-rate schedule."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Adam, AdamW, Optimizer, RAdam

from sacmil.models import Recipe
from sacmil.models._recipe import Lookahead


def make_optimizer(parameters: Mapping[str, nn.Parameter], recipe: Recipe) -> Optimizer:
    """Return the recipe's optimizer for some named parameters."""
    rule = _OPTIMIZERS[recipe.optimizer]
    groups = _make_parameter_groups(parameters, recipe)
    on_gpu = all(parameter.is_cuda for parameter in parameters.values())
    # Fused: one kernel for all parameters; torch has none for RAdam.
    fused = {"fused": True} if on_gpu and recipe.optimizer != "radam" else {}
    return rule(groups, lr=recipe.lr, betas=recipe.betas, **fused)


_OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "adam": Adam,
    "adamw": AdamW,
    "radam": partial(RAdam, decoupled_weight_decay=True),
}


def _make_parameter_groups(
    parameters: Mapping[str, nn.Parameter], recipe: Recipe
) -> list[dict[str, Any]]:
    """Group parameters by weight decay and learning rate."""
    depths = _find_layer_depths(parameters)
    deepest = max(depths.values(), default=0)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in parameters.items():
        exempt = recipe.exempt_vectors and (parameter.ndim <= 1 or name.endswith(".bias"))
        scale = recipe.layer_decay ** (deepest - depths[name])
        key = (0.0 if exempt else recipe.weight_decay, scale)
        groups.setdefault(key, []).append(parameter)
    return [
        {"params": members, "weight_decay": decay, "lr": recipe.lr * scale, "scale": scale}
        for (decay, scale), members in groups.items()
    ]


def _find_layer_depths(names: Iterable[str]) -> dict[str, int]:
    """Number layers and blocks from 1; parameters before them get 0, those after them the last."""
    found = {name: re.search(r"(?:layers|blocks)\.(\d+)\.", name) for name in names}
    last = max((int(match.group(1)) + 1 for match in found.values() if match), default=-1)
    depths, around = {}, 0
    for name, match in found.items():
        around = last + 1 if match else around
        depths[name] = int(match.group(1)) + 1 if match else around
    return depths


class SlowWeights:
    """Lookahead (Zhang et al. 2019): every few steps, slow weights move towards the fast ones."""

    def __init__(self, parameters: list[nn.Parameter], lookahead: Lookahead) -> None:
        self.parameters = parameters
        self.lookahead = lookahead
        self.steps = 0
        self.slow: list[Tensor] | None = None

    def state_dict(self) -> dict[str, Tensor]:
        """Return the step count and the slow weights."""
        slow = {str(index): value for index, value in enumerate(self.slow or ())}
        return {"steps": torch.tensor(self.steps), **slow}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what ``state_dict`` returned."""
        self.steps = int(state["steps"])
        if len(state) > 1:
            pairs = enumerate(self.parameters)
            self.slow = [state[str(index)].to(own, copy=True) for index, own in pairs]

    @torch.no_grad()
    def step(self) -> None:
        """Update the weights; call after each optimizer step."""
        self.steps += 1
        if self.steps % self.lookahead.steps:
            return
        if self.slow is None:  # the first time only copies, as in the peers' code
            self.slow = [parameter.detach().clone() for parameter in self.parameters]
        for slow, fast in zip(self.slow, self.parameters, strict=True):
            slow.lerp_(fast, self.lookahead.alpha)
            fast.copy_(slow)


def make_lr_schedule(recipe: Recipe) -> Callable[[float], float]:
    """Return the recipe's learning rate as a function of the epochs done, with fractions."""

    def at(epoch: float) -> float:
        if epoch < recipe.warmup_epochs:
            return recipe.lr * epoch / recipe.warmup_epochs
        if recipe.schedule == "cosine":
            share = (epoch - recipe.warmup_epochs) / max(recipe.epochs - recipe.warmup_epochs, 1)
            falling = (1 + math.cos(math.pi * min(share, 1.0))) / 2
            return recipe.lr_min + (recipe.lr - recipe.lr_min) * falling
        if recipe.schedule == "steps":
            passed = sum(epoch >= share * recipe.epochs for share in recipe.milestones)
            return float(recipe.lr * recipe.gamma**passed)
        return recipe.lr

    return at


def set_learning_rate(optimizer: Optimizer, rate: float) -> None:
    """Set the rate of every group, scaled by its layer decay."""
    for group in optimizer.param_groups:
        if isinstance(group["lr"], Tensor):  # of a captured CUDA graph
            group["lr"].fill_(rate * group["scale"])
        else:
            group["lr"] = rate * group["scale"]


def collect_optimizer_state(optimizers: Mapping[str, Optimizer]) -> dict[str, Tensor]:
    """Return the state of optimizers by group, parameter index and name."""
    return {
        f"{group}/{index}/{name}": value
        for group, optimizer in optimizers.items()
        for index, values in optimizer.state_dict()["state"].items()
        for name, value in values.items()
    }


def restore_optimizers(optimizers: Mapping[str, Optimizer], state: dict[str, Tensor]) -> None:
    """Load what ``collect_optimizer_state`` returned into new optimizers."""
    for group, optimizer in optimizers.items():
        values: dict[int, dict[str, Tensor]] = {}
        for key, value in state.items():
            name_of_group, index, name = key.rsplit("/", 2)
            if name_of_group == group:
                values.setdefault(int(index), {})[name] = value
        fresh = optimizer.state_dict()
        optimizer.load_state_dict({**fresh, "state": values})
