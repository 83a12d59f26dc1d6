"""Nothing that is tested on has been trained on, however bags are cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from benchmarks.accuracy._bags import Bags, load_bags, windows
from benchmarks.accuracy._parts import parts_of
from benchmarks.accuracy._tasks import WINDOWS, Size, synthetic

SLIDES, FOLDS = 8, 4


def made_slides(seed: int = 0) -> Bags:
    """Whole slides of 23 × 17 patches with holes; positive patches stand in a corner."""
    random = np.random.default_rng(seed)
    places = np.argwhere(np.ones((23, 17), dtype=bool))
    chosen = [places[random.random(len(places)) < 0.8] for _ in range(SLIDES)]
    coords = np.concatenate(chosen).astype(np.float64)
    names = np.array([f"slide-{number}" for number in range(SLIDES)])
    lengths = [len(each) for each in chosen]
    sizes = np.repeat(np.arange(SLIDES), lengths)
    return Bags(
        features=random.standard_normal((len(coords), 4)).astype(np.float16),
        coords=coords,
        truth=(coords.sum(1) < sizes).astype(np.int8),
        starts=np.concatenate([[0], np.cumsum(lengths)]),
        labels=np.ones(SLIDES, np.int64),
        units=names,
        groups=names,
        kinds=np.full(SLIDES, "bag"),
    )


def split(fold: int, repeat: int = 1) -> dict[str, float]:
    return {"folds": FOLDS, "repeat": repeat, "fold": fold, "validation": 0.25}


@pytest.fixture(scope="module")
def cut() -> Bags:
    return windows(made_slides(), WINDOWS)


def test_no_slide_of_the_test_part_trains_or_chooses(cut: Bags) -> None:
    for fold in range(FOLDS):
        parts = parts_of(cut, split(fold))
        slides = {name: set(cut.groups[numbers]) for name, numbers in parts.items()}
        assert not slides["train"] & slides["test"]
        assert not slides["val"] & (slides["train"] | slides["test"])
        assert slides["whole"] == slides["test"]
        assert all(slides.values())


def test_every_slide_is_tested_once(cut: Bags) -> None:
    tested = [
        unit for fold in range(FOLDS) for unit in cut.units[parts_of(cut, split(fold))["whole"]]
    ]
    assert sorted(tested) == sorted(f"slide-{number}" for number in range(SLIDES))


def test_windows_that_test_share_no_patch_and_those_that_train_do(cut: Bags) -> None:
    for kind, overlap in (("test", False), ("train", True)):
        seen: list[tuple[str, float, float]] = []
        for bag in np.flatnonzero(cut.kinds == kind):
            seen += [(str(cut.groups[bag]), x, y) for x, y in cut.coords[cut.slice(bag)]]
        assert (len(set(seen)) < len(seen)) == overlap


def test_a_window_is_positive_where_one_of_its_patches_is(cut: Bags) -> None:
    for bag in range(len(cut)):
        assert cut.labels[bag] == (cut.truth[cut.slice(bag)] == 1).any()
    assert 0 < cut.labels.mean() < 1


def test_windows_keep_features_with_their_places() -> None:
    slides = made_slides()
    cut = windows(slides, WINDOWS)
    known = {
        (name, *slides.coords[row]): slides.features[row]
        for slide, name in enumerate(slides.units)
        for row in range(*slides.slice(slide).indices(len(slides.coords))[:2])
    }
    for bag in range(len(cut)):
        rows = range(*cut.slice(bag).indices(len(cut.coords))[:2])
        assert len(rows) >= 25
        assert all((known[cut.groups[bag], *cut.coords[r]] == cut.features[r]).all() for r in rows)


def test_folds_depend_on_names_and_repeat_only(cut: Bags) -> None:
    again = windows(made_slides(), WINDOWS)
    turned = replace(again, features=again.features * 2)
    assert parts_of(cut, split(1)) == parts_of(turned, split(1))
    assert parts_of(cut, split(1)) != parts_of(cut, split(1, repeat=2))


def test_pieces_of_a_synthetic_cohort_share_no_slide() -> None:
    size = Size(train=6, val=4, test=4, few=60, many=80)
    bags = load_bags(synthetic("cluster", 3, size, further=[("x2", 4, 120, 160)]), None)
    parts = parts_of(bags, {})
    assert list(parts) == ["train", "val", "test", "x2"]
    assert sorted(number for part in parts.values() for number in part) == list(range(18))
    assert len(set(bags.units)) == 18
    lengths = np.diff(bags.starts)
    assert lengths[parts["train"]].max() <= 80 < 120 <= lengths[parts["x2"]].min()
    assert 0 <= bags.ceiling <= 1


def test_a_longer_piece_shows_the_same_kinds_of_cells() -> None:
    """Else extrapolation would test something else than length."""
    size = Size(train=4, val=2, test=2, few=200, many=200)
    source = synthetic("cluster", 0, size, {"contrast": 20.0}, further=[("x4", 2, 800, 800)])
    bags = load_bags(source, None)

    def tumour(bag: int) -> np.ndarray:
        where = bags.slice(bag)
        return bags.features[where][bags.truth[where] == 1].astype(float).mean(0)

    parts = parts_of(bags, {})
    short, long = tumour(parts["train"][0]), tumour(parts["x4"][0])
    assert np.linalg.norm(short - long) < 0.2 * np.linalg.norm(short)
