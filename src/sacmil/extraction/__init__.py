"""From a cohort to bags: one slide is a pure function, many are a pipeline that can be resumed."""

from sacmil.extraction.cohort import Resources, extract
from sacmil.extraction.on_ray import extract_on_ray
from sacmil.extraction.record import Row
from sacmil.extraction.settings import Settings
from sacmil.extraction.slide import extract_slide

__all__ = ["Resources", "Row", "Settings", "extract", "extract_on_ray", "extract_slide"]
