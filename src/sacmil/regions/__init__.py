"""Arranging a bag: neighbouring instances become regions of k in one sequence."""

from sacmil.regions.arrangement import CENTERS, ORDERS, arrange

__all__ = ["CENTERS", "ORDERS", "arrange"]
