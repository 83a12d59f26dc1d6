"""Bags on disk: one module per layout. To add a layout, add a module here."""

from sacmil.formats._registry import find_bags, find_layout, list_formats, read_bag
from sacmil.formats._spacing import check_spacing
from sacmil.formats.native import write as write_bag

__all__ = ["check_spacing", "find_bags", "find_layout", "list_formats", "read_bag", "write_bag"]
