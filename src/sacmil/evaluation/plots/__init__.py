"""Plots of predictions: ROC, calibration, confusion and ranks; each function returns a Figure.

Only test sets are plotted, with the patient as the unit where possible.
Figures are made without pyplot, so a caller's windows, styles and open figures are untouched.
Colours are those of Okabe and Ito, which colour-blind readers can distinguish. Every line also has
its own dash pattern, for printers.
"""

from sacmil.evaluation.plots._calibration import (
    ReliabilityCurve,
    draw_calibration,
    reliability_curve,
)
from sacmil.evaluation.plots._confusion import count_confusions, draw_confusion
from sacmil.evaluation.plots._files import check_matplotlib, render_figure, save_figure
from sacmil.evaluation.plots._ranks import draw_ranks, find_indistinct_groups
from sacmil.evaluation.plots._roc import ROC_GRID, compute_fold_curves, draw_roc, interpolate_roc
from sacmil.evaluation.plots._style import MAX_MODELS

__all__ = [
    "MAX_MODELS",
    "ROC_GRID",
    "ReliabilityCurve",
    "check_matplotlib",
    "compute_fold_curves",
    "count_confusions",
    "draw_calibration",
    "draw_confusion",
    "draw_ranks",
    "draw_roc",
    "find_indistinct_groups",
    "interpolate_roc",
    "reliability_curve",
    "render_figure",
    "save_figure",
]
