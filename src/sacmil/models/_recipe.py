"""How a model is trained, as data: each model carries its recipes, training interprets them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, NamedTuple


class Lookahead(NamedTuple):
    """Slow weights that follow the fast ones (Zhang et al. 2019)."""

    steps: int = 6
    alpha: float = 0.5


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """One way of training a model."""

    optimiser: Literal["adam", "adamw", "radam"] = "adam"
    """adam decays weights by an L2 term, the other two decoupled from the gradient."""
    lookahead: Lookahead | None = None
    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = 0.0
    exempt_vectors: bool = False
    """Whether biases and other one-dimensional parameters are spared the weight decay."""
    layer_decay: float = 1.0
    """Factor on the learning rate for each layer further from the head."""
    schedule: Literal["constant", "cosine", "steps"] = "constant"
    """How the learning rate runs over the epochs."""
    lr_min: float = 0.0
    """Where the cosine ends."""
    milestones: tuple[float, ...] = ()
    """Shares of the epochs after which "steps" multiplies the rate by ``gamma``."""
    gamma: float = 1.0
    warmup_epochs: float = 0.0
    """Epochs over which the rate rises from zero in a straight line."""
    epochs: int = 200
    patience: int | None = None
    """Epochs without improvement of the monitor before stopping; None trains to the end."""
    min_epochs: int = 0
    """Epochs before which training never stops early."""
    monitor: Literal["last", "val_loss", "val_auc"] = "last"
    """Which epoch's weights are kept: the last, or the best on the inner validation part."""
    accumulate: int = 1
    """Bags per optimisation step."""
    sampler: Literal["shuffle", "balanced"] = "shuffle"
    """balanced draws with replacement so that classes are equally frequent."""
    clip: Mapping[str, float] = field(default_factory=lambda: MappingProxyType({}))
    """Largest gradient norm of the parameters whose names begin with the key."""
    options: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    """Constructor options this way of training asks for, such as the official loss."""


PAPER = Recipe()
"""The training of the SAC-MIL paper: Adam, 1e-4, one bag a step, 200 epochs, last weights."""
