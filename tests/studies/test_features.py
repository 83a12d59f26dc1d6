"""Datasets of real pictures: no picture influences the projection of its own set."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import torch
from PIL import Image
from studies import features
from studies.features import SETS, Projection, TwoDepths, encode_set, hash_origin, project_set

from sacmil.bag import Bag, EncoderId
from sacmil.cohorts.cohort import read_cohort
from sacmil.cohorts.dataset import Dataset
from sacmil.encoders._efficientnet_lite import EfficientNetLite0
from sacmil.formats import read_bag, write_bag
from sacmil.units import Level0Px

NUMBERS = 40
"""Width of raw features here, instead of 1504."""


@pytest.fixture(autouse=True)
def _make_features_narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = {"lite0": (slice(0, 24), 8), "lite0_mid": (slice(24, 40), 4)}
    monkeypatch.setattr(features, "PROJECTIONS", narrow)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # hundreds of them


def make_bag(slide_id: str, seed: list[int], instances: int, shift: float = 0.0) -> Bag:
    random = np.random.default_rng(seed)
    values = (random.standard_normal((instances, NUMBERS)) + shift).astype(np.float16)
    coords = np.stack([random.permutation(500)[:instances], np.arange(instances)], 1)
    labels = random.integers(0, 2, instances)
    tiles = {"tiles": f"{seed}"}
    return Bag(slide_id, values, coords, Level0Px(27), labels=labels, provenance=tiles)


def make_sets() -> dict[str, list[Bag]]:
    return {
        name: [make_bag(f"{name}-{n}", [i, n], 40 + n) for n in range(3)]
        for i, name in enumerate(SETS)
    }


def write_sets(folder: Path, sets: dict[str, list[Bag]]) -> Path:
    for name, bags in sets.items():
        for bag in bags:
            file = folder / name / "raw" / f"{bag.slide_id}.h5"
            write_bag(file, replace(bag, encoder=EncoderId("net", "hash")))
    return folder


def read_origins(folder: Path, name: str = "colon") -> dict[str, str]:
    project_set(name, folder)
    origins: dict[str, str] = json.loads((folder / name / "features.json").read_text())
    return origins


def test_a_set_has_no_influence_on_its_own_projection(tmp_path: Path) -> None:
    changed = make_sets()
    changed["colon"][2] = make_bag("colon-2", [99], 42, shift=5.0)
    one, other = write_sets(tmp_path / "one", make_sets()), write_sets(tmp_path / "other", changed)
    for name, is_same in (("colon", True), ("idc", False)):
        before, after = read_origins(one, name), read_origins(other, name)
        for kind in ("lite0", "lite0_mid"):
            file = f"{name}/{kind}/{name}-0.h5"
            values = [read_bag(folder / file).features for folder in (one, other)]
            assert np.array_equal(*values) == is_same
            assert before[kind] != after[kind]


def test_bags_keep_their_instances_and_name_their_origin(tmp_path: Path) -> None:
    sets = make_sets()
    origins = read_origins(write_sets(tmp_path, sets))
    for kind, width in (("lite0", 8), ("lite0_mid", 4)):
        bag = read_bag(tmp_path / "colon" / kind / "colon-2.h5")
        assert (bag.features.dtype, bag.dim) == (np.float16, width)
        assert bag.encoder == EncoderId(kind, origins[kind])
        assert np.array_equal(bag.coords, sets["colon"][2].coords)
        assert bag.labels is not None
        assert np.array_equal(bag.labels, sets["colon"][2].labels)


def test_other_tiles_and_other_weights_are_another_origin() -> None:
    bag = replace(make_bag("a", [0], 5), encoder=EncoderId("net", "hash"))
    other_tiles = replace(bag, provenance={"tiles": "others"})
    other_weights = replace(bag, encoder=EncoderId("net", "other"))
    origins = [hash_origin("lite0", [each]) for each in (bag, other_tiles, other_weights)]
    assert len({*origins, hash_origin("lite0_mid", [bag])}) == 4


def test_features_that_differ_by_rounding_have_the_same_origin() -> None:
    bag = make_bag("a", [0], 5)
    rounded = replace(bag, features=np.nextafter(bag.features, np.float16(9)))
    assert hash_origin("lite0", [rounded]) == hash_origin("lite0", [bag])


def test_axes_do_not_depend_on_the_sign_they_were_found_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sample = np.random.default_rng(0).standard_normal((200, 6)).astype(np.float32)
    usual = Projection(sample, 4)(sample)
    eigh = np.linalg.eigh
    monkeypatch.setattr(
        np.linalg, "eigh", lambda given: (eigh(given)[0], eigh(given)[1] * [1, -1, -1, 1, -1, 1])
    )
    assert np.array_equal(Projection(sample, 4)(sample), usual)


def test_a_projection_keeps_what_varies_and_scales_it_to_one() -> None:
    random = np.random.default_rng(0)
    plane = random.standard_normal((500, 3)) @ random.standard_normal((3, 20)) * 7 + 4
    project = Projection(plane, 3)
    made = project(plane)
    assert made.var(0).mean() == pytest.approx(1, abs=0.01)
    assert np.abs(made.mean(0)).max() < 1e-3
    assert np.allclose(made / project.scale @ project.axes.T + project.mean, plane, atol=1e-3)


def test_the_first_features_are_those_of_lite0() -> None:
    torch.manual_seed(0)
    network, two_depths = EfficientNetLite0().eval(), TwoDepths().eval()
    two_depths.load_state_dict(network.state_dict())
    images = torch.randn(1, 3, 64, 64)
    with torch.inference_mode():
        found = two_depths(images)
        assert found.shape == (1, 1280 + 2 * 112)
        assert torch.allclose(found[:, :1280], network(images), atol=1e-6)


class MeanEncoder:
    """Repeats the mean color of a tile, and counts the tiles."""

    card = SimpleNamespace(name="net", input_px=8)
    hash = "hash"
    count = 0

    @contextmanager
    def concurrent_mode(self) -> Iterator[None]:
        yield

    def encode(self, tiles: npt.NDArray[np.uint8]) -> Any:
        self.count += len(tiles)
        return np.repeat(tiles.mean((1, 2)), 14, axis=1)[:, :NUMBERS].astype(np.float32)


def write_pictures(folder: Path) -> None:
    """Two pictures of each set; "b" is positive, its second tile is."""
    tables = {
        "colon": ("nuclei", ["image,x,y,type", "a,0,0,other", "b,0,9,other", "b,50,40,epithelial"]),
        "breast": ("labels", ["image,label", "a,benign", "b,malignant"]),
        "idc": ("patches", ["slide,x,y,idc", "a,0,0,0", "b,0,0,0", "b,50,100,1"]),
    }
    random = np.random.default_rng(0)
    for name, (table, lines) in tables.items():
        images = folder / name / Path(SETS[name].image).parent
        images.mkdir(parents=True)
        (folder / name / f"{table}.csv").write_text("\n".join(lines) + "\n")
        for picture in ("a", "b"):
            pixels = random.integers(0, 200, (150, 130, 3)).astype(np.uint8)
            pixels[:64, 64:128] = 255
            Image.fromarray(pixels).save(folder / name / SETS[name].image.format(picture))


def test_pictures_become_datasets_and_are_encoded_once(tmp_path: Path) -> None:
    write_pictures(tmp_path / "data")
    encoder: Any = MeanEncoder()
    counts = {"colon": [1, 2], "breast": [3, 3], "idc": [1, 2]}
    for name in [*SETS, *SETS]:
        encode_set(name, tmp_path / "data", tmp_path, encoder, None)
    assert encoder.count == sum(map(sum, counts.values()))
    for name, expected in counts.items():
        project_set(name, tmp_path)
        cohort = read_cohort(tmp_path / name / "labels.csv", min_patients=1)
        assert cohort.classes == ("negative", "positive")
        assert [tuple(slide)[:3] for slide in cohort.slides] == [("a", "a", 0), ("b", "b", 1)]
        for kind, width in (("lite0", 8), ("lite0_mid", 4), ("rgb", 3)):
            dataset = Dataset(cohort, tmp_path / name / kind, min_patients=1)
            bags = [read_bag(file) for file in dataset.bags.values()]
            assert dataset.dim == width
            assert [len(bag) for bag in bags] == expected
            assert bags[0].provenance != bags[1].provenance  # a hash of the tiles
            labels = bags[1].labels
            assert (None if labels is None else labels.tolist()) == (
                None if name == "breast" else [0, 1]
            )


def test_tiles_are_cut_where_the_table_has_them(tmp_path: Path) -> None:
    write_pictures(tmp_path)
    rows = pd.DataFrame({"x": ["50"], "y": ["100"]})
    tiles, corners = SETS["idc"].cut_tiles(tmp_path / "idc", "b", rows)
    with Image.open(tmp_path / "idc/slides/b.tif") as image:
        assert np.array_equal(tiles[0], np.asarray(image)[100:150, 50:100])
    tiles, corners = SETS["breast"].cut_tiles(tmp_path / "breast", "a", rows)
    assert corners.tolist() == [[0, 0], [0, 64], [64, 64]]  # the white tile is left out
    rows = pd.DataFrame({"x": ["0.0"], "y": ["60.0"]})
    tiles, corners = SETS["colon"].cut_tiles(tmp_path / "colon", "a", rows)
    assert corners.tolist() == [[27 - 14, 27 + 46]]  # in a picture with a margin of 27
    assert np.array_equal(tiles[0, :, 14:], tiles[0, :, 13:0:-1])  # mirrored at the border
