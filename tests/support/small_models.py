"""Small models of every kind, and bags for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sacmil import Bag, create_model
from sacmil.models._registry import get_model_class

WIDTH = 6


def make_model(name: str, **options: Any) -> Any:
    """A model of the sizes its class calls small; every layer does something."""
    torch.manual_seed(0)
    small = get_model_class(name).small_options
    options = {"in_dim": WIDTH, "num_classes": 3} | small | options
    return as_if_trained(create_model(name, **options)).eval()


def as_if_trained(model: Any) -> Any:
    """With something in the layers that begin as nothing."""
    for parameter in model.parameters():
        if parameter.ndim > 1 and not parameter.any():
            torch.nn.init.normal_(parameter, std=0.1)
    return model


def make_bag(n: int, *, width: int = WIDTH, seed: int = 0) -> Bag:
    draw = np.random.default_rng(seed)
    side = int(np.ceil(np.sqrt(n))) + 1
    cells = draw.permutation(side * side)[:n]
    coords = np.stack([cells % side, cells // side], axis=1) * 256
    return Bag(f"slide-{n}", draw.standard_normal((n, width)).astype(np.float32), coords, 256)
