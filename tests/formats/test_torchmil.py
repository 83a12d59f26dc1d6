"""torchmil's layout: a path to the features finds what lies in the folders beside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sacmil import Bag, read_bag
from sacmil.errors import FormatError
from sacmil.formats._registry import find_layout


@pytest.fixture
def labelled(bag: Bag) -> Bag:
    return replace(bag, labels=np.arange(len(bag)) % 2)


@pytest.fixture
def write(tmp_path: Path, labelled: Bag, write_h5: Callable) -> Callable[..., Path]:
    def write(
        root: str = "data", inner: str = "", labels: str = "patch_labels", suffix: str = ".npy"
    ) -> Path:
        arrays = {
            "features": labelled.features,
            "coords": labelled.coords,
            labels: labelled.labels,
            "labels": np.array([1]),
        }
        for folder, values in arrays.items():
            inside = f"{folder}/{inner}" if folder == "features" else folder
            path = tmp_path / root / inside / f"{labelled.slide_id}{suffix}"
            path.parent.mkdir(parents=True, exist_ok=True)
            if suffix == ".npy":
                np.save(path, values)
            else:
                write_h5(path, {folder: values})
        return tmp_path / root / "features" / inner / f"{labelled.slide_id}{suffix}"

    return write


@pytest.mark.parametrize("inner", ["", "features_UNI"])
@pytest.mark.parametrize("labels", ["patch_labels", "inst_labels"])
@pytest.mark.parametrize("suffix", [".npy", ".h5"])
def test_four_folders_are_the_bag(
    write: Callable, labelled: Bag, same_bag: Callable, inner: str, labels: str, suffix: str
) -> None:
    path = write(inner=inner, labels=labels, suffix=suffix)
    assert find_layout(path) == "torchmil"
    found = read_bag(path, patch_size=512, mpp=0.25)
    same_bag(found, labelled)
    np.testing.assert_array_equal(found.labels, labelled.labels)
    np.testing.assert_array_equal(found.coords, labelled.coords)
    assert found.mpp == 0.25


def test_the_folder_name_of_published_sets_gives_the_patch_size(write: Callable) -> None:
    path = write("patches_512")
    assert read_bag(path).patch_size == 512
    with pytest.raises(FormatError, match="512 in the file but 256 was given"):
        read_bag(path, patch_size=256)


def test_an_unknown_patch_size_has_to_be_given(write: Callable) -> None:
    with pytest.raises(FormatError, match=r"tiles are 512 apart; give `patch_size`"):
        read_bag(write())


def test_without_coordinates_it_says_where_they_should_be(
    write: Callable, tmp_path: Path, labelled: Bag, same_bag: Callable
) -> None:
    path = write()
    coords = tmp_path / "data" / "coords" / path.name
    coords.rename(tmp_path / path.name)
    with pytest.raises(FormatError, match=f"{coords} does not exist"):
        read_bag(path, patch_size=512)
    same_bag(read_bag(path, patch_size=512, coords=tmp_path), labelled)
    with pytest.raises(FormatError, match="does not hold"):
        read_bag(path, patch_size=512, coords=tmp_path / "data")


def test_labels_are_optional_and_may_be_a_column_of_whole_floats(
    write: Callable, tmp_path: Path, labelled: Bag
) -> None:
    path = write("patches_512")
    labels = tmp_path / "patches_512" / "patch_labels" / path.name
    np.save(labels, labelled.labels.astype(float)[:, None])
    np.testing.assert_array_equal(read_bag(path).labels, labelled.labels)
    labels.unlink()
    assert read_bag(path).labels is None


@pytest.mark.parametrize(
    ("folder", "values", "expected"),
    [
        ("coords", np.zeros((3, 2), int), "beside"),
        ("coords", np.array([{}] * 3, dtype=object), "cannot be read as numpy"),
        ("features", np.array([{}] * 3, dtype=object), "cannot be read as numpy"),
        ("features", np.zeros(3), r"\(3,\)"),
        ("patch_labels", np.zeros(3, int), r"labels have shape \(3,\)"),
        ("patch_labels", np.array(["a"]), "labels have shape"),
    ],
)
def test_what_does_not_fit_is_rejected_and_nothing_is_unpickled(
    write: Callable, tmp_path: Path, folder: str, values: Any, expected: str
) -> None:
    path = write("patches_512")
    np.save(tmp_path / "patches_512" / folder / path.name, values)
    with pytest.raises(FormatError, match=expected):
        read_bag(path)


def test_a_file_cut_short_anywhere_is_reported(write: Callable) -> None:
    path = write("patches_512")
    whole = path.read_bytes()
    for length in range(0, len(whole), 61):
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match=str(path)):
            read_bag(path)
