"""Synthetic slides that look like H&E, with exact outlines of the tumour."""

from sacmil.synthetic.slides.cohort import (
    SyntheticSlide,
    make_cohort,
    make_slide_cohort,
    write_slide,
)
from sacmil.synthetic.slides.layout import CLASSES, LayoutSettings, SlideLayout, make_layout
from sacmil.synthetic.slides.painter import draw_slide

__all__ = [
    "CLASSES",
    "LayoutSettings",
    "SlideLayout",
    "SyntheticSlide",
    "draw_slide",
    "make_cohort",
    "make_layout",
    "make_slide_cohort",
    "write_slide",
]
