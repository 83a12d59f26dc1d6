"""Whole ways through the package; the only place that joins extraction and models."""
