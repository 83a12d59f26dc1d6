"""Metrics of survival: times until an event, or until a patient was censored.

Times are numbers of 0 or more in any unit. An event is 1 if it happened at that time and 0 if the
patient was censored then. A higher risk means an earlier event. Functions ``weighted_…`` compute a
metric of many resamples at once: weights (B, n) are how often each patient is in each resample.
"""

from sacmil.metrics.survival_auc import cumulative_auc, weighted_cumulative_auc
from sacmil.metrics.survival_brier import (
    brier,
    integrated_brier,
    reference_integrated_brier,
    weighted_brier,
    weighted_integrated_brier,
)
from sacmil.metrics.survival_concordance import (
    WithinFoldC,
    default_tau,
    harrell_c,
    uno_c,
    weighted_harrell,
    weighted_harrell_terms,
    weighted_pairs,
    weighted_uno,
    weighted_uno_terms,
    within_fold_c,
)
from sacmil.metrics.survival_curves import (
    CalibrationGroups,
    CensoringCurve,
    KaplanMeier,
    MedianSurvival,
    baseline_hazard,
    calibrate_at,
    censoring_curve,
    count_at_risk,
    curve_in_bins,
    greenwood,
    kaplan_meier,
    median_survival,
    restricted_mean,
)
from sacmil.metrics.survival_groups import HazardRatio, LogRank, hazard_ratio, log_rank

__all__ = [
    "CalibrationGroups",
    "CensoringCurve",
    "HazardRatio",
    "KaplanMeier",
    "LogRank",
    "MedianSurvival",
    "WithinFoldC",
    "baseline_hazard",
    "brier",
    "calibrate_at",
    "censoring_curve",
    "count_at_risk",
    "cumulative_auc",
    "curve_in_bins",
    "default_tau",
    "greenwood",
    "harrell_c",
    "hazard_ratio",
    "integrated_brier",
    "kaplan_meier",
    "log_rank",
    "median_survival",
    "reference_integrated_brier",
    "restricted_mean",
    "uno_c",
    "weighted_brier",
    "weighted_cumulative_auc",
    "weighted_harrell",
    "weighted_harrell_terms",
    "weighted_integrated_brier",
    "weighted_pairs",
    "weighted_uno",
    "weighted_uno_terms",
    "within_fold_c",
]
