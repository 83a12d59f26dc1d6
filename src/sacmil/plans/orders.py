"""Orders of instances for models that split a bag into pseudo-bags (DTFD-MIL, IBMIL)."""

from __future__ import annotations

import numpy as np

from sacmil.plans._registry import Array, Plan


def make(coords: Array, features: Array | None = None, *, shuffles: int) -> Plan:
    """Return orders (S, N): fixed shuffles to average over, or for 0 the order of the bag."""
    n = len(coords)
    if not shuffles:
        return {"orders": np.arange(n)[None]}
    seeds = range(shuffles)
    return {"orders": np.stack([np.random.default_rng(s).permutation(n) for s in seeds])}
