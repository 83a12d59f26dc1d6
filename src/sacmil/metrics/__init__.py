"""Formulas of metrics in numpy, one file per kind of target."""
