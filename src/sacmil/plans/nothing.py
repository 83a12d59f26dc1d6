"""No plan: for models that need to know nothing beforehand."""

from __future__ import annotations

from sacmil.plans._registry import Array, Plan


def make(coords: Array, features: Array | None = None) -> Plan:
    """An empty plan."""
    return {}
