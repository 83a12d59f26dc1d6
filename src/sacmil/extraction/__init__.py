"""From a cohort to bags: one slide is a pure function, many are a pipeline that can be resumed."""

from sacmil.extraction.extract import ExtractionResources, extract
from sacmil.extraction.on_ray import extract_on_ray
from sacmil.extraction.settings import ExtractionSettings
from sacmil.extraction.slide import extract_slide
from sacmil.extraction.table import ExtractionRow

__all__ = [
    "ExtractionResources",
    "ExtractionRow",
    "ExtractionSettings",
    "extract",
    "extract_on_ray",
    "extract_slide",
]
