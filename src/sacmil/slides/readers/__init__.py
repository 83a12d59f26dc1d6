"""Opening slides: one file per reader; a new reader is a new file here, nothing else."""

from sacmil.slides.readers._base import Level, Pixels, Slide
from sacmil.slides.readers._registry import list_readers, open_slide

__all__ = ["Level", "Pixels", "Slide", "list_readers", "open_slide"]
