"""One bag that every layout of the field can hold, and how peers write their files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from sacmil import Bag


@pytest.fixture
def bag() -> Bag:
    """A 40x scan: tiles of 512 level-0 pixels, 128 µm, seen by the encoder as 256 pixels."""
    random = np.random.default_rng(0)
    places = np.argwhere(random.random((9, 9)) < 0.7)
    features = random.standard_normal((len(places), 6)).astype(np.float32)
    return Bag("TCGA-3C.v2", features, places * 512 + [1024, 512], 512, mpp=0.25, tile_px=256)


@pytest.fixture
def write_h5() -> Callable[..., Path]:
    """Writes arrays; attributes are given as {"": of the file, "coords": of that array}."""

    def write(
        path: Path, arrays: dict[str, Any], attributes: dict[str, dict[str, Any]] | None = None
    ) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with h5py.File(path, "w") as file:
            for name, values in arrays.items():
                values = np.asarray(values)
                chunks = (
                    (min(32, len(values)), *values.shape[1:])
                    if values.ndim > 1 and len(values)
                    else None
                )
                file.create_dataset(name, data=values, chunks=chunks)
            for name, found in (attributes or {}).items():
                (file[name] if name else file).attrs.update(found)
        return path

    return write


@pytest.fixture
def same_bag() -> Callable[[Bag, Bag], None]:
    """Asserts that two bags are the same to a model."""

    def compare(found: Bag, expected: Bag) -> None:
        assert found.slide_id == expected.slide_id
        np.testing.assert_array_equal(found.features, expected.features)
        np.testing.assert_allclose(found.patch_coords, expected.patch_coords, rtol=0, atol=1e-5)
        assert found.patch_size_um is None or abs(found.patch_size_um - 128) < 1e-6

    return compare
