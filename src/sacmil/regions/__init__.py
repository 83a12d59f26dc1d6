"""Arranging a bag: neighbouring instances become regions of k in one sequence."""

from sacmil.regions.arrangement import CENTRES, ORDERS, arrange

__all__ = ["CENTRES", "ORDERS", "arrange"]
