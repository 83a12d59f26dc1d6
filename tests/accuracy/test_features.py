"""Features of real sets: no picture has a part in the projection of its own set."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest
from benchmarks.accuracy import features
from benchmarks.accuracy._bags import load_bags
from benchmarks.accuracy._tasks import real
from benchmarks.accuracy.features import Part, Projection, write

from sacmil.errors import SacMILError


@pytest.fixture(autouse=True)
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raw features of forty numbers instead of fifteen hundred."""
    monkeypatch.setattr(features, "ENCODERS", {"lite0": slice(0, 24), "lite0_mid": slice(24, 40)})
    monkeypatch.setattr(features, "WIDTHS", {"lite0": 8, "lite0_mid": 4})


def made_part(random: np.random.Generator, instances: int, shift: float = 0.0) -> Part:
    return {
        "raw": (random.standard_normal((instances, 40)) + shift).astype(np.float16),
        "coords": random.integers(0, 500, (instances, 2)).astype(np.int32),
        "truth": random.integers(0, 2, instances).astype(np.int8),
        "rgb": random.uniform(0, 255, (instances, 3)).astype(np.float16),
        "label": np.array(instances % 2),
    }


def made_sets(seed: int = 0, *, other_colon: bool = False) -> dict[str, dict[str, Part]]:
    sets = {
        name: {
            f"{name}-{n}": made_part(np.random.default_rng([seed, i, n]), 40 + n) for n in range(4)
        }
        for i, name in enumerate(("idc", "breast", "colon"))
    }
    if other_colon:
        sets["colon"]["colon-3"] = made_part(np.random.default_rng(99), 43, shift=5.0)
    return sets


def test_a_set_has_no_part_in_its_own_projection(tmp_path: Path) -> None:
    for name in ("colon", "idc"):
        write(tmp_path / "one" / f"{name}.h5", name, made_sets(), "hash")
        write(tmp_path / "other" / f"{name}.h5", name, made_sets(other_colon=True), "hash")
    for name, same in (("colon", True), ("idc", False)):
        one, other = (h5py.File(tmp_path / folder / f"{name}.h5") for folder in ("one", "other"))
        with one, other:
            kept = one["starts"][3]
            for encoder in ("lite0", "lite0_mid"):
                assert np.array_equal(one[encoder][:kept], other[encoder][:kept]) == same
                assert one[encoder].attrs["hash"] != other[encoder].attrs["hash"]


def test_bags_read_back_with_their_names_labels_and_instances(tmp_path: Path) -> None:
    sets = made_sets()
    write(tmp_path / "colon.h5", "colon", sets, "hash")
    bags = load_bags(real("colon", "lite0_mid", tmp_path), tmp_path)
    assert bags.units.tolist() == list(sets["colon"])
    assert bags.labels.tolist() == [int(part["label"]) for part in sets["colon"].values()]
    assert np.array_equal(bags.truth[bags.slice(2)], sets["colon"]["colon-2"]["truth"])
    assert np.allclose(bags.coords[bags.slice(2)] * 27, sets["colon"]["colon-2"]["coords"])
    colours = load_bags(real("colon", "rgb", tmp_path), tmp_path).features
    assert colours.shape[1] == 3
    assert np.abs(colours).max() <= 2


def test_features_made_anew_are_other_jobs(tmp_path: Path) -> None:
    write(tmp_path / "colon.h5", "colon", made_sets(), "hash")
    source = real("colon", "lite0", tmp_path)
    write(tmp_path / "colon.h5", "colon", made_sets(seed=1), "hash")
    assert real("colon", "lite0", tmp_path) != source
    with pytest.raises(SacMILError, match="the job is about"):
        load_bags(source, tmp_path)


def test_features_that_differ_by_rounding_are_the_same_jobs(tmp_path: Path) -> None:
    write(tmp_path / "colon.h5", "colon", made_sets(), "hash")
    source = real("colon", "lite0", tmp_path)
    rounded = made_sets()
    for part in rounded["colon"].values():
        part["raw"] = np.nextafter(part["raw"], np.float16(9), dtype=np.float16)
    write(tmp_path / "colon.h5", "colon", rounded, "hash")
    assert real("colon", "lite0", tmp_path) == source
    write(tmp_path / "colon.h5", "colon", made_sets(), "other weights")
    assert real("colon", "lite0", tmp_path) != source


def test_axes_do_not_depend_on_which_way_round_they_were_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sample = np.random.default_rng(0).standard_normal((200, 6)).astype(np.float32)
    usual = Projection(sample, 4)(sample)
    found = np.linalg.eigh
    monkeypatch.setattr(
        np.linalg, "eigh", lambda given: (found(given)[0], found(given)[1] * [1, -1, -1, 1, -1, 1])
    )
    assert np.array_equal(Projection(sample, 4)(sample), usual)


def test_a_projection_keeps_what_varies_and_scales_it_to_one() -> None:
    random = np.random.default_rng(0)
    plane = random.standard_normal((500, 3)) @ random.standard_normal((3, 20)) * 7 + 4
    project = Projection(plane.astype(np.float32), 3)
    made = project(plane.astype(np.float32))
    assert project.kept(plane.astype(np.float32)) == pytest.approx(1, abs=1e-4)
    assert made.var(0).mean() == pytest.approx(1, abs=0.01)
    assert np.abs(made.mean(0)).max() < 1e-3


def test_a_real_set_without_its_file_says_what_to_give() -> None:
    with pytest.raises(SacMILError, match="--features"):
        load_bags(real("colon", "lite0", None), None)
