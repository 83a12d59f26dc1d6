"""How a model is trained, as data: each model carries its recipes, training interprets them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from sacmil.errors import ConfigError
from sacmil.settings import Settings


class Lookahead(Settings):
    """Slow weights that follow the fast ones (Zhang et al. 2019)."""

    steps: int = Field(6, ge=1, le=1e6)
    alpha: float = Field(0.5, ge=0, le=1)


class Recipe(Settings):
    """One way of training a model."""

    optimizer: Literal["adam", "adamw", "radam"] = "adam"
    """adam decays weights by an L2 term, the other two decoupled from the gradient."""
    lookahead: Lookahead | None = None
    lr: float = Field(1e-4, ge=0, le=1e6)
    betas: tuple[float, float] = (0.9, 0.999)
    weight_decay: float = Field(0.0, ge=0, le=1e6)
    exempt_vectors: bool = False
    """Whether biases and other one-dimensional parameters are spared the weight decay."""
    layer_decay: float = Field(1.0, ge=0, le=1)
    """Factor on the learning rate for each layer further from the head."""
    schedule: Literal["constant", "cosine", "steps"] = "constant"
    """How the learning rate runs over the epochs."""
    lr_min: float = Field(0.0, ge=0, le=1e6)
    """Where the cosine ends."""
    milestones: tuple[float, ...] = ()
    """Shares of the epochs after which "steps" multiplies the rate by ``gamma``."""
    gamma: float = Field(1.0, ge=0, le=1)
    warmup_epochs: float = Field(0.0, ge=0, le=1e6)
    """Epochs over which the rate rises from zero in a straight line."""
    epochs: int = Field(200, ge=1, le=1e6)
    min_steps: int = Field(0, ge=0, le=1e9)
    """Optimisation steps below which epochs are added: few bags need more of them."""
    patience: int | None = Field(None, ge=1, le=1e9)
    """Epochs without a better one before stopping; None trains to the end."""
    min_epochs: int = Field(0, ge=0, le=1e6)
    """Epochs before which training never stops early."""
    monitor: Literal["last", "val_loss", "val_metric", "val_auc"] = "last"
    """Which epoch's weights are kept: the last, or the best on the inner validation part, of equals
    in the metric that with the lowest loss; with "last" there is no such part, and all of it
    trains. "val_metric" is the task's headline metric, the AUC for classes; "val_auc" means it."""
    monitor_from: float = Field(0.0, ge=0, le=0.99)
    """Share of the epochs before which none is kept."""
    accumulate: int = Field(1, ge=1, le=1e6)
    """Bags per optimisation step."""
    sampler: Literal["shuffle", "balanced"] = "shuffle"
    """balanced draws with replacement so that classes are equally frequent."""
    class_weights: Literal["none", "balanced"] = "none"
    """balanced multiplies the loss of a bag by how rare its class is, one on average."""
    label_smoothing: float = Field(0.0, ge=0, le=1)
    """Share of labels taken as drawn at random, every class alike: answers stay less sure."""
    instance_dropout: float = Field(0.0, ge=0, le=0.99)
    """Share of a bag's instances left out of each step, drawn anew each time."""
    clip: Mapping[str, float] = {}
    """Largest gradient norm of the parameters whose names begin with the key."""
    options: Mapping[str, Any] = {}
    """Constructor options this way of training asks for, such as the official loss."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ConfigError(f"betas={self.betas!r}; expected two numbers from 0 to below 1")
        if self.patience is not None and self.monitor == "last":
            raise ConfigError(
                f"patience={self.patience} needs something to wait for; expected monitor=val_loss "
                "or monitor=val_metric beside it"
            )
        return self

    def adapt_to_bags(self, count: int) -> Recipe:
        """With as many epochs as so many bags need."""
        steps = math.ceil(count / self.accumulate)
        return self.replace(epochs=max(self.epochs, math.ceil(self.min_steps / max(steps, 1))))


PAPER = Recipe()
"""The training of the SAC-MIL paper: Adam, 1e-4, one bag a step, 200 epochs, last weights."""

STANDARD = Recipe(
    optimizer="adamw",
    lr=5e-4,
    weight_decay=1e-2,
    exempt_vectors=True,
    schedule="cosine",
    warmup_epochs=1.0,
    epochs=20,
    min_steps=2000,
)
"""What our studies start from before they tune, with the last weights (docs/results/recipe.md):
every model has it, and it is the default."""

PAPER_BEST_EPOCH = PAPER.replace(monitor="val_auc")
"""The paper's, but the epoch is chosen on the inner validation part."""

LOOKAHEAD_RADAM = Recipe(
    optimizer="radam",
    lookahead=Lookahead(steps=6, alpha=0.5),
    lr=2e-4,
    weight_decay=1e-5,
    exempt_vectors=True,
    patience=10,
    monitor="val_loss",
)
"""What TransMIL's and Norma's official codes share: how long and how many bags a step differs."""
