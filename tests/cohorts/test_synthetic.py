"""The cluster cohort: the label is in the places of the tumour and nowhere else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.spatial import cKDTree

from sacmil.bag import Bag
from sacmil.cohorts.synthetic import LabelledBag, cluster
from sacmil.formats import write_bag


@pytest.fixture(scope="module")
def cohort() -> list[LabelledBag]:
    return cluster(20, seed=3)


def written(folder: Path, seed: int) -> list[bytes]:
    folder.mkdir()
    for bag, _ in cluster(3, seed=seed):
        write_bag(folder / f"{bag.slide_id}.h5", bag)
    return [file.read_bytes() for file in sorted(folder.iterdir())]


def to_next_tumour(bag: Bag) -> float:
    places = bag.patch_coords[bag.labels == 1]
    distance, _ = cKDTree(places).query(places, k=2)
    return float(distance[:, 1].mean())


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    assert written(tmp_path / "a", 7) == written(tmp_path / "b", 7)
    assert not set(written(tmp_path / "c", 7)) & set(written(tmp_path / "d", 8))


def test_a_larger_cohort_begins_with_the_smaller_one(cohort: list[LabelledBag]) -> None:
    for few, many in zip(cluster(4, seed=3), cohort, strict=False):
        np.testing.assert_array_equal(few.bag.features, many.bag.features)


def test_labels_alternate_and_names_are_unique(cohort: list[LabelledBag]) -> None:
    assert [label for _, label in cohort] == [0, 1] * 10
    assert len({bag.slide_id for bag, _ in cohort}) == 20


def test_every_slide_has_exactly_its_share_of_tumour(cohort: list[LabelledBag]) -> None:
    for bag, _ in cohort:
        assert bag.labels is not None
        assert bag.labels.sum() == round(0.1 * len(bag))


def test_sizes_stay_within_what_was_asked() -> None:
    sizes = [len(bag) for bag, _ in cluster(30, seed=0, instances=(40, 43))]
    assert set(sizes) == {40, 41, 42, 43}


def test_clustered_tumour_stands_nearer_together_on_every_slide(cohort: list[LabelledBag]) -> None:
    scattered = [to_next_tumour(bag) for bag, label in cohort if not label]
    clustered = [to_next_tumour(bag) for bag, label in cohort if label]
    assert max(clustered) < min(scattered)


def test_tumour_features_stand_apart_by_the_contrast(cohort: list[LabelledBag]) -> None:
    features = np.concatenate([bag.features for bag, _ in cohort])
    truth = np.concatenate([bag.labels for bag, _ in cohort])
    apart = features[truth == 1].mean(0) - features[truth == 0].mean(0)
    assert np.linalg.norm(apart) == pytest.approx(2, abs=0.2)


def test_composition_is_equal_between_the_classes(cohort: list[LabelledBag]) -> None:
    """The mean vector differs by no more between classes than within one."""
    means = np.array([bag.features.mean(0) for bag, _ in cohort])
    labels = np.array([label for _, label in cohort])
    between = np.linalg.norm(means[labels == 1].mean(0) - means[labels == 0].mean(0))
    halves = np.linalg.norm(means[:10].mean(0) - means[10:].mean(0))
    assert between < 2 * halves


@pytest.mark.parametrize("contrast", [0.0, 4.0])
def test_contrast_changes_features_and_no_place(contrast: float) -> None:
    (one, _), (other, _) = cluster(2, seed=1)[1], cluster(2, seed=1, contrast=contrast)[1]
    np.testing.assert_array_equal(one.coords, other.coords)
    np.testing.assert_array_equal(one.labels, other.labels)
    assert not np.array_equal(one.features, other.features)
