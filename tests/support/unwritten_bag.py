"""A bag of a few kilobytes that declares gigabytes: its chunks were never written."""

from __future__ import annotations

from pathlib import Path

import h5py

ROWS = 2**24


def write_unwritten_bag(path: Path, features: str = "features", rows: int = ROWS) -> Path:
    """Features and coordinates of many rows, in none of the bytes of the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.create_dataset(features, shape=(rows, 64), chunks=(4096, 64), dtype="f4")
        coords = file.create_dataset("coords", shape=(rows, 2), chunks=(4096, 2), dtype="i8")
        coords.attrs.update(patch_size=256, patch_level=0, tile_size_um=256.0)
    return path
