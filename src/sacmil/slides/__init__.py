"""Slides and their tiles: readers, resolution, tissue, tiling; needs numpy but not torch."""
