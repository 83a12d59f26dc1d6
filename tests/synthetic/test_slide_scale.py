"""Tasks at the scale of a slide: two lesions decide together, and a single one says nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from exhaustive import choose_cases
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict

from sacmil.errors import ConfigError
from sacmil.synthetic.bags import (
    PRESETS,
    NearOrFar,
    SameOrDifferent,
    WhichSide,
    draw_truth,
    make_labeled_bag,
    make_synthetic_cohort,
)
from sacmil.synthetic.bags import slide_scale as module
from sacmil.synthetic.bags.cohort import SlideTruth
from sacmil.synthetic.bags.slide_scale import SlideScaleTask, draw_rectangle, grow_lesions
from sacmil.synthetic.bags.statistics import average_neighborhood
from sacmil.synthetic.tissue_shape import make_tissue_coords

TASKS = ("near_or_far", "same_or_different", "which_side")
EVERY = [PRESETS[task][level] for task in TASKS for level in ("easy", "medium", "hard")]
EXTREME = [
    NearOrFar(lesion_share=(0.04, 0.04), stray=3),
    SameOrDifferent(lesion_share=(0.04, 0.04), stray=3),
    SameOrDifferent(lesion_share=(0.075, 0.075), stray=1.3),
    WhichSide(lesion_share=(0.08, 0.08), stray=3),
    WhichSide(lesion_share=(0.1, 0.1), stray=2.5),
]
every_task = pytest.mark.parametrize("task", EVERY, ids=lambda task: task.name)
Statistic = Callable[[SlideTruth], float]


def place(
    task: SlideScaleTask, n: int, tiles: int, label: int, seed: int
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the tissue, and the positions of the tiles of each of two lesions, center first."""
    tissue = make_tissue_coords(n, seed)
    lesions = task.place_lesions(tissue, tiles, label, np.random.default_rng(seed))
    return tissue, np.split(tissue[np.concatenate(lesions)], 2)


# Lesions


@settings(max_examples=60, deadline=None)
@given(
    task=st.sampled_from(EVERY + EXTREME),
    n=st.integers(20, 400),
    seed=st.integers(0, 10**6),
    label=st.integers(0, 1),
)
def test_cells_of_any_allowed_setting_fit_on_a_slide(
    task: SlideScaleTask, n: int, seed: int, label: int
) -> None:
    made = make_synthetic_cohort(task, 1, seed, instances=(n, n), dim=8)
    drawn = draw_truth(made.settings, seed, 0, label)
    assert drawn.counts.sum() == n
    assert (drawn.counts >= 0).all()
    counted = np.bincount(drawn.kinds, minlength=len(task.kinds))
    np.testing.assert_array_equal(counted, drawn.counts)


@settings(max_examples=60, deadline=None)
@given(task=st.sampled_from(EVERY + EXTREME), n=st.integers(20, 10**6), seed=st.integers(0, 10**6))
def test_the_size_of_a_lesion_is_known_from_the_number_of_cells(
    task: SlideScaleTask, n: int, seed: int
) -> None:
    counts = task.draw_other_counts(n, 0, np.random.default_rng(seed))
    tiles = task._count_tiles(counts[0])
    cells = tiles * task.count_lesions()
    assert counts == [cells + round(task.stray * cells)] * len(task.other_kinds)
    assert tiles <= max(1, n * task.lesion_share[1] + 0.5)


@pytest.mark.parametrize("label", [0, 1])
@every_task
def test_both_lesions_are_discs_of_the_same_size_that_do_not_overlap(
    task: SlideScaleTask, label: int
) -> None:
    for seed in range(8):
        tissue, lesions = place(task, 620, 19, label, seed)
        assert [len(lesion) for lesion in lesions] == [19, 19]
        assert len(np.unique(np.concatenate(lesions), axis=0)) == 38
        for center, *others in lesions:
            away = np.hypot(*(others - center).T)
            assert away.max() <= np.sqrt(19 / np.pi) + 1
        assert {tuple(tile) for tile in np.concatenate(lesions)} <= {tuple(t) for t in tissue}


@pytest.mark.parametrize("label", [0, 1])
@every_task
def test_the_distance_of_the_lesions_is_within_the_span_of_their_class(
    task: SlideScaleTask, label: int
) -> None:
    low, high = task.distances[label] if isinstance(task, NearOrFar) else task.distance
    for n, tiles in ((100, 3), (620, 19), (3000, 90)):
        for seed in range(4):
            _, ((first, *_), (second, *_)) = place(task, n, tiles, label, seed)
            assert low <= np.hypot(*(first - second)) / np.sqrt(n) <= high


def test_lesions_that_lie_side_by_side_are_further_apart_across_than_down() -> None:
    for seed in range(10):
        _, ((a, *_), (b, *_)) = place(PRESETS["which_side"]["hard"], 620, 19, 0, seed)
        assert b[0] - a[0] >= abs(b[1] - a[1])


def test_a_slide_without_a_fitting_pair_gets_the_pair_that_misses_by_least() -> None:
    for task in (NearOrFar(distances=((0.3, 0.4), (5, 6))), SameOrDifferent(distance=(5, 6))):
        tissue, ((first, *_), (second, *_)) = place(task, 60, 2, 1, 0)
        widest = np.hypot(*np.ptp(tissue, axis=0))
        assert 0.5 * widest < np.hypot(*(first - second)) <= widest


def test_a_slide_of_one_column_still_has_two_lesions() -> None:
    column = np.stack([np.zeros(30, np.int64), np.arange(30)], axis=1)
    for task in EVERY:
        for label in (0, 1):
            lesions = task.place_lesions(column, 2, label, np.random.default_rng(0))
            assert len(np.unique(np.concatenate(lesions))) == 4


def test_lesions_about_centers_that_are_close_share_no_tile() -> None:
    tissue = make_tissue_coords(200, 0)
    first, second = grow_lesions(tissue, 20, tissue[[100, 101]])
    assert len(first) == len(second) == 20
    assert not set(first) & set(second)


# Twins: the same slide with the other label


@pytest.mark.parametrize("task", TASKS)
def test_twins_have_the_same_number_of_cells_of_each_kind(task: str) -> None:
    made = make_synthetic_cohort(task, 6, 0, instances=(300, 900), dim=8)
    for number in range(6):
        one, other = (draw_truth(made.settings, 0, number, label) for label in (0, 1))
        np.testing.assert_array_equal(one.counts, other.counts)
        assert len(set(one.counts[3:])) == 1, "as many of every kind of tumour"


def test_twins_of_which_side_have_their_lesions_at_the_same_places_with_kinds_swapped() -> None:
    made = make_synthetic_cohort("which_side", 8, 0, difficulty="easy", instances=(620, 620))
    for number in range(8):
        one, other = (draw_truth(made.settings, 0, number, label) for label in (0, 1))
        swapped = np.array([0, 1, 2, 4, 3])[one.kinds]
        np.testing.assert_array_equal(other.kinds, swapped)


def test_twins_of_same_or_different_have_their_lesions_at_the_same_places() -> None:
    task = PRESETS["same_or_different"]["medium"]
    for seed in range(8):
        (_, one), (_, other) = (place(task, 620, 19, label, seed) for label in (0, 1))
        assert {tuple(lesion[0]) for lesion in one} == {tuple(lesion[0]) for lesion in other}


# Near and far


def test_neighboring_corners_of_a_rectangle_are_near_and_far_in_turn() -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        points = random.random((60, 2))
        distance = np.hypot(*(points[:, None] - points).transpose(2, 0, 1))
        near, far = ((distance > a) & (distance < b) for a, b in ((0.2, 0.3), (0.6, 0.7)))
        corners = draw_rectangle(near, far, random)
        assert corners is not None
        a, b, c, d = corners
        assert near[a, b]
        assert far[b, c]
        assert near[c, d]
        assert far[d, a]


def test_tissue_without_a_rectangle_is_recognized() -> None:
    near = far = np.zeros((5, 5), bool)
    assert draw_rectangle(near, far, np.random.default_rng(0)) is None
    near, far = np.zeros((2, 3, 3), bool)
    near[0, 1] = near[1, 0] = far[0, 2] = far[2, 0] = True
    assert draw_rectangle(near, far, np.random.default_rng(0)) is None


def test_every_corner_has_a_lesion_on_half_of_the_slides_of_either_class(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "draw_rectangle", lambda *_: np.array([10, 20, 30, 40]))
    monkeypatch.setattr(module, "grow_lesions", lambda _, __, centers: tuple(centers))
    tissue = make_tissue_coords(620, 0)
    centers = module.draw_centers(tissue, 19, np.random.default_rng(0))
    monkeypatch.setattr(module, "draw_centers", lambda *_: centers)
    names = {tuple(centers[corner]): corner for corner in (10, 20, 30, 40)}

    def list_pairs(label: int) -> set[frozenset[int]]:
        pairs = set()
        for seed in range(20):
            random = np.random.default_rng(seed)
            (both,) = NearOrFar().place_lesions(tissue, 19, label, random)
            pairs.add(frozenset(names[tuple(center)] for center in both.reshape(2, 2)))
        return pairs

    assert list_pairs(0) == {frozenset({10, 20}), frozenset({30, 40})}
    assert list_pairs(1) == {frozenset({20, 30}), frozenset({40, 10})}


# What says nothing about the class


def score_mean_features(task: str) -> float:
    made = make_synthetic_cohort(task, 80, 0, difficulty="easy", instances=(200, 400), dim=8)
    means = [bag.features.mean(0) for bag, _ in made.bags]
    labels = [slide.label for slide in made.table.slides]
    model = LogisticRegression()
    scores = cross_val_predict(model, means, labels, cv=5, method="predict_proba")[:, 1]
    return float(roc_auc_score(labels, scores))


@pytest.mark.parametrize("task", TASKS)
def test_the_mean_feature_is_at_chance(task: str) -> None:
    assert abs(score_mean_features(task) - 0.5) < 0.2


def test_the_mean_feature_is_above_chance_where_composition_decides() -> None:
    assert score_mean_features("subtype") > 0.9


def share_in_disc(truth: SlideTruth, radius: float, value: str) -> float:
    """Average tissue, or the tumour in it, in a disc around tumour cells."""
    axis = np.arange(-int(radius), int(radius) + 1)
    disc = (np.hypot(axis[:, None], axis) <= radius).astype(float)
    disc[int(radius), int(radius)] = 0
    cells, tumour = tuple(truth.positions.T), truth.kinds >= 3
    images = np.zeros((2, *truth.positions.max(0) + 1))
    images[(0, *cells)], images[(1, *cells)] = 1, tumour
    tissue, tumour_near = (
        ndimage.convolve(image, disc, mode="constant")[cells][tumour] for image in images
    )
    around = tissue if value == "tissue" else tumour_near / np.maximum(tissue, 1)
    return float(around.mean())


def count_tumour_at_border(truth: SlideTruth) -> float:
    image = np.zeros(truth.positions.max(0) + 3)
    cells = tuple((truth.positions + 1).T)
    image[cells] = 1
    return float((ndimage.distance_transform_edt(image)[cells] <= 1)[truth.kinds >= 3].mean())


def measure_mixture_around_tumour(truth: SlideTruth) -> float:
    """Return the entropy of healthy tissue around tumour cells: high if lesions differ in it."""
    tumour = truth.kinds >= 3
    near = [
        average_neighborhood(truth.positions, np.asarray(truth.kinds == zone, float), 1.5)[0]
        for zone in range(3)
    ]
    shares = np.array([zone[tumour].sum() for zone in near])
    shares /= shares.sum()
    return float(-(shares * np.log(shares + 1e-9)).sum())


LOCAL: dict[str, Statistic] = {
    "tumour around tumour": partial(share_in_disc, radius=1.5, value="tumour"),
    "tissue around tumour": partial(share_in_disc, radius=1.5, value="tissue"),
    "tissue in 5 patches around tumour": partial(share_in_disc, radius=5, value="tissue"),
    "tumour at the border": count_tumour_at_border,
    "mixture around tumour": measure_mixture_around_tumour,
}


def measure_auc_of_twins(
    task: str, statistics: list[Statistic], slides: int, n: int
) -> list[float]:
    """Return the AUC of statistics for far lesions, over slides drawn with either label."""
    made = make_synthetic_cohort(task, slides, 11, difficulty="easy", instances=(n, n), dim=8)
    numbers = [(number, label) for number in range(slides) for label in (0, 1)]
    truths = (draw_truth(made.settings, 11, number, label) for number, label in numbers)
    rows = [[statistic(truth) for statistic in statistics] for truth in truths]
    return [float(roc_auc_score([0, 1] * slides, column)) for column in np.transpose(rows)]


def test_surroundings_of_tumour_are_at_chance_for_near_and_far() -> None:
    aucs = measure_auc_of_twins("near_or_far", list(LOCAL.values()), 60, 620)
    assert np.abs(np.array(aucs) - 0.5).max() < 0.12, dict(zip(LOCAL, aucs, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("n", choose_cases([620, 2000], step=2))
def test_surroundings_of_tumour_are_at_chance_on_many_slides(n: int) -> None:
    aucs = measure_auc_of_twins("near_or_far", list(LOCAL.values()), 300, n)
    assert np.abs(np.array(aucs) - 0.5).max() < 0.06, dict(zip(LOCAL, aucs, strict=True))


@pytest.mark.slow
def test_surroundings_would_be_above_chance_without_rectangles_or_with_wide_zones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    mixture = LOCAL["mixture around tumour"]
    with monkeypatch.context() as wide:
        wide.setattr(SlideScaleTask, "zone_size", 1.0)
        (auc,) = measure_auc_of_twins("near_or_far", [mixture], 150, 620)
        assert auc > 0.6
    monkeypatch.setattr(module, "draw_rectangle", lambda *_: None)
    tissue = LOCAL["tissue in 5 patches around tumour"]
    (auc,) = measure_auc_of_twins("near_or_far", [tissue], 150, 2000)
    assert auc < 0.4


def test_same_or_different_is_decided_by_the_kinds_of_lesions_and_not_by_their_distance() -> None:
    def find_rarer_lesion(truth: SlideTruth) -> float:
        kinds = (np.asarray(truth.kinds == kind, float) for kind in (3, 4))
        return min(average_neighborhood(truth.positions, k, 1.5)[0].max() for k in kinds)

    (auc,) = measure_auc_of_twins("same_or_different", [find_rarer_lesion], 20, 620)
    assert auc > 0.9


def test_a_bag_marks_lesions_and_single_cells_as_tumour() -> None:
    made = make_synthetic_cohort("same_or_different", 1, 0, instances=(620, 620), dim=8)
    bag, label = make_labeled_bag(made.settings, 0, 0)
    truth = draw_truth(made.settings, 0, 0, label)
    np.testing.assert_array_equal(bag.labels, truth.kinds >= 3)


# What is rejected


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (partial(NearOrFar, lesion_share=(0.05, 0.1), stray=3), "need 0.8 of it; expected 0.7"),
        (partial(SameOrDifferent, lesion_share=(0.1, 0.1), stray=3), "need 1.6 of it"),
        (partial(NearOrFar, lesion_share=(0.1, 0.1)), "distance of 0.28; .* 0.357 or more"),
        (partial(WhichSide, distance=(0.1, 0.9)), "overlap at a distance of 0.1"),
        (partial(WhichSide, distance=(0.9, 0.5)), "lowest and highest distance"),
        (partial(NearOrFar, distances=((0.3, 0.4), (0.9, 0.5))), "for each class"),
        (partial(NearOrFar, lesion_share=(0.1, 0.2)), "up to 0.1"),
        (partial(NearOrFar, stray=4), "0 to 3"),
    ],
)
def test_settings_that_fit_on_no_slide_are_rejected(
    call: Callable[[], SlideScaleTask], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        call()
