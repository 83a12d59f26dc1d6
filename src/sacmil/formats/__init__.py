"""Bags on disk: one file per layout; a new layout is a new file here, nothing else."""

from sacmil.formats._registry import list_formats, read_bag
from sacmil.formats.native import write as write_bag

__all__ = ["list_formats", "read_bag", "write_bag"]
