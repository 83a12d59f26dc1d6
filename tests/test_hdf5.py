"""Data of an HDF5 file comes only from that file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from sacmil import Bag, read_bag, write_bag
from sacmil.errors import FormatError
from sacmil.hdf5 import open_hdf5, read_array

SECRET = np.arange(24, dtype=np.float32).reshape(6, 4)


def link(file: h5py.File, name: str, secret: Path) -> None:
    file[name] = h5py.ExternalLink(secret.name, "secret")


def store_outside(file: h5py.File, name: str, secret: Path) -> None:
    outside = [(str(secret), 0, SECRET.nbytes)]
    file.create_dataset(name, SECRET.shape, SECRET.dtype, external=outside)


def map_virtually(file: h5py.File, name: str, secret: Path) -> None:
    layout = h5py.VirtualLayout(SECRET.shape, SECRET.dtype)
    layout[:] = h5py.VirtualSource(str(secret), "secret", SECRET.shape)
    file.create_virtual_dataset(name, layout)


WAYS: list[Callable[[h5py.File, str, Path], None]] = [link, store_outside, map_virtually]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["secret"] = SECRET
    return tmp_path / "secret.h5"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["features", "coords"])
def test_a_bag_whose_data_is_in_another_file_is_rejected(
    secret: Path, way: Callable[[h5py.File, str, Path], None], name: str
) -> None:
    path = secret.parent / "bag.h5"
    write_bag(path, Bag("bag", SECRET, np.argwhere(np.ones((2, 3))) * 256, 256))
    with h5py.File(path, "a") as file:
        del file[name]
        way(file, name, secret)
    with pytest.raises(FormatError, match=f"'{name}' (is|has) .*; expected a file that holds all"):
        read_bag(path)


@pytest.mark.parametrize("way", WAYS)
def test_what_leads_outside_is_found_however_deep_it_is(
    secret: Path, way: Callable[[h5py.File, str, Path], None]
) -> None:
    path = secret.parent / "deep.h5"
    with h5py.File(path, "w") as file:
        way(file, "a/b/c/d", secret)
        file["a/b/up"] = file["a"]  # a circle
    with pytest.raises(FormatError, match="'a/b/c/d'"), open_hdf5(path):
        pass


def test_links_within_a_file_are_followed(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "own.h5", "w") as file:
        file["data"] = SECRET
        file["soft"], file["hard"] = h5py.SoftLink("/data"), file["data"]
    with open_hdf5(tmp_path / "own.h5") as file:
        assert np.array_equal(file["soft"][()], file["hard"][()])


def test_an_array_behind_a_link_of_its_own_file_counts_as_any_other(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "linked.h5", "w") as file:
        file["b/real"] = np.zeros((2, 3), np.float32)
        file["coords"] = file["b/real"]
        file["features"] = h5py.SoftLink("/huge")
        file["labels"] = h5py.SoftLink("/nowhere")
        file.create_dataset("huge", (10**6, 10**4), "f4", chunks=(1000, 1000))
    with pytest.raises(FormatError, match="'features' declares"), open_hdf5(tmp_path / "linked.h5"):
        pass


def test_a_file_of_groups_in_groups_is_rejected_at_once(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "deep.h5", "w") as file:
        group = file
        for _ in range(300):
            group = group.create_group("g")
    with (
        pytest.raises(FormatError, match=r"deep\.h5: holds more than .* 16 deep"),
        open_hdf5(tmp_path / "deep.h5"),
    ):
        pass


@pytest.mark.parametrize("kind", ["link", "storage", "virtual"])
def test_headers_of_arrays_in_other_files_are_rejected_too(tmp_path: Path, kind: str) -> None:
    other, path = tmp_path / "other.h5", tmp_path / "bag.h5"
    with h5py.File(other, "w") as file:
        file["features"] = np.ones((2, 3), np.float32)
    with h5py.File(path, "w") as file:
        if kind == "link":
            file["hidden"] = h5py.ExternalLink(str(other), "features")
            file["features"] = h5py.SoftLink("/hidden")
        elif kind == "storage":
            file.create_dataset("features", (2, 3), "f4", external=[(str(other), 0, 24)])
        else:
            layout = h5py.VirtualLayout((2, 3), "f4")
            layout[:] = h5py.VirtualSource(str(other), "features", (2, 3))
            file.create_virtual_dataset("features", layout)
    with (
        pytest.raises(FormatError, match="expected a file that holds all its data itself"),
        open_hdf5(path, only=["features"]),
    ):
        pass


LARGE = np.random.default_rng(0).standard_normal((700, 512))
"""More than a megabyte in every type."""


def compress(file: h5py.File, values: np.ndarray) -> None:
    file.create_dataset("x", data=values, compression="gzip", compression_opts=1)


def divide(file: h5py.File, values: np.ndarray) -> None:
    file.create_dataset("x", data=values, chunks=(100, 512))


def store(file: h5py.File, values: np.ndarray) -> None:
    file.create_dataset("before", data=np.arange(7))
    file.create_dataset("x", data=values)


@pytest.mark.parametrize("way", [store, divide, compress])
@pytest.mark.parametrize("kind", ["<f2", "<f4", ">f4", "<f8", "<i8", ">i4", "u1"])
@pytest.mark.parametrize("before", [0, 512])
def test_an_array_is_read_as_hdf5_reads_it(tmp_path: Path, way, kind: str, before: int) -> None:
    path, values = tmp_path / "array.h5", (9 * LARGE).repeat(4, axis=0).astype(kind)
    with h5py.File(path, "w", userblock_size=before) as file:
        way(file, values)
    with open_hdf5(path) as file:
        found = read_array(file, "x")
        np.testing.assert_array_equal(found, file["x"][()])
        assert found.dtype == file["x"].dtype
        assert found.flags.writeable
    np.testing.assert_array_equal(found, values)


@pytest.mark.skipif(not hasattr(os, "preadv"), reason="Windows")
def test_large_arrays_are_read_without_hdf5_and_others_with_it(tmp_path, monkeypatch) -> None:
    with h5py.File(tmp_path / "array.h5", "w") as file:
        store(file, LARGE)
        file["small"], file["empty"] = LARGE[:3], np.empty((0, 4))
        file.create_dataset("never written", LARGE.shape, LARGE.dtype)
    read = os.preadv
    calls: list[int] = []
    monkeypatch.setattr(os, "preadv", lambda *given: calls.append(1) or read(*given))
    with open_hdf5(tmp_path / "array.h5") as file:
        for name in ("x", "small", "empty", "never written"):
            np.testing.assert_array_equal(read_array(file, name), file[name][()])
    assert len(calls) == 1


def test_an_array_that_ends_too_early_is_left_to_hdf5(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(os, "preadv", lambda *_: 0, raising=False)
    with h5py.File(tmp_path / "array.h5", "w") as file:
        store(file, LARGE)
    with open_hdf5(tmp_path / "array.h5") as file:
        np.testing.assert_array_equal(read_array(file, "x"), LARGE)
