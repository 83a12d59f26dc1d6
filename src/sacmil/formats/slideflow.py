"""slideflow's layout: a tensor, the centres of its tiles, and one description for all.

``<slide>.pt`` holds features (N, D), ``<slide>.index.npz`` the array ``arr_0`` (N, 2) of tile
*centres* in level-0 pixels, and ``bags_config.json`` of the folder tile_px, tile_um and the
extractor. How many level-0 pixels a tile spans is not stored: give the slide's ``mpp``, which
tells it together with tile_um, or ``patch_size``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.bag import Bag, EncoderId
from sacmil.errors import FormatError
from sacmil.formats import _numpy_file, _torch_file
from sacmil.formats._hdf5 import is_hdf5
from sacmil.formats._hints import Hints
from sacmil.formats._patches import drop_batch_axis
from sacmil.formats._spacing import find_grid
from sacmil.units import Level0Px, MicronsPerPixel, TilePx

_CONFIG_FILE = "bags_config.json"


def matches(path: Path) -> bool:
    """Whether a tensor has slideflow's index or description beside it."""
    is_tensor = path.suffix in _torch_file.SUFFIXES and not is_hdf5(path)
    return is_tensor and (_get_index_path(path).is_file() or (path.parent / _CONFIG_FILE).is_file())


def read(path: Path, hints: Hints) -> Bag:
    """Read features, and upper left corners from the centres."""
    index = hints.find_coords_file([_get_index_path(path).name]) or _get_index_path(path)
    if not index.is_file():
        raise FormatError(
            f"{path}: holds features without coordinates, and {index} is not there; give the file "
            "or folder of coordinates by coords (`sacmil convert --coords`)"
        )
    features = drop_batch_axis(_torch_file.load_features(path))
    centres = _read_centers(index, len(features))
    config = _read_config(path.parent / _CONFIG_FILE)
    tile_um, tile_px = _get_length(config, "tile_um"), _get_length(config, "tile_px")
    patch_size = _find_patch_size(path, centres, tile_um, hints)
    mpp = hints.mpp or (tile_um / patch_size if tile_um else None)
    return Bag(
        path.stem,
        features,
        centres - patch_size / 2,
        Level0Px(patch_size),
        mpp=None if mpp is None else MicronsPerPixel(mpp),
        tile_px=None if tile_px is None else TilePx(int(tile_px)),
        encoder=_find_encoder(config),
    )


def _get_index_path(path: Path) -> Path:
    return path.with_name(f"{path.stem}.index.npz")


def _read_centers(index: Path, count: int) -> npt.NDArray[np.float64]:
    centres = _numpy_file.load(index, key="arr_0")
    if centres.shape != (count, 2) or centres.dtype.kind not in "iuf":
        raise FormatError(
            f"{index}: holds {centres.dtype} of shape {centres.shape} beside {count} feature rows; "
            f"expected ({count}, 2) numbers, the centre of each tile"
        )
    return centres.astype(np.float64)


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
    """A length; slideflow also takes magnifications such as "20x", which are none."""
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
    grid = find_grid(centers)
    seen = f"; its tiles stand {grid.spacing:g} apart" if grid else ""
    ways = "" if tile_um is None else ", or the slide's µm per pixel by mpp (--mpp)"
    raise FormatError(
        f"{path}: nothing says how many level-0 pixels a tile spans{seen}; give patch_size "
        f"(`sacmil convert --patch-size`) in level-0 pixels{ways}"
    )


def _find_encoder(config: dict[str, Any]) -> EncoderId | None:
    extractor = config.get("extractor")
    name = extractor.get("class") if isinstance(extractor, dict) else extractor
    return EncoderId(name) if isinstance(name, str) and name else None
