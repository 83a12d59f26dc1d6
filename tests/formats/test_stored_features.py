"""Features read from where a file stores them are those of its layout, or none are."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sacmil import Bag, write_bag
from sacmil.formats._stored_features import StoredFeatures, find_stored_features

Features = npt.NDArray[np.floating]


def make_features(rows: int = 100, dtype: str = "float16") -> Features:
    return np.random.default_rng(rows).standard_normal((rows, 24)).astype(dtype)


def write_native(path: Path, features: Features) -> None:
    write_bag(path, Bag("slide", features, np.arange(2 * len(features)).reshape(-1, 2) * 9, 256))


def write_in_chunks(path: Path, features: Features) -> None:
    """As CLAM: batch after batch, with coordinates between them, and a last chunk that is cut."""
    with h5py.File(path, "w") as file:
        arrays = {
            name: file.create_dataset(
                name, (0, width), dtype, chunks=(32, width), maxshape=(None, width)
            )
            for name, width, dtype in (("features", 24, features.dtype), ("coords", 2, "i4"))
        }
        for start in range(0, len(features), 40):
            rows = features[start : start + 40]
            for name, values in (("features", rows), ("coords", np.ones((len(rows), 2)))):
                arrays[name].resize(start + len(rows), 0)
                arrays[name][start:] = values


def write_array(**options: object) -> Callable[[Path, Features], None]:
    def write(path: Path, features: Features) -> None:
        with h5py.File(path, "w") as file:
            file.create_dataset("feats", data=features, **options)

    return write


FORMS: dict[str, Callable[[Path, Features], None]] = {
    "native.h5": write_native,
    "clam.h5": write_in_chunks,
    "trident.h5": write_array(chunks=(1, 24)),
    "bare.pt": lambda path, features: torch.save(torch.from_numpy(features), path),
    "named.pt": lambda path, features: torch.save(
        {"other": torch.zeros(7), "features": torch.from_numpy(features)}, path
    ),
    "array.npy": np.save,
}
OTHER_FORMS: dict[str, Callable[[Path, Features], None]] = {
    "compressed.h5": write_array(compression="gzip"),
    "columns.h5": write_array(chunks=(8, 5)),
    "another_type.h5": lambda path, features: write_array()(path, features.astype("f8")),
    "other_values.h5": lambda path, features: write_array()(path, features + 1),
    "old.pt": lambda path, features: torch.save(
        torch.from_numpy(features), path, _use_new_zipfile_serialization=False
    ),
    "zipped.npz": lambda path, features: np.savez_compressed(path, features=features),
    "text.pt": lambda path, features: path.write_text("no features"),
    "fortran.npy": lambda path, features: np.save(path, np.asfortranarray(features)),
}


def read_again(stored: StoredFeatures, features: Features) -> Features:
    found = np.full_like(features, np.nan)
    assert stored.read_into(found.reshape(-1).view(np.uint8).data)
    return found


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name", FORMS)
def test_stored_features_are_those_of_the_layout(tmp_path: Path, name: str, dtype: str) -> None:
    features, path = make_features(dtype=dtype), tmp_path / name
    FORMS[name](path, features)
    stored = find_stored_features(path, features)
    assert stored is not None
    np.testing.assert_array_equal(read_again(stored, features), features)


@pytest.mark.parametrize("name", OTHER_FORMS)
def test_what_a_file_converts_or_compresses_is_left_to_its_layout(tmp_path: Path, name) -> None:
    features, path = make_features(), tmp_path / name
    OTHER_FORMS[name](path, features)
    assert find_stored_features(path, features) is None


def test_a_missing_file_has_no_stored_features(tmp_path: Path) -> None:
    assert find_stored_features(tmp_path / "none.h5", make_features()) is None


@given(rows=st.integers(1, 90), chunk=st.integers(1, 100))
def test_chunks_of_any_length_are_joined_in_order(tmp_path_factory, rows: int, chunk: int) -> None:
    features, path = make_features(rows), tmp_path_factory.mktemp("chunks") / "bag.h5"
    with h5py.File(path, "w") as file:
        options = {"chunks": (chunk, 24), "maxshape": (None, 24)}
        array = file.create_dataset("features", features.shape, "f2", **options)
        for row in np.random.default_rng(chunk).permutation(rows):
            array[row] = features[row]  # chunks get their places in this order
    stored = find_stored_features(path, features)
    assert stored is not None
    np.testing.assert_array_equal(read_again(stored, features), features)


@pytest.mark.parametrize("change", ["rewritten", "cut", "removed", "touched"])
def test_a_file_that_changed_is_left_to_its_layout(tmp_path: Path, change: str) -> None:
    features, path = make_features(), tmp_path / "bag.h5"
    write_native(path, features)
    stored = find_stored_features(path, features)
    assert stored is not None
    if change == "rewritten":
        write_native(path, features + 1)
    elif change == "cut":
        path.write_bytes(path.read_bytes()[:-1000])
    elif change == "removed":
        path.unlink()
    else:
        os.utime(path, ns=(1, 1))
    assert not stored.read_into(np.empty_like(features).reshape(-1).view(np.uint8).data)
