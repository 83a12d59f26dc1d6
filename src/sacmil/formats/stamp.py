"""STAMP's layout: coordinates in microns.

``feats`` (N, D) float16 and ``coords`` (N, 2), upper left corners in µm; on the file the attributes
unit, tile_size_um, tile_size_px, extractor, feat_type. Two older forms are read: ``tile_size`` with
unit "um" (2.0), and no attributes at all with tiles 224 apart, in pixels of 256/224 µm (1.x).

STAMP does not store the slide's µm per pixel. If ``mpp`` or ``patch_size`` gives it, the bag is in
level-0 pixels. Otherwise it is in pixels of the tile, as if the slide had been scanned at the
tile's resolution, or in µm if that is unknown. Models see patch units only, so their predictions
are the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt

from sacmil.bag import Bag, EncoderId
from sacmil.errors import FormatError
from sacmil.formats import _files as files
from sacmil.formats._hints import Hints, convert_to_level0
from sacmil.formats._spacing import find_grid
from sacmil.units import TilePx

_STAMP1_TILE_UM, _STAMP1_TILE_PX = 256.0, TilePx(224)
"""The only tile size of STAMP 1."""


class _TileSize(NamedTuple):
    size_um: float
    size_px: TilePx | None
    unit: float
    """µm per unit of the coordinates."""


def matches(path: Path) -> bool:
    """Whether the file has an array with one of STAMP's names for features."""
    return not {"feats", "patch_embeddings"}.isdisjoint(files.read_header(path).shapes)


def read(path: Path, hints: Hints) -> Bag:
    """Read features and coordinates, converted to pixels."""
    hints.reject_coords(path)
    with files.open_file(path) as file:
        if files.has_dataset(file, "patch_embeddings") and not files.has_dataset(file, "coords"):
            raise FormatError(
                f"{path}: holds patch_embeddings without coordinates, as STAMP writes for "
                "multiplex images; expected feats and coords, a bag needs the position of each tile"
            )
        found = files.read_attributes(file)
        _check_kind(path, found)
        features, coords = (files.read_dataset(file, path, name) for name in ("feats", "coords"))
    tiles = _find_tile_size(path, found, coords)
    mpp_of_tile = tiles.size_um / tiles.size_px if tiles.size_px else 1.0
    extractor = found.get("extractor")
    return Bag(
        path.stem,
        features,
        *convert_to_level0(path, coords, tiles.unit, tiles.size_um, hints, mpp_of_tile),
        tile_px=tiles.size_px,
        encoder=EncoderId(str(extractor)) if extractor else None,
    )


def _check_kind(path: Path, found: dict[str, Any]) -> None:
    kind = found.get("feat_type", "tile")
    if kind != "tile":
        raise FormatError(
            f"{path}: holds features of a whole {kind}; expected those of tiles, take the folder "
            "STAMP's preprocessing wrote"
        )
    unit = found.get("unit", "um")
    if unit != "um":
        raise FormatError(f"{path}: coordinates are in {unit!r}; expected 'um', as STAMP writes")


def _find_tile_size(path: Path, found: dict[str, Any], coords: npt.NDArray[Any]) -> _TileSize:
    size_um = found.get("tile_size_um") or (found.get("tile_size") if "unit" in found else None)
    if size_um is not None:
        return _parse_tile_size(path, size_um, found.get("tile_size_px"))
    spacing = find_grid(coords, min_gaps=1)
    if spacing and round(spacing) == _STAMP1_TILE_PX:
        return _TileSize(_STAMP1_TILE_UM, _STAMP1_TILE_PX, _STAMP1_TILE_UM / _STAMP1_TILE_PX)
    tiles = f"tiles {spacing:g} apart" if spacing else "no regular grid of tiles"
    raise FormatError(
        f"{path}: found {files.describe_contents(path)} with {tiles}, and no attribute that gives "
        "the tile size; expected tile_size_um as in STAMP 2, or tiles 224 apart as in STAMP 1, "
        "extract the features again"
    )


def _parse_tile_size(path: Path, size_um: Any, size_px: Any) -> _TileSize:
    try:
        tiles = _TileSize(float(size_um), None if size_px is None else TilePx(int(size_px)), 1.0)
    except (TypeError, ValueError, OverflowError) as error:
        raise FormatError(
            f"{path}: tile_size_um is {size_um!r}, tile_size_px {size_px!r}; expected numbers"
        ) from error
    if not 0 < tiles.size_um < float("inf") or (tiles.size_px is not None and tiles.size_px <= 0):
        raise FormatError(
            f"{path}: tile_size_um is {size_um}, tile_size_px {size_px}; expected them above zero"
        )
    return tiles
