"""Blocks that at least two models share."""

from sacmil.nn._reference import load_reference_block

__all__ = ["load_reference_block"]
