"""What one file may ask for is bounded before it is read."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from unwritten_bag import write_unwritten_bag

from sacmil import Bag, read_bag, write_bag
from sacmil.errors import ConfigError, FormatError
from sacmil.limits import MAX_BAG_VARIABLE, check_declared_size, max_bag_bytes, max_worker_bytes

GIB = 2**30


@pytest.mark.parametrize(
    ("place", "features", "layout"),
    [
        ("h5_files/s.h5", "features", "clam"),
        ("features_uni/s.h5", "features", "trident"),
        ("s.h5", "feats", "stamp"),
        ("s.h5", "features", "gigapath"),
    ],
)
def test_a_file_that_declares_what_it_does_not_store_is_rejected_in_every_layout(
    tmp_path: Path, place: str, features: str, layout: str
) -> None:
    path = write_unwritten_bag(tmp_path / place, features)
    assert path.stat().st_size < 10_000
    for chosen in (None, layout):
        with pytest.raises(FormatError, match=rf"{path}: '{features}' declares 4\.0 GiB but"):
            read_bag(path, layout=chosen)


def test_a_native_bag_may_not_declare_what_it_does_not_store(tmp_path: Path) -> None:
    path = write_unwritten_bag(tmp_path / "s.h5")
    with h5py.File(path, "r+") as file:
        file.attrs.update(layout="sacmil bag", schema_version=1)
    with pytest.raises(FormatError, match="but stores 0 bytes; expected at most 100 times"):
        read_bag(path)


def test_features_that_compress_well_are_read(tmp_path: Path) -> None:
    """A hundredth of their size is more than real features shrink to."""
    features = np.zeros((6000, 1024), np.float32)
    features[:, :12] = np.random.default_rng(0).standard_normal((6000, 12))
    with h5py.File(tmp_path / "s.h5", "w") as file:
        file.create_dataset("features", data=features, chunks=(500, 1024), compression="gzip")
        file["coords"] = np.argwhere(np.ones((60, 100))) * 256
        assert features.nbytes / file["features"].id.get_storage_size() > 50
    found = read_bag(tmp_path / "s.h5", layout="clam", patch_size=256)
    np.testing.assert_array_equal(found.features, features)


def test_the_limit_of_a_bag_can_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(MAX_BAG_VARIABLE, raising=False)
    check_declared_size("s.h5", "features", 4 * GIB, 4 * GIB)
    with pytest.raises(FormatError, match=rf"s.h5: features needs 5\.0 GiB .*{MAX_BAG_VARIABLE}=5"):
        check_declared_size("s.h5", "features", 5 * GIB, 5 * GIB)
    monkeypatch.setenv(MAX_BAG_VARIABLE, "5")
    check_declared_size("s.h5", "features", 5 * GIB, 5 * GIB)
    assert max_worker_bytes() == 15 * GIB


@pytest.mark.parametrize("value", ["many", "0", "-1", "nan", "inf"])
def test_a_limit_that_is_no_size_is_an_error(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MAX_BAG_VARIABLE, value)
    with pytest.raises(
        ConfigError, match=f"{MAX_BAG_VARIABLE} is '{value}'; expected a number of GiB"
    ):
        max_bag_bytes()


def test_a_wrong_limit_is_not_reported_as_a_damaged_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "s.h5"
    write_bag(path, Bag("s", np.ones((4, 8), np.float32), np.arange(8).reshape(4, 2), 256))
    monkeypatch.setenv(MAX_BAG_VARIABLE, "lots")
    with pytest.raises(ConfigError, match=f"{MAX_BAG_VARIABLE} is 'lots'"):
        read_bag(path)


def test_arrays_of_one_file_count_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "s.h5"
    write_bag(path, Bag("s", np.ones((64, 8), np.float32), np.arange(128).reshape(64, 2), 256))
    monkeypatch.setenv(MAX_BAG_VARIABLE, str(2500 / GIB))  # features take 2,048 bytes, coords 1,024
    with pytest.raises(FormatError, match=r"'features' and 'coords' needs 3\.0 KiB of memory"):
        read_bag(path)


def test_a_tensor_that_repeats_its_values_is_rejected(tmp_path: Path) -> None:
    torch.save(torch.zeros(1, 1).expand(2**24, 64), tmp_path / "s.pt")
    with pytest.raises(FormatError, match=r"s.pt: the tensor declares 4\.0 GiB but stores"):
        read_bag(tmp_path / "s.pt", layout="clam", patch_size=256)


def test_compressed_files_of_torch_and_numpy_are_bounded(tmp_path: Path) -> None:
    big = np.zeros((2**21, 2), np.float32)
    np.savez_compressed(tmp_path / "s.index.npz", big)
    torch.save(torch.ones(2**21, 1), tmp_path / "s.pt")
    with pytest.raises(FormatError, match=r"s.index.npz: its content declares 16\.0 MiB but"):
        read_bag(tmp_path / "s.pt", layout="slideflow", patch_size=256)
