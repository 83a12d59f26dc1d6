"""slideflow's layout: centres become corners once the size of a tile on the slide is known."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sacmil import Bag, EncoderId, read_bag
from sacmil.errors import FormatError
from sacmil.formats._registry import find_layout

CONFIG = {
    "extractor": {"class": "slideflow.model.extractors.uni", "kwargs": {}},
    "normalizer": None,
    "num_features": 6,
    "tile_px": 256,
    "tile_um": 128,
}


@pytest.fixture
def write(tmp_path: Path, bag: Bag) -> Callable[..., Path]:
    def write(config: Any = CONFIG, index: Any = None) -> Path:
        path = tmp_path / f"{bag.slide_id}.pt"
        torch.save(torch.from_numpy(bag.features), path)
        centres = bag.coords + 256 if index is None else index
        np.savez(tmp_path / f"{bag.slide_id}.index.npz", centres)
        (tmp_path / "bags_config.json").write_text(json.dumps(config))
        return path

    return write


@pytest.mark.parametrize(
    "hints", [{"mpp": 0.25}, {"patch_size": 512}, {"mpp": 0.25, "patch_size": 512}]
)
def test_tensor_and_centres_are_the_bag(
    write: Callable, bag: Bag, same_bag: Callable, hints: dict[str, float]
) -> None:
    path = write()
    assert find_layout(path) == "slideflow"
    found = read_bag(path, **hints)
    same_bag(found, bag)
    np.testing.assert_array_equal(found.coords, bag.coords)
    assert (found.patch_size, found.mpp, found.tile_px) == (512, 0.25, 256)
    assert found.encoder == EncoderId("slideflow.model.extractors.uni")


@pytest.mark.parametrize("config", [CONFIG | {"tile_um": "20x"}, {}])
def test_a_tile_of_unknown_microns_needs_its_pixels(
    write: Callable, bag: Bag, same_bag: Callable, config: dict[str, Any]
) -> None:
    path = write(config)
    with pytest.raises(FormatError, match=r"tiles are 512 apart; give `patch_size` .*pixels$"):
        read_bag(path, mpp=0.25)
    found = read_bag(path, patch_size=512)
    same_bag(found, bag)
    assert found.mpp is None


def test_without_either_the_error_names_both_options(write: Callable) -> None:
    with pytest.raises(FormatError, match=r"tiles are 512 apart; .*`patch_size`.*`mpp`"):
        read_bag(write())


def test_without_an_index_it_says_where_that_should_be(
    write: Callable, tmp_path: Path, bag: Bag, same_bag: Callable
) -> None:
    path = write()
    index = tmp_path / f"{bag.slide_id}.index.npz"
    (tmp_path / "elsewhere").mkdir()
    moved = index.rename(tmp_path / "elsewhere" / index.name)
    with pytest.raises(FormatError, match=f"{index} does not exist"):
        read_bag(path, patch_size=512)
    same_bag(read_bag(path, patch_size=512, coords=moved.parent), bag)


def test_sizes_that_disagree_are_rejected(write: Callable) -> None:
    with pytest.raises(FormatError, match="was given"):
        read_bag(write(), patch_size=512, mpp=0.5)


@pytest.mark.parametrize(
    ("index", "expected"),
    [
        (np.zeros((3, 2)), r"\(3, 2\) beside"),
        (np.array(["a"]), "expected"),
        (np.array([{}], dtype=object), "cannot be read as numpy"),
    ],
)
def test_an_index_that_does_not_fit_is_rejected_and_not_unpickled(
    write: Callable, index: Any, expected: str
) -> None:
    with pytest.raises(FormatError, match=expected):
        read_bag(write(index=index), patch_size=512)


@pytest.mark.parametrize("text", ["{", "[]", '"a"', "[" * 100_000])
def test_a_spoilt_description_is_reported(write: Callable, tmp_path: Path, text: str) -> None:
    path = write()
    (tmp_path / "bags_config.json").write_text(text)
    with pytest.raises(FormatError, match=r"bags_config\.json"):
        read_bag(path, patch_size=512)


def test_an_index_that_is_another_kind_of_file_is_reported(write: Callable, tmp_path: Path) -> None:
    path = write()
    index = next(tmp_path.glob("*.npz"))
    for content in (b"", b"PK\x03\x04" + bytes(99), index.read_bytes()[:-30]):
        index.write_bytes(content)
        with pytest.raises(FormatError, match="cannot be read as numpy"):
            read_bag(path, patch_size=512)
    with index.open("wb") as file:
        np.save(file, np.zeros((3, 2)))
    with pytest.raises(FormatError, match="cannot be read as numpy"):
        read_bag(path, patch_size=512)
