"""The orders in which a model that cuts a bag into pieces takes its instances (DTFD-MIL, IBMIL)."""

from __future__ import annotations

import numpy as np

from sacmil.plans._registry import Array, Plan


def make(coords: Array, features: Array | None = None, *, shuffles: int) -> Plan:
    """orders (S, N): fixed shuffles to average over; with 0 of them the bag's own order."""
    n = len(coords)
    if not shuffles:
        return {"orders": np.arange(n)[None]}
    seeds = range(shuffles)
    return {"orders": np.stack([np.random.default_rng(s).permutation(n) for s in seeds])}
