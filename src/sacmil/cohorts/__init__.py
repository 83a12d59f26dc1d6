"""Synthetic slides and cohorts."""
