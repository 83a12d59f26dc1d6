"""STAMP's layout: microns become pixels of the slide where its resolution is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sacmil import Bag, EncoderId, create_model, predict, read_bag
from sacmil.errors import FormatError
from sacmil.formats._registry import find_layout

ATTRIBUTES = {
    "stamp_version": "2.3.0",
    "extractor": "uni2",
    "unit": "um",
    "tile_size_um": 128.0,
    "tile_size_px": 256,
    "code_hash": "ab12",
    "feat_type": "tile",
}
OLDER = {"extractor": "uni2", "unit": "um", "tile_size": 128}


@pytest.fixture
def half(bag: Bag) -> Bag:
    """The bag as STAMP keeps it: features in half precision."""
    return Bag(bag.slide_id, bag.features.astype("f2"), bag.coords, 512, mpp=0.25)


@pytest.fixture
def write(tmp_path: Path, half: Bag, write_h5: Callable) -> Callable[..., Path]:
    def write(attributes: dict[str, Any] = ATTRIBUTES, scale: float = 0.25, **arrays: Any) -> Path:
        coords = (half.coords * scale).astype(np.float32)
        path = tmp_path / "uni2-ab12cd34" / "site" / f"{half.slide_id}.h5"
        return write_h5(path, {"feats": half.features, "coords": coords} | arrays, {"": attributes})

    return write


@pytest.mark.parametrize("attributes", [ATTRIBUTES, OLDER, ATTRIBUTES | {"feat_type": "None"}])
@pytest.mark.parametrize("hints", [{}, {"mpp": 0.25}, {"patch_size": 512}, {"mpp": 0.2527}])
def test_a_file_is_the_bag_whatever_is_known_of_the_slide(
    write: Callable, half: Bag, same_bag: Callable, attributes: Any, hints: Any
) -> None:
    path = write(attributes)
    assert find_layout(path) == "stamp"
    same_bag(read_bag(path, **hints), half)


@pytest.mark.parametrize("hints", [{"mpp": 0.25}, {"patch_size": 512}])
def test_with_the_slides_resolution_coordinates_are_level_0_pixels(
    write: Callable, half: Bag, hints: dict[str, float]
) -> None:
    found = read_bag(write(), **hints)
    np.testing.assert_array_equal(found.coords, half.coords)
    assert (found.patch_size, found.mpp, found.tile_px) == (512, 0.25, 256)
    assert found.encoder == EncoderId("uni2")


def test_without_it_they_are_pixels_of_the_tile_or_microns(write: Callable, half: Bag) -> None:
    found = read_bag(write())
    assert (found.patch_size, found.mpp) == (256, 0.5)
    np.testing.assert_array_equal(found.coords, half.coords // 2)
    older = read_bag(write(OLDER))
    assert (older.patch_size, older.mpp, older.tile_px) == (128, 1.0, None)
    np.testing.assert_array_equal(older.coords, half.coords // 4)


def test_a_model_answers_the_same_in_any_unit(write: Callable) -> None:
    path = write()
    model = create_model("sac_mil", in_dim=6, num_classes=2, dim=8, k=4, depth=1)
    first, *others = (predict(model, read_bag(path, **h)) for h in ({}, {"mpp": 0.25}))
    for other in others:
        np.testing.assert_array_equal(first.probabilities, other.probabilities)


def test_resolution_and_patch_size_have_to_agree(write: Callable) -> None:
    assert read_bag(write(), mpp=0.25, patch_size=512).patch_size == 512
    with pytest.raises(FormatError, match="512 in the file but 256 was given"):
        read_bag(write(), mpp=0.25, patch_size=256)


def test_the_first_stamp_counted_pixels_of_256_over_224_microns(write: Callable) -> None:
    path = write({}, scale=224 / 512)
    found = read_bag(path)
    assert (found.patch_size, found.tile_px) == (224, 224)
    assert found.patch_size_um == pytest.approx(256)
    on_slide = read_bag(path, mpp=0.5)
    assert on_slide.patch_size == 512
    assert np.diff(np.unique(on_slide.coords[:, 0])).min() == pytest.approx(512), "side by side"
    np.testing.assert_allclose(on_slide.patch_coords, found.patch_coords)


@pytest.mark.parametrize("coords", [np.zeros((1, 2)), np.array([[0, 0], [256, 0]])])
def test_a_file_without_a_tile_size_is_rejected(
    tmp_path: Path, write_h5: Callable, coords: Any
) -> None:
    arrays = {"feats": np.ones((len(coords), 3), "f2"), "coords": coords}
    with pytest.raises(FormatError, match=r"holding coords, feats .*tile_size_um"):
        read_bag(write_h5(tmp_path / "a.h5", arrays))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"feat_type": "slide"}, "features of a whole slide"),
        ({"feat_type": "patient"}, "features of a whole patient"),
        ({"unit": "px"}, "coordinates are in 'px'"),
        ({"tile_size_um": "wide"}, "expected numbers"),
        ({"tile_size_um": -1.0}, "above zero"),
        ({"tile_size_px": 0}, "above zero"),
    ],
)
def test_what_is_no_bag_is_reported(
    write: Callable, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(FormatError, match=expected):
        read_bag(write(ATTRIBUTES | changes))


def test_multiplex_embeddings_have_no_coordinates(tmp_path: Path, write_h5: Callable) -> None:
    path = write_h5(tmp_path / "a.h5", {"patch_embeddings": np.ones((3, 4))})
    with pytest.raises(FormatError, match="patch_embeddings without coordinates"):
        read_bag(path)


def test_features_without_coordinates_are_reported(tmp_path: Path, write_h5: Callable) -> None:
    path = write_h5(tmp_path / "a.h5", {"feats": np.ones((3, 4))}, {"": ATTRIBUTES})
    with pytest.raises(FormatError, match="expected an array called 'coords'"):
        read_bag(path)


def test_tiles_that_do_not_stand_as_stated_are_stopped(write: Callable) -> None:
    """Pixels of the scan where microns are promised: four times too far apart."""
    with pytest.raises(FormatError, match="4 times the stated patch size"):
        read_bag(write(scale=1.0))
