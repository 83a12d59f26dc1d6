"""Synthetic cohorts whose truth is known: bags of features, and slides that look like H&E."""
