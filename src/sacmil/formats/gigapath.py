"""GigaPath's layout: bare features of 1536 numbers, coordinates in pixels of the tile.

``features`` (N, 1536) and ``coords`` (N, 2), upper left corners of tiles of 256 pixels at 0.5 µm
per pixel, at any resolution of the slide. With the slide's ``mpp`` (or ``patch_size``) they are
converted to level-0 pixels; otherwise the slide is taken as scanned at 0.5. CLAM writes the same
names in level-0 pixels, so outside CLAM's folders the layout must be given.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sacmil.bag import Bag
from sacmil.errors import FormatError
from sacmil.formats import clam
from sacmil.formats._hdf5 import has_dataset, is_hdf5, open_file, read_dataset
from sacmil.formats._hints import Hints
from sacmil.formats._patches import drop_batch_axis
from sacmil.formats._scale import convert_to_level0
from sacmil.units import TilePx

_FEATURE_DIM, _TILE_PX, _MPP = 1536, 256, 0.5


def matches(path: Path) -> bool:
    """Whether a bare file has GigaPath's feature width and no sign of CLAM."""
    if not is_hdf5(path) or path.parent.name == "h5_files" or not clam.matches(path):
        return False
    with open_file(path) as file:
        wide = has_dataset(file, "coords") and file["features"].shape[-1:] == (_FEATURE_DIM,)
    return wide and clam.find_patches_file(path, Hints()) is None


def read(path: Path, hints: Hints) -> Bag:
    """Read features and coordinates, in level-0 pixels if the slide's mpp is known."""
    hints.reject_coords(path)
    with open_file(path) as file:
        features = drop_batch_axis(read_dataset(file, path, "features"))
        coords = drop_batch_axis(read_dataset(file, path, "coords"))
    if coords.dtype.kind not in "iuf":
        raise FormatError(f"{path}: coordinates are {coords.dtype}; expected numbers")
    coords_um = coords.astype(np.float64) * _MPP
    return Bag(
        path.stem,
        features,
        *convert_to_level0(coords_um, _TILE_PX * _MPP, _MPP, hints),
        tile_px=TilePx(_TILE_PX),
    )
