"""The three real sets as tiles: nuclei of COLON, a grid over BREAST, the patches of IDC.

The folder holds ``colon/images`` with ``nuclei.csv`` (image, x, y, type), ``breast/images`` with
``labels.csv`` (image, label) and ``idc/slides`` with ``patches.csv`` (slide, x, y, idc).
"""

from __future__ import annotations

import csv
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NUCLEUS_PX = 27
"""Of a tile around a nucleus, as Ilse et al. cut them."""
GRID_PX = 64
"""Of a tile of BREAST: 14 × 12 to a picture."""
PATCH_PX = 50
"""Of a patch of IDC, as its annotators saw them."""
WHITE, WHITE_SHARE = 200, 0.75
"""A tile of BREAST with so much of it so white is background, as Ilse et al. leave it out."""
UNKNOWN = -1

Row = dict[str, str]


class Picture(NamedTuple):
    """One picture cut into tiles."""

    name: str
    label: int
    """Of the whole; for IDC, where windows are the bags, whether there is any carcinoma."""
    tiles: npt.NDArray[np.uint8]
    """(N, P, P, 3)."""
    coords: npt.NDArray[np.int32]
    """(N, 2), upper left corners."""
    truth: npt.NDArray[np.int8]
    """(N,), 1 where the tile is of the positive class, -1 where nobody knows."""


class PictureSet(NamedTuple):
    """A set: where its table is, what the column of pictures is called, how one is read."""

    table: str
    column: str
    side: int
    """Pixels of a tile."""
    read: Callable[[Path, str, list[Row]], Picture]

    def names(self, folder: Path) -> list[str]:
        """Of all pictures."""
        return sorted(_rows_by(folder / self.table, self.column))

    def picture(self, folder: Path, name: str) -> Picture:
        """One of them, cut into tiles."""
        return self.read(folder, name, _rows_by(folder / self.table, self.column)[name])


def _colon(folder: Path, name: str, rows: list[Row]) -> Picture:
    """Tiles around nuclei; positive where a nucleus is epithelial."""
    truth = np.array([row["type"] == "epithelial" for row in rows], np.int8)
    centres = np.array([(float(row["x"]), float(row["y"])) for row in rows])
    image = _image(folder / "colon" / "images" / f"{name}.jpg")
    margin = NUCLEUS_PX  # nuclei at the rim get their tile from a mirrored one
    image = np.pad(image, ((margin, margin), (margin, margin), (0, 0)), mode="symmetric")
    corners = np.rint(centres - NUCLEUS_PX / 2).astype(np.int32) + margin
    corners = corners.clip(0, np.array(image.shape[1::-1]) - NUCLEUS_PX).astype(np.int32)
    return Picture(name, int(truth.any()), _cut(image, corners, NUCLEUS_PX), corners, truth)


def _breast(folder: Path, name: str, rows: list[Row]) -> Picture:
    """Tiles on a grid; benign or malignant, and nobody knows of which tiles."""
    image = _image(folder / "breast" / "images" / f"{name}.jpg")
    height, width = image.shape[:2]
    across, down = np.arange(width // GRID_PX), np.arange(height // GRID_PX)
    corners = np.stack(np.meshgrid(across, down), -1).reshape(-1, 2).astype(np.int32) * GRID_PX
    tiles = _cut(image, corners, GRID_PX)
    tissue = (tiles.min(-1) > WHITE).mean((1, 2)) < WHITE_SHARE
    truth = np.full(int(tissue.sum()), UNKNOWN, np.int8)
    label = int(rows[0]["label"] == "malignant")
    return Picture(name, label, tiles[tissue], corners[tissue], truth)


def _idc(folder: Path, name: str, rows: list[Row]) -> Picture:
    """A whole slide of 50 × 50 patches."""
    import tifffile

    image = tifffile.imread(folder / "idc" / "slides" / f"{name}.tif", series=0, level=0)
    corners = np.array([(int(row["x"]), int(row["y"])) for row in rows], np.int32)
    truth = np.array([int(row["idc"]) for row in rows], np.int8)
    return Picture(name, int(truth.any()), _cut(image, corners, PATCH_PX), corners, truth)


SETS = {
    "idc": PictureSet("idc/patches.csv", "slide", PATCH_PX, _idc),
    "breast": PictureSet("breast/labels.csv", "image", GRID_PX, _breast),
    "colon": PictureSet("colon/nuclei.csv", "image", NUCLEUS_PX, _colon),
}


def _cut(
    image: npt.NDArray[np.uint8], corners: npt.NDArray[np.int32], side: int
) -> npt.NDArray[np.uint8]:
    """Tiles by their upper left corners; what lies outside the picture is white."""
    image = np.pad(image, ((0, side), (0, side), (0, 0)), constant_values=255)
    return np.stack([image[y : y + side, x : x + side] for x, y in corners])


def _image(path: Path) -> npt.NDArray[np.uint8]:
    from PIL import Image

    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB"))


@cache
def _rows_by(path: Path, column: str) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = defaultdict(list)
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            found[row[column]].append(row)
    return dict(found)
