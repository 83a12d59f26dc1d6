"""Synthetic cohorts: the label is where, or in what proportion, the task says, and nowhere else."""

from __future__ import annotations

import csv
import gzip
import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cluster_bags import make_cluster_bags
from exhaustive import mostly_slow
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import ndimage
from scipy.spatial import cKDTree
from sklearn.metrics import roc_auc_score

from sacmil.bag import Bag
from sacmil.errors import CohortError, ConfigError
from sacmil.formats import read_bag, write_bag
from sacmil.synthetic.bags import (
    PRESETS,
    Cluster,
    LabeledBag,
    Margin,
    Metastasis,
    Subtype,
    SyntheticBagSettings,
    SyntheticCohort,
    compute_oracle_scores,
    draw_truth,
    make_labeled_bag,
    make_synthetic_cohort,
    read_shapes,
    write_synthetic_cohort,
)
from sacmil.synthetic.bags.cohort import make_prototypes
from sacmil.synthetic.bags.lesion_shape import _compute_exact_distance, compute_lesion_distances
from sacmil.synthetic.bags.statistics import (
    average_neighborhood,
    compute_kind_probabilities,
    estimate_kind_shares,
)
from sacmil.synthetic.tissue_shape import make_tissue_coords
from sacmil.tasks import Classification

SMALL = {"instances": (300, 900), "dim": 8}
SLIDE_SCALE = ("near_or_far", "same_or_different", "which_side")
SPATIAL = ("cluster", "margin", *SLIDE_SCALE)
CLASSES = [
    task
    for task, presets in sorted(PRESETS.items())
    if isinstance(presets["medium"].target_task, Classification)
]
"""Tasks with classes; the others are in test_infiltration.py and test_findings.py."""
EVERY = [(task, difficulty) for task in PRESETS for difficulty in PRESETS[task]]


@pytest.fixture(scope="module")
def cohort() -> list[LabeledBag]:
    return make_cluster_bags(20, seed=3)


def written(folder: Path, seed: int) -> list[bytes]:
    folder.mkdir()
    for bag, _ in make_cluster_bags(3, seed=seed):
        write_bag(folder / f"{bag.slide_id}.h5", bag)
    return [file.read_bytes() for file in sorted(folder.iterdir())]


def to_next_tumour(bag: Bag) -> float:
    places = bag.patch_coords[bag.labels == 1]
    distance, _ = cKDTree(places).query(places, k=2)
    return float(distance[:, 1].mean())


def in_order(features: np.ndarray) -> np.ndarray:
    return features[np.lexsort(features.T)]


# The small cluster cohort of the demonstration


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    assert written(tmp_path / "a", 7) == written(tmp_path / "b", 7)
    assert not set(written(tmp_path / "c", 7)) & set(written(tmp_path / "d", 8))


def test_a_larger_cohort_begins_with_the_smaller_one(cohort: list[LabeledBag]) -> None:
    for few, many in zip(make_cluster_bags(4, seed=3), cohort, strict=False):
        np.testing.assert_array_equal(few.bag.features, many.bag.features)


def test_labels_alternate_and_names_are_unique(cohort: list[LabeledBag]) -> None:
    assert [label for _, label in cohort] == [0, 1] * 10
    assert len({bag.slide_id for bag, _ in cohort}) == 20


def test_every_slide_has_exactly_its_share_of_tumour(cohort: list[LabeledBag]) -> None:
    for bag, _ in cohort:
        assert bag.labels is not None
        assert bag.labels.sum() == round(0.1 * len(bag))


def test_sizes_stay_within_the_given_range() -> None:
    sizes = [len(bag) for bag, _ in make_cluster_bags(30, seed=0, instances=(40, 43))]
    assert set(sizes) == {40, 41, 42, 43}


def test_clustered_tumour_stands_nearer_together_on_every_slide(cohort: list[LabeledBag]) -> None:
    scattered = [to_next_tumour(bag) for bag, label in cohort if not label]
    clustered = [to_next_tumour(bag) for bag, label in cohort if label]
    assert max(clustered) < min(scattered)


def test_tumour_features_stand_apart_by_the_contrast(cohort: list[LabeledBag]) -> None:
    features = np.concatenate([bag.features for bag, _ in cohort])
    truth = np.concatenate([bag.labels for bag, _ in cohort])
    apart = features[truth == 1].mean(0) - features[truth == 0].mean(0)
    assert np.linalg.norm(apart) == pytest.approx(2, abs=0.2)


def test_composition_is_equal_between_the_classes(cohort: list[LabeledBag]) -> None:
    """The mean vector differs by no more between classes than within one."""
    means = np.array([bag.features.mean(0) for bag, _ in cohort])
    labels = np.array([label for _, label in cohort])
    between = np.linalg.norm(means[labels == 1].mean(0) - means[labels == 0].mean(0))
    halves = np.linalg.norm(means[:10].mean(0) - means[10:].mean(0))
    assert between < 2 * halves


@pytest.mark.parametrize("contrast", [0.0, 4.0])
def test_contrast_changes_features_and_no_place(contrast: float) -> None:
    (one, _), (other, _) = (
        make_cluster_bags(2, seed=1)[1],
        make_cluster_bags(2, seed=1, contrast=contrast)[1],
    )
    np.testing.assert_array_equal(one.coords, other.coords)
    np.testing.assert_array_equal(one.labels, other.labels)
    assert not np.array_equal(one.features, other.features)


# Every task


@pytest.mark.parametrize(("task", "difficulty"), EVERY)
def test_a_slide_holds_exactly_the_cells_that_were_counted(task: str, difficulty: str) -> None:
    made = make_synthetic_cohort(task, 6, 0, difficulty=difficulty, **SMALL)
    for number, (bag, label) in enumerate(made.bags):
        drawn = draw_truth(made.settings, 0, number, label)
        kinds = made.settings.task.kinds
        assert (drawn.counts >= 0).all()
        np.testing.assert_array_equal(np.bincount(drawn.kinds, minlength=len(kinds)), drawn.counts)
        tumour = drawn.counts[list(made.settings.task.tumor_kinds)].sum()
        assert bag.labels.sum() == tumour
        assert 300 <= len(bag) <= 900
        assert bag.features.dtype == np.float32


@settings(max_examples=25, deadline=None)
@given(
    task=st.sampled_from(sorted(PRESETS)),
    difficulty=st.sampled_from(["easy", "medium", "hard"]),
    seed=st.integers(0, 2**40),
    number=st.integers(0, 10**6),
    size=st.integers(20, 400),
)
def test_any_slide_can_be_made_without_the_others(
    task: str, difficulty: str, seed: int, number: int, size: int
) -> None:
    size = max(size, PRESETS[task][difficulty].min_instances)
    options = {"difficulty": difficulty, "instances": (size, size), "dim": 8}
    made = make_synthetic_cohort(task, number + 1, seed, **options)
    bag, label = make_labeled_bag(pickle.loads(pickle.dumps(made)).settings, seed, number)
    again = made.bags[-1]
    np.testing.assert_array_equal(bag.features, again.bag.features)
    assert (len(bag), label) == (size, again.label)
    assert bag.slide_id == made.bags[number].bag.slide_id


@settings(max_examples=30, deadline=None)
@given(
    task=st.sampled_from(SPATIAL),
    difficulty=st.sampled_from(["easy", "medium", "hard"]),
    seed=st.integers(0, 10**6),
    size=st.integers(20, 1500),
)
def test_where_position_decides_either_label_has_the_very_same_features_and_tissue(
    task: str, difficulty: str, seed: int, size: int
) -> None:
    """So no function of only the features, in any order, can predict the label."""
    made = make_synthetic_cohort(
        task, 1, seed, difficulty=difficulty, instances=(size, size), dim=8
    )
    one, other = (make_labeled_bag(made.settings, seed, 0, label=label).bag for label in (0, 1))
    np.testing.assert_array_equal(one.coords, other.coords)
    np.testing.assert_array_equal(in_order(one.features), in_order(other.features))


@pytest.mark.parametrize("task", SPATIAL)
def test_what_decides_is_which_feature_stands_where(task: str) -> None:
    made = make_synthetic_cohort(task, 1, 0, **SMALL)
    one, other = (make_labeled_bag(made.settings, 0, 0, label=label).bag for label in (0, 1))
    assert not np.array_equal(one.features, other.features)


def test_a_margin_twin_has_its_tumour_at_the_same_places() -> None:
    made = make_synthetic_cohort("margin", 12, 0, **SMALL)
    for number in range(12):
        one, other = (
            make_labeled_bag(made.settings, 0, number, label=label).bag for label in (0, 1)
        )
        np.testing.assert_array_equal(one.labels, other.labels)


def test_whatever_is_drawn_before_the_label_is_the_same_for_twins_of_every_task() -> None:
    for task in CLASSES:
        made = make_synthetic_cohort(task, 1, 5, **SMALL)
        twins = [draw_truth(made.settings, 5, 0, label) for label in (0, 1)]
        np.testing.assert_array_equal(twins[0].positions, twins[1].positions)


def test_cells_of_one_kind_look_alike_on_all_slides_and_otherwise_in_another_cohort() -> None:
    made = make_synthetic_cohort("cluster", 2, 0, difficulty="easy", instances=(3000, 3000), dim=8)
    tumour = [bag.features[bag.labels == 1].mean(0) for bag, _ in made.bags]
    other = make_synthetic_cohort("cluster", 1, 1, difficulty="easy", instances=(3000, 3000), dim=8)
    stranger = other.bags[0].bag
    assert np.linalg.norm(tumour[0] - tumour[1]) < 0.6
    assert np.linalg.norm(tumour[0] - stranger.features[stranger.labels == 1].mean(0)) > 1


@pytest.mark.parametrize("task", sorted(PRESETS))
def test_any_two_kinds_stand_apart_by_the_contrast(task: str) -> None:
    made = make_synthetic_cohort(task, 1, 0, **SMALL)
    names, means = made.settings.task.kinds, make_prototypes(made.settings, 0)
    for i in range(len(names)):
        for j in range(i):
            if "mimic" not in names[i] + names[j]:
                apart = np.linalg.norm(means[i] - means[j])
                assert apart == pytest.approx(made.settings.task.contrast)


def test_the_likeness_of_a_mimic_says_how_far_it_is_from_tumour() -> None:
    for likeness in (0.0, 0.7, 1.0):
        task = Metastasis(likeness=likeness)
        *healthy, tumour, mimic = task.make_prototypes(16, np.random.default_rng(0))
        away = np.linalg.norm(tumour - np.mean(healthy, axis=0))
        assert np.linalg.norm(tumour - mimic) == pytest.approx((1 - likeness) * away, abs=1e-12)


def test_a_normal_slide_has_mimics_and_no_tumour() -> None:
    made = make_synthetic_cohort("metastasis", 10, 0, **SMALL)
    for number, slide in enumerate(made.table.slides):
        *_, tumour, mimic = draw_truth(made.settings, 0, number, slide.label).counts
        assert bool(tumour) == bool(slide.label)
        assert mimic > 0


def test_a_lesion_is_in_as_few_pieces_as_there_are_lesions() -> None:
    """Holes of the tissue may cut one; a scattered lesion would be in hundreds of pieces."""
    made = make_synthetic_cohort(Metastasis(lesions=1, density=1.0), 20, 0, instances=(2000, 4000))
    pieces = []
    for number in range(1, 20, 2):
        drawn = draw_truth(made.settings, 0, number, 1)
        image = np.zeros(drawn.positions.max(0) + 1)
        image[tuple(drawn.positions[drawn.kinds == 3].T)] = 1
        pieces.append(ndimage.label(image, np.ones((3, 3)))[1])
    assert np.median(pieces) == 1
    assert max(pieces) <= 3


def test_clusteredness_between_the_ends_is_between_in_distance() -> None:
    def distance(share: float) -> float:
        task = Cluster(clusteredness=((0, 0), (share, share)), density=1.0)
        made = make_synthetic_cohort(task, 12, 0, instances=(800, 1600), dim=8)
        return float(np.mean([to_next_tumour(bag) for bag, label in made.bags if label]))

    distances = [distance(share) for share in (0.0, 0.5, 1.0)]
    assert distances[0] > distances[1] > distances[2] >= 1


def test_immune_cells_stand_inside_or_at_the_border() -> None:
    made = make_synthetic_cohort("margin", 8, 0, difficulty="easy", instances=(1500, 3000))
    for number in range(8):
        near = []
        for label in (0, 1):
            drawn = draw_truth(made.settings, 0, number, label)
            tumour, immune = (np.asarray(drawn.kinds == kind, float) for kind in (3, 4))
            near.append(
                immune @ average_neighborhood(drawn.positions, tumour, 1.5)[0] / immune.sum()
            )
        excluded, infiltrated = near
        assert infiltrated > 1.5 * excluded


def test_subtypes_differ_in_their_mixture_and_may_be_three() -> None:
    task = Subtype(classes=("a", "b", "c"), own=20, other=1)
    made = make_synthetic_cohort(task, 30, 0, **SMALL)
    assert [slide.label for slide in made.table.slides] == [0, 1, 2] * 10
    for number, slide in enumerate(made.table.slides):
        tumour = draw_truth(made.settings, 0, number, slide.label).counts[3:]
        assert tumour.argmax() == slide.label


# Patients, sites, folders


@pytest.mark.parametrize("most", [1, 2, 3])
@pytest.mark.parametrize("classes", [2, 3])
def test_a_patient_has_one_label_one_site_and_no_more_slides_than_requested(
    most: int, classes: int
) -> None:
    task = Subtype(classes=tuple("abc"[:classes]))
    period = most * (most + 1) // 2 * classes * 2
    made = make_synthetic_cohort(task, 3 * period, 0, slides_per_patient=most, sites=2)
    patients: dict[str, list] = {}
    for slide in made.table.slides:
        patients.setdefault(slide.patient_id, []).append(slide)
    assert {len(slides) for slides in patients.values()} == set(range(1, most + 1))
    assert all(len({(s.label, s.site) for s in slides}) == 1 for slides in patients.values())
    groups = [(len(slides), slides[0].label, slides[0].site) for slides in patients.values()]
    numbers = [groups.count(group) for group in set(groups)]
    assert len(numbers) == most * classes * 2, "every slide count, label and site meet"
    assert len({slide.slide_id for slide in made.table.slides}) == 3 * period


def test_how_many_slides_a_patient_has_and_where_says_nothing_of_the_label() -> None:
    made = make_synthetic_cohort("cluster", 36, 0, slides_per_patient=2, sites=3)
    seen = {(slide.label, slide.site) for slide in made.table.slides}
    assert len(seen) == 6
    labels = [slide.label for slide in made.table.slides]
    assert labels.count(0) == labels.count(1)


def test_a_written_cohort_is_bags_and_a_table(tmp_path: Path) -> None:
    made = make_synthetic_cohort("margin", 6, 0, slides_per_patient=2, sites=2, **SMALL)
    calls = []
    returned = write_synthetic_cohort(made, tmp_path, on_progress=lambda *call: calls.append(call))
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["slide_id", "patient_id", "label", "site"]
    assert returned == made.table
    assert [row["label"] for row in rows] == [made.classes[s.label] for s in returned.slides]
    for row, (bag, _) in zip(rows, made.bags, strict=True):
        stored = read_bag(tmp_path / "bags" / f"{row['slide_id']}.h5")
        np.testing.assert_array_equal(stored.features, bag.features)
        np.testing.assert_array_equal(stored.labels, bag.labels)
        assert stored.provenance == bag.provenance
    assert calls[-1] == ("writing bags", 6, 6)
    assert len(list((tmp_path / "bags").iterdir())) == 6


def test_a_table_of_one_site_has_no_column_for_it(tmp_path: Path) -> None:
    write_synthetic_cohort(make_synthetic_cohort("cluster", 2, 0, **SMALL), tmp_path)
    assert (tmp_path / "table.csv").read_text().splitlines()[0] == "slide_id,patient_id,label"


def test_bags_behave_as_a_sequence() -> None:
    bags = make_synthetic_cohort("cluster", 5, 0, **SMALL).bags
    assert len(bags) == 5
    assert bags[-1].bag.slide_id == bags[4].bag.slide_id
    assert [label for _, label in bags[1:3]] == [1, 0]
    with pytest.raises(IndexError):
        bags[5]


# Oracles


@pytest.mark.parametrize("task", mostly_slow(CLASSES, "cluster", "margin", "which_side"))
def test_the_oracle_solves_an_easy_cohort_and_less_of_a_hard_one(task: str) -> None:
    sizes = (250, 500) if task in SLIDE_SCALE else (500, 1000)
    easy, hard = (
        make_synthetic_cohort(task, 30, 0, difficulty=level, instances=sizes, dim=8)
        for level in ("easy", "hard")
    )
    easy_auc = easy.compute_oracle_auc()
    assert easy.compute_oracle_metrics() == {"auc": easy_auc}
    assert min(easy_auc, easy.compute_oracle_auc(oracle_input="truth")) > 0.97
    assert easy_auc - 0.02 > hard.compute_oracle_auc() > 0.55


@pytest.mark.parametrize("task", mostly_slow(SPATIAL, "cluster"))
def test_the_oracle_is_at_chance_once_the_features_are_shuffled_over_the_places(
    task: str,
) -> None:
    made = make_synthetic_cohort(task, 60, 1, difficulty="easy", instances=(200, 400), dim=8)
    random = np.random.default_rng(0)
    scores = [
        compute_oracle_scores(
            replace(bag, features=random.permutation(bag.features)), made.settings, 1
        )[1]
        for bag, _ in made.bags
    ]
    auc = roc_auc_score([slide.label for slide in made.table.slides], scores)
    assert abs(auc - 0.5) < 0.2


@pytest.mark.parametrize("task", mostly_slow(SPATIAL, "cluster"))
def test_a_label_given_at_random_cannot_be_reported(task: str) -> None:
    """The statistic reads the places, not the slide's number or size."""
    made = make_synthetic_cohort(task, 60, 1, difficulty="easy", instances=(200, 400), dim=8)
    scores = [
        compute_oracle_scores(make_labeled_bag(made.settings, 1, n, label=0).bag, made.settings, 1)[
            1
        ]
        for n in range(60)
    ]
    assert abs(roc_auc_score([n % 2 for n in range(60)], scores) - 0.5) < 0.2


def test_the_ceiling_of_three_classes_is_the_mean_area_of_each_against_the_rest() -> None:
    made = make_synthetic_cohort(Subtype(classes=("a", "b", "c"), contrast=1.0), 30, 0, **SMALL)
    scores = np.array([compute_oracle_scores(bag, made.settings, 0) for bag, _ in made.bags])
    labels = np.array([slide.label for slide in made.table.slides])
    one_by_one = [roc_auc_score(labels == c, scores[:, c]) for c in range(3)]
    assert made.compute_oracle_auc() == pytest.approx(np.mean(one_by_one), abs=1e-12)


def test_shares_of_a_mixture_are_found_from_its_features() -> None:
    random = np.random.default_rng(0)
    task = Subtype(contrast=3.0)
    means = task.make_prototypes(8, random)
    kinds = random.choice(5, 20_000, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    believed = compute_kind_probabilities(means[kinds] + random.standard_normal((20_000, 8)), means)
    np.testing.assert_allclose(believed.mean(0), [0.4, 0.3, 0.15, 0.1, 0.05], atol=0.02)
    np.testing.assert_allclose(believed.sum(1), 1)


def test_shares_of_certain_cells_are_their_weighted_counts() -> None:
    kinds = np.array([0, 0, 1, 2])
    np.testing.assert_allclose(estimate_kind_shares(np.eye(3)[kinds]), [0.5, 0.25, 0.25])
    weighted = estimate_kind_shares(np.eye(3)[kinds], np.array([1.0, 1, 6, 0]))
    np.testing.assert_allclose(weighted, [0.25, 0.75, 0])


def test_an_average_around_a_position_is_over_tissue_only() -> None:
    places = make_tissue_coords(500, 0)
    constant, _ = average_neighborhood(places, np.full(500, 3.0), 2.0, include_self=False)
    np.testing.assert_allclose(constant, 3)
    single = np.zeros(500)
    single[7] = 1
    assert average_neighborhood(places, single, 1.0)[0][7] > 0.1
    without_self, _ = average_neighborhood(places, single, 1.0, include_self=False)
    assert without_self[7] == pytest.approx(0, abs=1e-12)


# Shapes


def square(side: float = 2.0) -> np.ndarray:
    return np.array([[0, 0], [side, 0], [side, side], [0, side]], float) - side / 2


def test_the_distance_to_a_polygon_is_negative_inside() -> None:
    points = np.array([[0, 0], [0.9, 0], [1.5, 0], [2, 2], [0.25, -0.5]])
    np.testing.assert_allclose(
        _compute_exact_distance(points, square()), [-1, -0.1, 0.5, np.sqrt(2), -0.5], atol=1e-12
    )
    reversed_corners = _compute_exact_distance(points, square()[::-1])
    np.testing.assert_allclose(reversed_corners, _compute_exact_distance(points, square()))


@pytest.mark.parametrize("outlines", [(), (square(700),)])
def test_as_many_places_are_inside_a_lesion_as_its_area_says(outlines) -> None:
    whole = np.argwhere(np.ones((120, 120)))
    middle = whole[((whole > 40) & (whole < 80)).all(1)]
    for seed in range(5):
        random = np.random.default_rng(seed)
        centred = np.concatenate([middle[:1], whole])
        away = compute_lesion_distances(centred, np.array([400.0]), random, outlines)
        assert (away < 0).sum() == pytest.approx(400, rel=0.75)
        inside = centred[np.argsort(away)[:400]]
        assert np.linalg.norm(inside - inside.mean(0), axis=1).max() < 45


def test_a_given_outline_shapes_the_lesion() -> None:
    """A bar ten times as long as wide stays one, whichever way it is turned."""
    bar = np.array([[0, 0], [1000, 0], [1000, 100], [0, 100]], float) + 50_000
    task = Metastasis(lesions=1, density=1.0, lesion_share=(0.03, 0.03))
    drawn_long, blob_long = (
        np.median([elongation(made, number) for number in range(1, 30, 2)])
        for made in (
            make_synthetic_cohort(task, 30, 0, instances=(4000, 4000), outlines=outlines)
            for outlines in ((bar,), ())
        )
    )
    assert drawn_long > 4 > 2.5 > blob_long


def elongation(made: SyntheticCohort, number: int) -> float:
    drawn = draw_truth(made.settings, made.seed, number, 1)
    values = np.linalg.eigvalsh(np.cov(drawn.positions[drawn.kinds == 3].T))
    return float(np.sqrt(values[1] / values[0]))


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_outlines_are_read_and_those_without_area_left_out(tmp_path: Path, pack) -> None:
    line, point = [[0, 0], [5, 5], [9, 9]], [[3, 3]]
    slides = {"a": {"positive": [square().tolist(), line, point], "negative": [line]}}
    (tmp_path / "outlines").write_bytes(pack(json.dumps(slides).encode()))
    (outline,) = read_shapes(tmp_path / "outlines")
    np.testing.assert_array_equal(outline, square())


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"a": 1}',
        b'{"a": {"positive": [["x"]]}}',
        b'{"a": {"positive": [[1, 2, 3]]}}',
        b'{"a": {"positive": [[[0, 0, 0], [1, 1, 1], [2, 0, 1]]]}}',
        b'{"a": {"positive": [[[0, 0], [1, 1], [2, null]]]}}',
        b"\x1f\x8bbroken",
        b"\xff\xfe",
    ],
)
def test_what_holds_no_outlines_is_rejected_by_name(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "outlines.json"
    file.write_bytes(content)
    with pytest.raises(CohortError, match=r"outlines\.json"):
        read_shapes(file)


# What is rejected


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: make_synthetic_cohort("clustr", 2, 0), "did you mean 'cluster'"),
        (lambda: make_synthetic_cohort("cluster", 2, 0, difficulty="hrd"), "did you mean 'hard'"),
        (lambda: make_synthetic_cohort("cluster", 0, 0), "1 slide or more"),
        (lambda: make_synthetic_cohort("cluster", 2, -1), "seed -1"),
        (lambda: make_synthetic_cohort("cluster", 2, 0, instances=(900, 300)), "fewest and most"),
        (lambda: make_synthetic_cohort("cluster", 2, 0, instances=(2, 300)), "at least 20"),
        (lambda: make_synthetic_cohort("margin", 2, 0, dim=3), "5 kinds"),
        (lambda: make_synthetic_cohort("margin", 2, 0, sites=0), "sites 0"),
        (
            lambda: make_synthetic_cohort("subtype", 2, 0, outlines=(square(),)),
            "has no lesions",
        ),
        (lambda: SyntheticBagSettings(task=Cluster(), slides_per_patient=0), "1 or more"),
        (lambda: Cluster(zones=0), "1 to 4"),
        (lambda: Cluster(contrast=-1), "0 or more"),
        (lambda: Cluster(density=0), "density"),
        (lambda: Cluster(tumour_share=(0.5, 0.1)), "tumour_share"),
        (lambda: Cluster(clusteredness=((0, 0), (0, 2))), "clusteredness"),
        (lambda: Metastasis(lesion_share=(0, 0.1)), "lesion_share"),
        (lambda: Metastasis(lesion_share=(0.1, 0.7), mimic_share=(0.1, 0.4)), "do not fit"),
        (lambda: Metastasis(lesions=0), "lesions"),
        (lambda: Margin(tumour_share=(0.1, 0.9)), "do not fit"),
        (lambda: Subtype(classes=("a",)), "two classes"),
    ],
)
def test_a_wrong_setting_is_rejected_with_what_was_expected(call, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        call()
