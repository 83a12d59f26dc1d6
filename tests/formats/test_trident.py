"""TRIDENT's layout: what it stores is taken, what it calls None is not known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from sacmil import Bag, EncoderId, read_bag, write_bag
from sacmil.errors import FormatError
from sacmil.formats import trident
from sacmil.formats._hints import Hints
from sacmil.formats._registry import find_layout

JOB = "20x_256px_0px_overlap"
ATTRIBUTES = {
    "patch_size": 256,
    "patch_size_level0": 512,
    "level0_magnification": 40,
    "target_magnification": 20,
    "overlap": 0,
    "name": "TCGA-3C.v2",
    "savetodir": JOB,
    "level0_width": 48_000,
    "level0_height": 40_000,
}


@pytest.fixture
def write(tmp_path: Path, bag: Bag, write_h5: Callable) -> Callable[..., Path]:
    def write(folder: str = "features_uni_v1", features: Any = None, **changes: Any) -> Path:
        attributes = {name: v for name, v in (ATTRIBUTES | changes).items() if v is not None}
        features = bag.features if features is None else features
        return write_h5(
            tmp_path / JOB / folder / f"{bag.slide_id}.h5",
            {"features": features, "coords": bag.coords},
            {"features": {"name": bag.slide_id, "encoder": "uni_v1"}, "coords": attributes},
        )

    return write


@pytest.fixture
def pt(tmp_path: Path, bag: Bag) -> Path:
    path = tmp_path / JOB / "features_uni_v1" / f"{bag.slide_id}.pt"
    path.parent.mkdir(parents=True)
    torch.save(torch.from_numpy(bag.features), path)
    return path


@pytest.mark.parametrize("folder", ["features_uni_v1", "patch_features_uni_v1", "anywhere"])
@pytest.mark.parametrize("axis", [False, True])
def test_a_file_is_the_bag(
    write: Callable, bag: Bag, same_bag: Callable, folder: str, *, axis: bool
) -> None:
    path = write(folder, bag.features[None] if axis else None)
    assert find_layout(path) == "trident"
    found = read_bag(path)
    same_bag(found, bag)
    np.testing.assert_array_equal(found.coords, bag.coords)
    assert (found.patch_size, found.tile_px, found.slide_size) == (512, 256, (48_000, 40_000))
    assert found.encoder == EncoderId("uni_v1")
    assert found.mpp is None
    assert read_bag(path, mpp=0.25).patch_size_um == 128


def test_a_tensor_finds_its_coordinates(
    tmp_path: Path, pt: Path, bag: Bag, same_bag: Callable, write_h5: Callable
) -> None:
    with pytest.raises(FormatError, match=r"TCGA-3C\.v2_patches\.h5 does not exist; .*`coords`"):
        read_bag(pt)
    patches = tmp_path / JOB / "patches" / "TCGA-3C.v2_patches.h5"
    write_h5(patches, {"coords": bag.coords}, {"coords": ATTRIBUTES})
    assert find_layout(pt) == "trident"
    same_bag(read_bag(pt), bag)
    assert read_bag(pt).encoder == EncoderId("uni_v1")
    same_bag(read_bag(pt, coords=patches), bag)
    write_h5(patches, {"coords": bag.coords[1:]}, {"coords": ATTRIBUTES})
    with pytest.raises(FormatError, match="belong to different runs"):
        read_bag(pt)


def test_features_in_half_precision_stay_so(write: Callable, bag: Bag) -> None:
    assert read_bag(write(features=bag.features.astype("f2"))).features.dtype == np.float16


def test_what_is_called_none_is_not_known(write: Callable) -> None:
    found = read_bag(write(level0_width="None", level0_height="None", overlap="None"))
    assert (found.slide_size, found.stride) == (None, None)
    assert read_bag(write()).stride == 512


@pytest.mark.parametrize("missing", [None, "None"])
def test_an_older_file_gives_the_patch_size_by_magnifications(
    write: Callable, missing: str | None
) -> None:
    assert read_bag(write(patch_size_level0=missing)).patch_size == 512
    path = write(patch_size_level0=missing, target_magnification="None")
    with pytest.raises(FormatError, match=r"patch_size_level0 is missing.*`patch_size`"):
        read_bag(path)
    assert read_bag(path, patch_size=512).patch_size == 512


def test_an_overlap_counts_pixels_of_the_tile(
    write: Callable, bag: Bag, write_h5: Callable
) -> None:
    path = write(overlap=64)
    places = (bag.coords - bag.coords.min(axis=0)) // 512 * 384
    write_h5(
        path,
        {"features": bag.features, "coords": places},
        {"coords": ATTRIBUTES | {"overlap": 64}},
    )
    assert read_bag(path).stride == 384


def test_tiles_are_never_measured_by_patch_size(write: Callable) -> None:
    """torchmil divides by patch_size, where neighbours land two cells apart."""
    steps = np.diff(np.unique(read_bag(write()).patch_coords[:, 0]))
    assert steps.min() == 1


def test_the_tiles_own_pixels_as_level_0_are_stopped(write: Callable) -> None:
    with pytest.raises(FormatError, match=r"512 apart, 2 times .* try `patch_size=512`"):
        read_bag(write(patch_size_level0=256))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"features": np.ones((0, 6), "f4")}, "bag is empty"),
        ({"features": np.ones(768, "f4")}, "one vector for the whole slide"),
        ({"features": np.ones((2, 3, 6), "f4")}, r"\(2, 3, 6\)"),
        ({"patch_size_level0": "wide"}, "wrong kind"),
        ({"level0_width": "wide"}, "wrong kind"),
        ({"patch_size_level0": -512}, "patch_size is -512"),
    ],
)
def test_what_is_no_bag_is_reported(
    write: Callable, changes: dict[str, Any], expected: str
) -> None:
    path = write(**changes)
    with pytest.raises(FormatError, match=expected) as raised:
        read_bag(path)
    assert str(raised.value).startswith(f"{path}: ")


def test_a_slide_without_tiles_is_reported(write: Callable, write_h5: Callable) -> None:
    empty = {"features": np.ones((0, 6), "f4"), "coords": np.ones((0, 2), int)}
    with pytest.raises(FormatError, match="bag is empty"):
        read_bag(write_h5(write(), empty, {"coords": ATTRIBUTES}))


@pytest.mark.parametrize("hint", [{"patch_size": 256}, {"stride": 256}])
def test_a_hint_that_contradicts_the_file_is_rejected(write: Callable, hint: Any) -> None:
    with pytest.raises(FormatError, match=r"was given|times the stated"):
        read_bag(write(overlap=0), **hint)


def test_coordinates_are_not_taken_from_elsewhere(write: Callable) -> None:
    path = write()
    with pytest.raises(FormatError, match="holds its own coordinates"):
        read_bag(path, coords=path)


# What we write natively, seen by TRIDENT.

EXPECTED = {
    "patch_size": np.integer,
    "patch_size_level0": np.integer,
    "level0_magnification": np.integer,
    "target_magnification": np.integer,
    "overlap": np.integer,
    "name": str,
    "savetodir": str,
    "level0_width": np.integer,
    "level0_height": np.integer,
}


def test_a_native_bag_has_every_name_and_type_of_trident(tmp_path: Path, bag: Bag) -> None:
    from dataclasses import replace

    path = tmp_path / f"{bag.slide_id}.h5"
    write_bag(path, replace(bag, slide_size=(48_000, 40_000), encoder=EncoderId("uni_v1")))
    with h5py.File(path) as file:
        assert file["features"].dtype in (np.float16, np.float32)
        assert file["features"].ndim == 2
        assert file["coords"].dtype == np.int64
        assert file["coords"].shape == (len(file["features"]), 2)
        attributes = dict(file["coords"].attrs)
        assert {"name", "savetodir", "encoder"} <= set(file["features"].attrs)
    for name, kind in EXPECTED.items():
        assert isinstance(attributes[name], kind), name
    for name in set(EXPECTED) - {"savetodir"}:
        assert attributes[name] == ATTRIBUTES[name], name


def test_a_native_bag_read_as_tridents_is_the_same(
    tmp_path: Path, bag: Bag, same_bag: Callable
) -> None:
    path = tmp_path / f"{bag.slide_id}.h5"
    write_bag(path, bag)
    assert find_layout(path) == "native"
    same_bag(trident.read(path, Hints()), bag)
    same_bag(read_bag(path, layout="trident"), bag)
