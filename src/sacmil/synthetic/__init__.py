"""Synthetic cohorts with known truth: bags of features, and slides that look like H&E."""
