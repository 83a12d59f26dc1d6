"""Cohorts, that is labelled slides: tables, folds, the bags of slides, public datasets."""
