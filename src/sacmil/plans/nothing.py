"""The empty plan, for models that need none."""

from __future__ import annotations

from sacmil.plans._registry import Array, Plan


def make(coords: Array, features: Array | None = None) -> Plan:
    """Return an empty plan."""
    return {}
