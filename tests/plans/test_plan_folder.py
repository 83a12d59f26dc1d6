"""A stored plan is the one that would be made."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sacmil import create_model
from sacmil.plans import PlanFolder, Planner, make_plan

ARRANGEMENT = Planner("arrangement", {"k": 4, "order": "hilbert", "centers": "peel"})
TISSUE = Planner("tissue_graph", {"neighbours": 3})
RANDOM = np.random.default_rng(0)
COORDS = RANDOM.permutation(400)[:90][:, None] // [1, 20] % 20 * 1.0
FEATURES = RANDOM.standard_normal((90, 8), dtype=np.float32)


def never() -> dict[str, np.ndarray]:
    raise AssertionError("made again")


@pytest.mark.parametrize("planner", [ARRANGEMENT, TISSUE], ids=lambda planner: planner.name)
def test_a_stored_plan_has_the_same_numbers_and_types(tmp_path: Path, planner: Planner) -> None:
    plans = PlanFolder(tmp_path / "plans")
    expected = make_plan(planner.name, planner.options, COORDS, FEATURES)
    plans.make(planner, COORDS, FEATURES)
    found = plans.fetch(planner, COORDS, FEATURES, never)
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
        assert found[name].dtype == values.dtype
        assert found[name].flags.writeable


def test_another_bag_or_option_is_another_plan(tmp_path: Path) -> None:
    plans = PlanFolder(tmp_path)
    plans.make(ARRANGEMENT, COORDS, FEATURES)
    plans.make(ARRANGEMENT, COORDS, FEATURES + 1)
    assert len(list(tmp_path.iterdir())) == 1, "regions do not depend on features"
    plans.make(ARRANGEMENT, COORDS + [0, 1], FEATURES)
    plans.make(Planner("arrangement", {**ARRANGEMENT.options, "k": 5}), COORDS, FEATURES)
    plans.make(TISSUE, COORDS, FEATURES)
    plans.make(TISSUE, COORDS, FEATURES * np.arange(1, 91, dtype=np.float32)[:, None])
    assert len(list(tmp_path.iterdir())) == 5


@pytest.mark.parametrize("damage", [b"", b"PK\x03\x04", b"\x80\x04K\x01.", None])
def test_a_damaged_plan_is_made_again(tmp_path: Path, damage: bytes | None) -> None:
    plans = PlanFolder(tmp_path)
    plans.make(ARRANGEMENT, COORDS, FEATURES)
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-40] if damage is None else damage)
    plans.make(ARRANGEMENT, COORDS, FEATURES)
    assert path.read_bytes() == whole


def test_without_a_place_to_write_plans_are_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    plans = PlanFolder(tmp_path / "file")
    expected = make_plan("arrangement", ARRANGEMENT.options, COORDS)
    found = plans.fetch(ARRANGEMENT, COORDS, FEATURES, lambda: expected)
    assert found is expected


def test_what_is_quickly_made_is_not_stored(tmp_path: Path) -> None:
    for name in ("mean_pool", "r2t", "longnet"):
        planner = create_model(name, in_dim=8, num_classes=2).planner
        PlanFolder(tmp_path).make(planner, COORDS, FEATURES)
    assert not list(tmp_path.iterdir())
