"""slideflow's layout: a tensor and tile centres per slide, and one configuration per folder.

``<slide>.pt`` holds features (N, D), ``<slide>.index.npz`` the array ``arr_0`` (N, 2) of tile
*centres* in level-0 pixels, and ``bags_config.json`` of the folder tile_px, tile_um and the
extractor. The tile's side in level-0 pixels is not stored: give ``patch_size``, or the slide's
``mpp``, from which it follows by tile_um.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.bag import Bag, EncoderId
from sacmil.errors import FormatError
from sacmil.formats._files import is_tensor_file, load_array, load_features
from sacmil.formats._hints import Hints, make_no_coords_error
from sacmil.formats._spacing import describe_grid
from sacmil.units import Level0Px, MicronsPerPixel, TilePx

_CONFIG_FILE = "bags_config.json"


def matches(path: Path) -> bool:
    """Whether a tensor has slideflow's index or configuration beside it."""
    files = (_get_index_path(path), path.parent / _CONFIG_FILE)
    return is_tensor_file(path) and any(file.is_file() for file in files)


def read(path: Path, hints: Hints) -> Bag:
    """Read features, and compute upper left corners from the centers."""
    index = hints.find_coords_file([_get_index_path(path).name]) or _get_index_path(path)
    if not index.is_file():
        raise make_no_coords_error(path, f"{index} does not exist")
    features = load_features(path)
    centers = _read_centers(index, len(features))
    config = _read_config(path.parent / _CONFIG_FILE)
    tile_um, tile_px = _get_length(config, "tile_um"), _get_length(config, "tile_px")
    patch_size = _find_patch_size(path, centers, tile_um, hints)
    mpp = hints.mpp or (tile_um / patch_size if tile_um else None)
    return Bag(
        path.stem,
        features,
        centers - patch_size / 2,
        Level0Px(patch_size),
        mpp=None if mpp is None else MicronsPerPixel(mpp),
        tile_px=None if tile_px is None else TilePx(int(tile_px)),
        encoder=_find_encoder(config),
    )


def _get_index_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.index.npz")


def _read_centers(index: Path, count: int) -> npt.NDArray[np.float64]:
    centers = load_array(index, key="arr_0")
    if centers.shape != (count, 2) or centers.dtype.kind not in "iuf":
        raise FormatError(
            f"{index}: holds {centers.dtype} of shape {centers.shape} beside {count} feature rows; "
            f"expected ({count}, 2) numbers, the centre of each tile"
        )
    return centers.astype(np.float64)


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FormatError(f"{path}: cannot be read as JSON ({error})") from error
    if not isinstance(config, dict):
        raise FormatError(f"{path}: holds a {type(config).__name__}; expected slideflow's settings")
    return config


def _get_length(config: dict[str, Any], name: str) -> float | None:
    """Return a length; None for a magnification such as "20x", which slideflow also allows."""
    value = config.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 < value < float("inf") else None


def _find_patch_size(
    path: Path, centers: npt.NDArray[np.float64], tile_um: float | None, hints: Hints
) -> float:
    if tile_um is not None and hints.mpp is not None:
        return round(tile_um / hints.mpp)  # slideflow cuts whole pixels
    if hints.patch_size is not None:
        return float(hints.patch_size)
    alternative = "" if tile_um is None else ", or the slide's µm per pixel by `mpp`"
    raise FormatError(
        f"{path}: the tile size in level-0 pixels is not stored{describe_grid(centers)}; give "
        f"`patch_size` in level-0 pixels{alternative}"
    )


def _find_encoder(config: dict[str, Any]) -> EncoderId | None:
    extractor = config.get("extractor")
    name = extractor.get("class") if isinstance(extractor, dict) else extractor
    return EncoderId(name) if isinstance(name, str) and name else None
