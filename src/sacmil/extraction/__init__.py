"""Extraction of bags: one slide by a pure function, a cohort by a pipeline that can resume."""

from sacmil.extraction.extract import extract
from sacmil.extraction.extract_slides import extract_on_ray, extract_slide, extract_slides
from sacmil.extraction.pipeline import ExtractionResources
from sacmil.extraction.slide_request import ExtractionSettings
from sacmil.extraction.table import ExtractionRow, ExtractionSummary

__all__ = [
    "ExtractionResources",
    "ExtractionRow",
    "ExtractionSettings",
    "ExtractionSummary",
    "extract",
    "extract_on_ray",
    "extract_slide",
    "extract_slides",
]
