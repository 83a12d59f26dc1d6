"""The rule by which the sequence goldens drew their parameters and inputs."""

from __future__ import annotations

import numpy as np

RULES = ("input", "norm", "vector", "log", "matrix")


def drawn(shape: tuple[int, ...], rule: str, index: int) -> np.ndarray:
    """The parameter that stands ``index``-th in its model, or the input, as the goldens drew it."""
    if rule == "input":
        return np.random.RandomState(7).standard_normal(shape).astype(np.float32)
    u = np.random.RandomState(1234 + index).uniform(-1, 1, int(np.prod(shape))).reshape(shape)
    fan_in = max(1, int(np.prod(shape[1:])))
    scale = {"norm": 0.1, "vector": 0.1, "log": 0.5, "matrix": np.sqrt(3 / fan_in)}
    return ((rule == "norm") + scale[rule] * u).astype(np.float32)
