"""Hints: they fill in what files leave out, agree with what files say, or are rejected."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sacmil import Bag, list_formats, read_bag, write_bag
from sacmil.errors import FormatError


@pytest.fixture
def path(tmp_path: Path, bag: Bag) -> Path:
    write_bag(tmp_path / "a.h5", bag)
    return tmp_path / "a.h5"


def test_the_layouts_are_these() -> None:
    assert list_formats() == [
        *("clam", "gigapath", "native", "slideflow", "stamp", "torchmil", "trident")
    ]


@pytest.mark.parametrize("name", ["patch_size", "mpp", "stride"])
def test_a_hint_that_is_no_length_is_rejected(path: Path, name: str) -> None:
    for value in (0, -1, float("nan"), float("inf"), "512", [512]):
        with pytest.raises(FormatError, match=f"{name}=.*above zero"):
            read_bag(path, **{name: value})


def test_hints_that_agree_with_the_file_change_nothing(path: Path, bag: Bag) -> None:
    found = read_bag(path, patch_size=512.0, mpp=0.2501)
    assert (found.patch_size, found.mpp) == (bag.patch_size, bag.mpp)
    np.testing.assert_array_equal(found.coords, bag.coords)


@pytest.mark.parametrize("hint", [{"patch_size": 256}, {"mpp": 0.5}, {"mpp": 0.26}])
def test_hints_that_contradict_a_native_bag_are_rejected(path: Path, hint: Any) -> None:
    with pytest.raises(
        FormatError, match=r"in the file but .* was given; leave `.*` out"
    ) as raised:
        read_bag(path, **hint)
    assert str(raised.value).startswith(f"{path}: ")


def test_what_a_native_bag_leaves_out_is_filled_in(tmp_path: Path, bag: Bag) -> None:
    write_bag(tmp_path / "b.h5", Bag("b", bag.features, bag.coords, 512))
    assert read_bag(tmp_path / "b.h5", mpp=0.25).mpp == 0.25
    assert read_bag(tmp_path / "b.h5", stride=512).stride == 512


def test_coordinates_for_a_native_bag_are_rejected(path: Path) -> None:
    with pytest.raises(FormatError, match=r"own coordinates; leave `coords` out"):
        read_bag(path, coords=path)


@pytest.mark.parametrize(
    ("layout", "expected"), [("tridnet", "did you mean 'trident'"), ("x", "known")]
)
def test_an_unknown_layout_says_what_it_might_have_meant(
    path: Path, layout: str, expected: str
) -> None:
    with pytest.raises(FormatError, match=expected):
        read_bag(path, layout=layout)


@pytest.mark.parametrize(
    "layout", ["clam", "gigapath", "slideflow", "stamp", "torchmil", "trident"]
)
@pytest.mark.parametrize("suffix", [".h5", ".pt", ".npy"])
def test_a_file_read_as_a_layout_it_does_not_have_is_reported(
    tmp_path: Path, layout: str, suffix: str
) -> None:
    path = tmp_path / f"a{suffix}"
    for content in (None, b"", b"hello", b"\x89HDF\r\n\x1a\n", b"PK\x03\x04"):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(FormatError) as raised:
            read_bag(path, layout=layout, patch_size=512, mpp=0.25)
        assert str(path) in str(raised.value)
        assert "\n" not in str(raised.value)


def test_coordinates_that_are_not_there_are_reported(tmp_path: Path, bag: Bag) -> None:
    (tmp_path / "features").mkdir()
    np.save(tmp_path / "features" / "a.npy", bag.features)
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(FormatError, match=r"a\.npy or a\.h5; expected this slide's"):
            read_bag(tmp_path / "features" / "a.npy", patch_size=512, coords=place)


@pytest.mark.parametrize("layout", ["clam", "gigapath", "stamp", "trident"])
@pytest.mark.parametrize(
    "coords",
    [
        np.array([[b"a", b"b"]] * 3),
        np.full((3, 2), np.nan),
        np.full((3, 2), np.inf),
        np.zeros((3, 3)),
        np.zeros(3),
        np.zeros((0, 2)),
        np.zeros((3, 2), complex),
    ],
    ids=["text", "nan", "infinite", "three", "flat", "none", "complex"],
)
def test_coordinates_that_are_none_are_reported_by_every_layout(
    tmp_path: Path, write_h5: Any, layout: str, coords: Any
) -> None:
    arrays = {"features": np.ones((3, 4), "f4"), "feats": np.ones((3, 4), "f4"), "coords": coords}
    path = write_h5(tmp_path / "a.h5", arrays)
    for hints in ({}, {"patch_size": 512}):
        with pytest.raises(FormatError) as raised:
            read_bag(path, layout=layout, **hints)
        assert str(raised.value).startswith(f"{path}: ")
