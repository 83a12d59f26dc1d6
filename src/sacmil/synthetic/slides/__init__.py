"""Synthetic slides that look like H&E, with exact outlines of the tumour."""

from sacmil.synthetic.slides.cohort import SyntheticSlide as SyntheticSlide
from sacmil.synthetic.slides.cohort import make_cohort as make_cohort
from sacmil.synthetic.slides.cohort import make_slide_cohort as make_slide_cohort
from sacmil.synthetic.slides.cohort import write_slide as write_slide
from sacmil.synthetic.slides.layout import CLASSES as CLASSES
from sacmil.synthetic.slides.layout import LayoutSettings as LayoutSettings
from sacmil.synthetic.slides.layout import SlideLayout as SlideLayout
from sacmil.synthetic.slides.layout import make_layout as make_layout
from sacmil.synthetic.slides.painter import draw_slide as draw_slide
