"""GigaPath's layout: bare features of 1536 numbers, coordinates in pixels of the tile.

``features`` (N, 1536) and ``coords`` (N, 2), upper left corners of tiles of 256 pixels at 0.5 µm
per pixel, at any resolution of the slide. With the slide's ``mpp`` (or ``patch_size``) they are
converted to level-0 pixels; otherwise the slide is taken as scanned at 0.5. CLAM writes the same
names in level-0 pixels, so outside CLAM's folders the layout must be given.
"""

from __future__ import annotations

from pathlib import Path

from sacmil.bag import Bag
from sacmil.formats import clam
from sacmil.formats._files import open_file, read_dataset, read_header
from sacmil.formats._hints import Hints, convert_to_level0
from sacmil.units import TilePx

_FEATURE_DIM, _TILE_PX, _MPP = 1536, 256, 0.5


def matches(path: Path) -> bool:
    """Whether a bare file has GigaPath's feature width and no sign of CLAM."""
    shapes = read_header(path).shapes
    is_wide = "coords" in shapes and shapes.get("features", ())[-1:] == (_FEATURE_DIM,)
    if not is_wide or path.parent.name == "h5_files" or not clam.matches(path):
        return False
    return clam.find_patches_file(path, Hints()) is None


def read(path: Path, hints: Hints) -> Bag:
    """Read features and coordinates, in level-0 pixels if the slide's mpp is known."""
    hints.reject_coords(path)
    with open_file(path) as file:
        features, coords = (read_dataset(file, path, name) for name in ("features", "coords"))
    scale = convert_to_level0(path, coords, _MPP, _TILE_PX * _MPP, hints, _MPP)
    return Bag(path.stem, features, *scale, tile_px=TilePx(_TILE_PX))
