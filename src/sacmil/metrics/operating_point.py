"""Metrics of a decision between two, over one test set or many resamples at once.

Every function takes the truth (n,) of 1, 0 and NaN where it is unknown, decisions (n,) of 1 and 0,
and weights (B, n), the number of times each row is in each resample. It returns (B,), NaN where a
resample has no row to measure it on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
DecisionMetric = Callable[[Floats, Floats, Floats], Floats]


def weighted_sensitivity(truth: Floats, decisions: Floats, weights: Floats) -> Floats:
    """Share of the positives that are found."""
    return _weighted_share(decisions == 1, truth == 1, weights)


def weighted_specificity(truth: Floats, decisions: Floats, weights: Floats) -> Floats:
    """Share of the negatives that are recognised."""
    return _weighted_share(decisions == 0, truth == 0, weights)


def weighted_ppv(truth: Floats, decisions: Floats, weights: Floats) -> Floats:
    """Positive predictive value: share of those predicted positive that are."""
    return _weighted_share(truth == 1, (decisions == 1) & ~np.isnan(truth), weights)


def weighted_npv(truth: Floats, decisions: Floats, weights: Floats) -> Floats:
    """Negative predictive value: share of those predicted negative that are."""
    return _weighted_share(truth == 0, (decisions == 0) & ~np.isnan(truth), weights)


def _weighted_share(
    hits: npt.NDArray[np.bool_], rows: npt.NDArray[np.bool_], weights: Floats
) -> Floats:
    count = weights @ rows.astype(np.float64)
    found = weights @ (hits & rows).astype(np.float64)
    return np.asarray(found / np.where(count > 0, count, np.nan))


DECISION_METRICS: Mapping[str, tuple[str, DecisionMetric]] = {
    "sensitivity": ("Sensitivity", weighted_sensitivity),
    "specificity": ("Specificity", weighted_specificity),
    "ppv": ("PPV", weighted_ppv),
    "npv": ("NPV", weighted_npv),
}
"""Titles and formulas, in the order of columns in tables."""
