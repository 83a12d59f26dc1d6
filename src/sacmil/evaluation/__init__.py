"""Metrics, comparisons and reports of predictions, without torch."""
