"""CLAM's layout: patch sizes come from patches files or the caller, coordinates from nowhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sacmil import Bag, read_bag
from sacmil.errors import FormatError
from sacmil.formats._registry import find_layout

ATTRIBUTES = {
    "patch_size": 256,
    "patch_level": 1,
    "downsample": [2.0, 2.0],
    "downsampled_level_dim": [24_000, 20_000],
    "level_dim": [48_000, 40_000],
    "name": "TCGA-3C.v2",
    "save_path": "RESULTS/patches",
}


@pytest.fixture
def patches(tmp_path: Path, bag: Bag, write_h5: Callable) -> Callable[..., Path]:
    def write(folder: str = "RESULTS/patches", rows: int | None = None, **changes: Any) -> Path:
        attributes = {name: v for name, v in (ATTRIBUTES | changes).items() if v is not None}
        path = tmp_path / folder / f"{bag.slide_id}.h5"
        return write_h5(path, {"coords": bag.coords[:rows]}, {"coords": attributes})

    return write


@pytest.fixture
def h5(tmp_path: Path, bag: Bag, write_h5: Callable) -> Path:
    arrays = {"features": bag.features, "coords": bag.coords.astype(np.int32)}
    return write_h5(tmp_path / "FEATS" / "h5_files" / f"{bag.slide_id}.h5", arrays)


def test_a_single_number_as_coordinates_is_a_sentence(
    tmp_path: Path, h5: Path, bag: Bag, write_h5: Callable
) -> None:
    path = write_h5(tmp_path / f"coords/{bag.slide_id}.h5", {"coords": np.float64(3)})
    with pytest.raises(FormatError, match="coords is a single number"):
        read_bag(h5, coords=path, patch_size=512)


@pytest.fixture
def pt(tmp_path: Path, bag: Bag) -> Path:
    path = tmp_path / "FEATS" / "pt_files" / f"{bag.slide_id}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save(torch.from_numpy(bag.features), path)
    return path


@pytest.mark.parametrize("folder", ["RESULTS/patches", "FEATS/patches", "patches"])
@pytest.mark.parametrize("kind", ["h5", "pt"])
def test_a_file_and_its_patches_are_the_bag(
    request: Any, patches: Callable, bag: Bag, same_bag: Callable, kind: str, folder: str
) -> None:
    path = request.getfixturevalue(kind)
    patches(folder)
    assert find_layout(path) == "clam"
    found = read_bag(path)
    same_bag(found, bag)
    assert (found.patch_size, found.tile_px, found.mpp) == (512, 256, None)
    np.testing.assert_array_equal(found.coords, bag.coords)
    assert read_bag(path, mpp=0.25, patch_size=512).mpp == 0.25


@pytest.mark.parametrize("kind", ["h5", "pt"])
@pytest.mark.parametrize("whole_folder", [True, False])
def test_patches_are_read_where_the_caller_says(
    request: Any, patches: Callable, bag: Bag, same_bag: Callable, kind: str, *, whole_folder: bool
) -> None:
    path, elsewhere = request.getfixturevalue(kind), patches("elsewhere")
    same_bag(read_bag(path, coords=elsewhere.parent if whole_folder else elsewhere), bag)


def test_a_patch_size_the_caller_knows_is_enough_for_an_h5(
    h5: Path, bag: Bag, same_bag: Callable
) -> None:
    same_bag(read_bag(h5, patch_size=512), bag)


def test_the_h5_beside_a_pt_knows_its_coordinates(
    h5: Path, pt: Path, bag: Bag, same_bag: Callable
) -> None:
    same_bag(read_bag(pt, patch_size=512), bag)
    with pytest.raises(FormatError, match=r"but no tile size; .*`patch_size`"):
        read_bag(pt, coords=h5)


def test_without_patches_nothing_is_guessed_but_the_spacing_is_reported(h5: Path) -> None:
    with pytest.raises(FormatError, match=r"tiles are 512 apart; give `patch_size`") as raised:
        read_bag(h5)
    assert "holding coords, features" in str(raised.value)


def test_features_without_coordinates_say_where_these_should_be(pt: Path) -> None:
    with pytest.raises(FormatError, match="without coordinates") as raised:
        read_bag(pt, patch_size=512)
    for folder in ("FEATS/patches", "RESULTS/patches"):
        assert str(pt.parents[2] / folder / f"{pt.stem}.h5") in str(raised.value)


def test_an_h5_without_coordinates_is_treated_like_a_pt(
    tmp_path: Path, patches: Callable, bag: Bag, write_h5: Callable, same_bag: Callable
) -> None:
    path = write_h5(tmp_path / "FEATS/h5_files/TCGA-3C.v2.h5", {"features": bag.features})
    with pytest.raises(FormatError, match="without coordinates"):
        read_bag(path)
    patches()
    same_bag(read_bag(path), bag)


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({"patch_level": 0, "downsample": [1.0, 1.0], "patch_size": 512}, 512),
        ({"downsample": [2.0001, 2.0002]}, 512),
        ({"patch_level": 0, "downsample": None, "patch_size": 512}, 512),  # as WSInfer writes
        ({"downsample": 2}, 512),
    ],
)
def test_the_patch_size_counts_pixels_of_the_patch_level(
    h5: Path, patches: Callable, changes: dict[str, Any], size: int
) -> None:
    patches(**changes)
    assert read_bag(h5).patch_size == size


@pytest.mark.parametrize("changes", [{"downsample": None}, {"custom_downsample": 2}])
def test_a_patch_size_that_could_mean_two_things_has_to_be_given(
    h5: Path, patches: Callable, changes: dict[str, Any]
) -> None:
    patches(**changes)
    with pytest.raises(FormatError, match="`patch_size`"):
        read_bag(h5)
    assert read_bag(h5, patch_size=512).patch_size == 512


@pytest.mark.parametrize("kind", ["h5", "pt"])
def test_patches_of_another_run_are_rejected(request: Any, patches: Callable, kind: str) -> None:
    path, other = request.getfixturevalue(kind), patches(rows=-1)
    with pytest.raises(FormatError, match=r"rows") as raised:
        read_bag(path)
    assert str(other) in str(raised.value)


def test_as_many_patches_elsewhere_on_the_slide_are_rejected(
    h5: Path, patches: Callable, write_h5: Callable, bag: Bag
) -> None:
    write_h5(patches(), {"coords": bag.coords[::-1]}, {"coords": ATTRIBUTES})
    with pytest.raises(FormatError, match=r"its coordinates .* differ from those of"):
        read_bag(h5)


def test_a_hint_that_contradicts_the_patches_is_rejected(h5: Path, patches: Callable) -> None:
    patches()
    with pytest.raises(FormatError, match=r"512 in the file but 256 was given; .*`patch_size`"):
        read_bag(h5, patch_size=256)


@pytest.mark.parametrize("downsample", [1.0, 4.0])
def test_a_patch_size_of_the_wrong_level_is_stopped_by_the_spacing(
    h5: Path, patches: Callable, downsample: float
) -> None:
    patches(downsample=[downsample] * 2)
    if downsample < 2:
        with pytest.raises(FormatError, match=r"512 apart, 2 times .*`patch_size=512`"):
            read_bag(h5)
    else:
        assert read_bag(h5).patch_size == 1024  # may overlap by half: nobody can know


@pytest.mark.parametrize("changes", [{"patch_size": "wide"}, {"downsample": ["a", "b"]}])
def test_attributes_that_are_no_numbers_are_reported(
    h5: Path, patches: Callable, changes: dict[str, Any]
) -> None:
    path = patches(**changes)
    with pytest.raises(FormatError, match="wrong kind") as raised:
        read_bag(h5)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    ("save", "expected"),
    [
        (lambda x: {"features": x}, None),
        (lambda x: {"feats": x[None]}, None),
        (lambda x: x.to(torch.float64).requires_grad_(), None),
        (lambda x: {"tiles": x}, "holds a dict of tiles"),
        (lambda x: [x], "holds a list"),
        (lambda x: x.to_sparse(), "unusual form"),
        (lambda x: x[0], r"shape \(6,\)|feature rows"),
        (lambda x: x.to(torch.int32), "int32"),
    ],
)
def test_a_pt_may_be_a_tensor_or_name_one(
    pt: Path, patches: Callable, bag: Bag, same_bag: Callable, save: Callable, expected: str | None
) -> None:
    patches()
    torch.save(save(torch.from_numpy(bag.features)), pt)
    if expected is None:
        same_bag(read_bag(pt), bag)
    else:
        with pytest.raises(FormatError, match=expected):
            read_bag(pt)


def test_bfloat16_which_numpy_lacks_is_read(pt: Path, patches: Callable, bag: Bag) -> None:
    patches()
    torch.save(torch.from_numpy(bag.features).bfloat16(), pt)
    np.testing.assert_allclose(read_bag(pt).features, bag.features, rtol=1e-2)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("evil"),))


def test_code_in_a_pt_is_not_run(
    pt: Path, patches: Callable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patches()
    monkeypatch.chdir(tmp_path)
    torch.save({"features": Evil()}, pt)
    with pytest.raises(FormatError, match="tensors only"):
        read_bag(pt)
    assert not (tmp_path / "evil").exists()
