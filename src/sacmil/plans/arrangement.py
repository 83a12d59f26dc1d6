"""The order that puts instances into regions of neighbours (SAC-MIL, Sec. III-B)."""

from __future__ import annotations

from sacmil.plans._registry import Array, Plan
from sacmil.regions import arrange


def make(
    coords: Array,
    features: Array | None = None,
    *,
    k: int,
    order: str,
    centers: str = "",
    centres: str = "",
) -> Plan:
    """order (N,); options as those of ``arrange``.

    Exports of earlier versions call centers ``centres``.
    """
    return {"order": arrange(coords, k, centers or centres, order)}
