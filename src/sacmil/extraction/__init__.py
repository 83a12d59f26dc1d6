"""Extraction of bags: one slide by a pure function, a cohort by a pipeline that can resume."""

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
