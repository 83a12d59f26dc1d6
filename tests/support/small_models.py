"""Small models of every kind, and bags for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from sacmil import Bag, create_model

WIDTH = 6
SMALL: dict[str, dict[str, Any]] = {
    "sac_mil": {"dim": 16, "k": 4},
    "transmil": {"dim": 16, "heads": 2, "landmarks": 4},
    "r2t": {"dim": 16, "heads": 2, "crmsa_heads": 2, "epeg_k": 3, "regions": 3},
    "mambamil": {"dim": 16, "state": 4, "depth": 1},
    "mammil": {"dim": 16, "state": 4, "head_dim": 16},
    "dtfd": {"dim": 16},
    "ibmil": {"dim": 16},
    "longnet": {
        "dim": 16,
        "depth": 2,
        "heads": 4,
        "segments": [8, 64, 500],
        "dilations": [1, 3, 4],
    },
    "hipt": {"dim": 12, "depth": 1, "heads": 2, "region": 4},
}


def make_model(name: str, **options: Any) -> Any:
    torch.manual_seed(0)
    options = {"in_dim": WIDTH, "num_classes": 3} | SMALL.get(name, {}) | options
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
