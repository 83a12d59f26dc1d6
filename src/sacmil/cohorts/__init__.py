"""Labelled collections of slides: tables, folds, where bags are, datasets, synthetic ones."""
