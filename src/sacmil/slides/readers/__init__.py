"""Opens slides; each reader is a file here, and a new reader only needs a new file."""

from sacmil.slides.readers._base import Level, Pixels, Slide, list_readers, open_slide

__all__ = ["Level", "Pixels", "Slide", "list_readers", "open_slide"]
