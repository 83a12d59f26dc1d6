"""Slides drawn on the spot that look like H&E, with outlines that are known to be true."""

from sacmil.cohorts.drawn.cohort import DrawnSlide, drawn_cohort, table_of, write_slide
from sacmil.cohorts.drawn.layout import CLASSES, Amounts, Layout, make_layout
from sacmil.cohorts.drawn.picture import draw

__all__ = [
    "CLASSES",
    "Amounts",
    "DrawnSlide",
    "Layout",
    "draw",
    "drawn_cohort",
    "make_layout",
    "table_of",
    "write_slide",
]
