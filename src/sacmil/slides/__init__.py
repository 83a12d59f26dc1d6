"""From a file to tiles: readers, resolution, tissue, tiling. Numpy only, no torch."""
