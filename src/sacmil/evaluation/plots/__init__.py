"""Pictures of predictions: ROC, calibration, confusion and ranks; each function returns a Figure.

Only the test part is drawn, a point of evidence being a patient wherever it can be.
Figures are made without pyplot, so that no window, style or open figure of a caller is touched.
Colours are those of Okabe and Ito, which colour-blind readers can tell apart; every line has a
dash pattern of its own too, for printers.
"""

from sacmil.evaluation.plots._calibration import Reliability, draw_calibration, reliability
from sacmil.evaluation.plots._confusion import confusion, draw_confusion
from sacmil.evaluation.plots._files import check_can_draw, drawn, save_figure
from sacmil.evaluation.plots._look import MOST
from sacmil.evaluation.plots._ranks import draw_ranks, indistinct
from sacmil.evaluation.plots._roc import GRID, draw_roc, fold_curves, sensitivity

__all__ = [
    "GRID",
    "MOST",
    "Reliability",
    "check_can_draw",
    "confusion",
    "draw_calibration",
    "draw_confusion",
    "draw_ranks",
    "draw_roc",
    "drawn",
    "fold_curves",
    "indistinct",
    "reliability",
    "save_figure",
    "sensitivity",
]
