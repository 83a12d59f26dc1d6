"""Blocks that at least two models share."""
