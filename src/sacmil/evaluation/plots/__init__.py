"""Pictures of predictions: ROC, calibration, confusion and ranks; each function returns a Figure.

Only the test part is drawn, a point of evidence being a patient wherever it can be.
Figures are made without pyplot, so that no window, style or open figure of a caller is touched.
Colours are those of Okabe and Ito, which colour-blind readers can tell apart; every line has a
dash pattern of its own too, for printers.
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
