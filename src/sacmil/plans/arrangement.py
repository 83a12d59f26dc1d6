"""The order that puts instances into regions of neighbours (SAC-MIL, Sec. III-B)."""

from __future__ import annotations

from sacmil.plans._registry import Array, Plan
from sacmil.regions import arrange


def make(coords: Array, features: Array | None = None, *, k: int, centres: str, order: str) -> Plan:
    """order (N,); options as those of ``arrange``."""
    return {"order": arrange(coords, k, centres, order)}
