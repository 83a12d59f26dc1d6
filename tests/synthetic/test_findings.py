"""Several findings on a slide: each is in its own area, and none depends on another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from math import isnan
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import cross_val_predict

from sacmil.cohorts.cohort import read_cohort
from sacmil.errors import ConfigError
from sacmil.synthetic.bags import (
    PRESETS,
    Cluster,
    Findings,
    Metastasis,
    SyntheticCohort,
    compute_oracle_scores,
    draw_truth,
    make_labeled_bag,
    make_synthetic_cohort,
    write_synthetic_cohort,
)
from sacmil.synthetic.bags.cohort import make_prototypes
from sacmil.synthetic.bags.findings import LABELS, split_slide
from sacmil.tasks import MultiLabel

SMALL = {"instances": (300, 600), "dim": 8}
COMBINATIONS = [tuple(map(float, f"{n:03b}"[::-1])) for n in range(8)]


def make_easy(slides: int = 64) -> SyntheticCohort:
    return make_synthetic_cohort("findings", slides, 1, difficulty="easy", **SMALL)


def flip(label: tuple[float, ...], finding: int) -> tuple[float, ...]:
    return tuple(1 - own if n == finding else own for n, own in enumerate(label))


# Labels


def test_every_combination_of_findings_is_equally_frequent() -> None:
    table = make_easy().table
    assert table.task == MultiLabel(LABELS)
    assert Counter(slide.label for slide in table.slides) == dict.fromkeys(COMBINATIONS, 8)
    np.testing.assert_allclose(np.corrcoef(table.targets.T), np.eye(3), atol=1e-12)


def test_a_patient_has_the_same_findings_on_all_slides() -> None:
    made = make_synthetic_cohort(
        Findings(missing=0.4), 96, 0, slides_per_patient=2, sites=2, **SMALL
    )
    rows = {(slide.patient_id, repr(slide.label), slide.site) for slide in made.table.slides}
    assert len({patient for patient, *_ in rows}) == len(rows) == 64


@pytest.mark.parametrize("missing", [0.0, 0.3, 1.0])
def test_as_many_cells_are_missing_as_the_setting_says_but_no_whole_row(missing: float) -> None:
    made = make_synthetic_cohort(Findings(missing=missing), 800, 0)
    is_missing = np.isnan(made.table.targets)
    assert not is_missing.all(axis=1).any()
    kept = missing**3 / 3  # one of the three, of what would be an empty row
    assert is_missing.mean() == pytest.approx(missing - kept, abs=0.02)
    truth = np.array([COMBINATIONS[n % 8] for n in range(800)])
    np.testing.assert_array_equal(made.table.targets[~is_missing], truth[~is_missing])


def test_a_missing_cell_changes_no_bag() -> None:
    whole, some = (
        make_synthetic_cohort(Findings(missing=missing), 4, 0, **SMALL) for missing in (0.0, 0.9)
    )
    for (one, label), (other, again) in zip(whole.bags, some.bags, strict=True):
        assert label == again
        np.testing.assert_array_equal(one.features, other.features)
    assert whole.compute_oracle_metrics() == pytest.approx(
        some.compute_oracle_metrics(), nan_ok=True
    )


# Areas


@settings(max_examples=25, deadline=None)
@given(
    difficulty=st.sampled_from(["easy", "medium", "hard"]),
    seed=st.integers(0, 10**6),
    size=st.integers(60, 900),
    label=st.sampled_from(COMBINATIONS),
)
def test_each_finding_has_its_cells_in_its_area(
    difficulty: str, seed: int, size: int, label: tuple[float, ...]
) -> None:
    made = make_synthetic_cohort(
        "findings", 1, seed, difficulty=difficulty, instances=(size, size), dim=8
    )
    truth = draw_truth(made.settings, seed, 0, label)
    np.testing.assert_array_equal(np.bincount(truth.kinds, minlength=8), truth.counts)
    for inside, own in zip(split_slide(truth.positions[:, 0]), ({3}, {4, 5}, {6, 7}), strict=True):
        assert set(truth.kinds[inside].tolist()) <= {0, 1, 2} | own
    assert bool(truth.counts[6]) == bool(label[2])


def test_given_outlines_shape_the_lesions_of_every_area() -> None:
    bar = np.array([[0, 0], [1000, 0], [1000, 100], [0, 100]], float)
    blobs, bars = (
        make_synthetic_cohort("findings", 1, 0, instances=(900, 900), dim=8, outlines=outlines)
        for outlines in ((), (bar,))
    )
    one, other = (draw_truth(made.settings, 0, 0, (1.0, 1.0, 1.0)) for made in (blobs, bars))
    for kind in (3, 4, 6):
        assert (one.kinds == kind).tolist() != (other.kinds == kind).tolist()
    assert bars.bags[0].bag.provenance["synthetic"]["task"]["outlines"] == 1


def test_kinds_of_cells_are_named_by_their_finding() -> None:
    task = PRESETS["findings"]["easy"]
    assert [task.kinds[kind] for kind in task.tumor_kinds] == [f"tumour ({n})" for n in LABELS]
    assert task.kinds[:3] == PRESETS["cluster"]["easy"].kinds[:3]
    assert {"immune (infiltrated)", "mimic (metastasis)"} < set(task.kinds)


def test_only_the_mimic_is_between_healthy_tissue_and_its_tumour() -> None:
    task = Findings(metastasis=Metastasis(likeness=0.7))
    made = make_synthetic_cohort(task, 1, 0, **SMALL)
    means = make_prototypes(made.settings, 0)
    away = means[6] - means[:3].mean(0)
    np.testing.assert_allclose(means[7], means[:3].mean(0) + 0.7 * away)


@settings(max_examples=25, deadline=None)
@given(
    difficulty=st.sampled_from(["easy", "medium", "hard"]),
    seed=st.integers(0, 10**6),
    label=st.sampled_from(COMBINATIONS),
    finding=st.integers(0, 2),
)
def test_a_finding_changes_the_cells_of_no_other(
    difficulty: str, seed: int, label: tuple[float, ...], finding: int
) -> None:
    made = make_synthetic_cohort("findings", 1, seed, difficulty=difficulty, **SMALL)
    one, other = (draw_truth(made.settings, seed, 0, own) for own in (label, flip(label, finding)))
    kinds = ({3}, {4, 5}, {6, 7})
    others = list(set(range(3, 8)) - kinds[finding])
    for kind in others:
        np.testing.assert_array_equal(one.kinds == kind, other.kinds == kind)
    assert any(
        (one.kinds == kind).tolist() != (other.kinds == kind).tolist() for kind in kinds[finding]
    )


# What says nothing about clusters and infiltration


@settings(max_examples=25, deadline=None)
@given(
    difficulty=st.sampled_from(["easy", "medium", "hard"]),
    seed=st.integers(0, 10**6),
    label=st.sampled_from(COMBINATIONS),
    finding=st.integers(0, 1),
)
def test_clusters_and_infiltration_change_no_feature(
    difficulty: str, seed: int, label: tuple[float, ...], finding: int
) -> None:
    """So no function of only the features, in any order, can predict them."""
    made = make_synthetic_cohort("findings", 1, seed, difficulty=difficulty, **SMALL)
    one, other = (
        make_labeled_bag(made.settings, seed, 0, label=own).bag
        for own in (label, flip(label, finding))
    )
    np.testing.assert_array_equal(one.coords, other.coords)
    in_order = [bag.features[np.lexsort(bag.features.T)] for bag in (one, other)]
    np.testing.assert_array_equal(*in_order)
    assert not np.array_equal(one.features, other.features)


def test_the_mean_feature_is_at_chance_where_arrangement_decides_and_above_for_a_lesion() -> None:
    """The metastasis is the control: it adds cells, and the test finds them."""
    made = make_easy(80)
    means = [bag.features.mean(0) for bag, _ in made.bags]
    aucs = []
    for truth in made.table.targets.T:
        model = LogisticRegression(C=100)
        scores = cross_val_predict(model, means, truth, cv=5, method="predict_proba")[:, 1]
        aucs.append(float(roc_auc_score(truth, scores)))
    assert abs(aucs[0] - 0.5) < 0.2
    assert abs(aucs[1] - 0.5) < 0.2
    assert aucs[2] > 0.75


# The oracle


def test_the_oracle_knows_easy_findings_and_less_of_hard_ones() -> None:
    easy, hard = (
        make_synthetic_cohort(
            "findings", 40, 0, difficulty=level, instances=(500, 1000), dim=8
        ).compute_oracle_metrics()
        for level in ("easy", "hard")
    )
    assert list(easy) == ["auc", *(f"auc_{name}" for name in LABELS)]
    assert easy["auc"] == pytest.approx(np.mean(list(easy.values())[1:]))
    for name in list(easy)[1:]:
        assert easy[name] > 0.95
        assert easy[name] - 0.05 > hard[name] > 0.5


@pytest.mark.slow
def test_each_score_of_the_oracle_is_about_its_own_finding() -> None:
    made = make_easy()
    scores = np.array([compute_oracle_scores(bag, made.settings, 1) for bag, _ in made.bags])
    targets = made.table.targets
    aucs = np.array([[roc_auc_score(t, s) for s in scores.T] for t in targets.T])
    assert np.diag(aucs).min() > 0.9
    assert np.abs(aucs[~np.eye(3, dtype=bool)] - 0.5).max() < 0.25
    assert made.compute_oracle_auc() == pytest.approx(np.diag(aucs).mean())


@pytest.mark.slow
def test_shuffled_features_leave_the_oracle_at_chance_for_arrangement() -> None:
    made, random = make_easy(), np.random.default_rng(0)
    scores = np.array(
        [
            compute_oracle_scores(
                replace(bag, features=random.permutation(bag.features)), made.settings, 1
            )
            for bag, _ in made.bags
        ]
    )
    for finding in (0, 1):
        auc = roc_auc_score(made.table.targets[:, finding], scores[:, finding])
        assert abs(auc - 0.5) < 0.2


# Folders


def test_a_written_table_is_read_as_the_same_cohort(tmp_path: Path) -> None:
    task = Findings(missing=0.3)
    made = make_synthetic_cohort(task, 24, 0, slides_per_patient=2, sites=2, **SMALL)
    write_synthetic_cohort(made, tmp_path)
    found = read_cohort(tmp_path / "table.csv", labels=LABELS, site="site")
    assert found.task == made.table.task
    np.testing.assert_array_equal(found.targets, made.table.targets)
    assert [(s.slide_id, s.patient_id, s.site) for s in found.slides] == [
        (s.slide_id, s.patient_id, s.site) for s in made.table.slides
    ]
    assert any(isnan(value) for slide in found.slides for value in slide.targets)


def test_cells_are_one_zero_or_empty(tmp_path: Path) -> None:
    write_synthetic_cohort(make_synthetic_cohort(Findings(missing=0.5), 16, 0, **SMALL), tmp_path)
    header, *rows = (tmp_path / "table.csv").read_text().splitlines()
    assert header == "slide_id,patient_id,clustered,infiltrated,metastasis"
    assert {cell for row in rows for cell in row.split(",")[2:]} == {"0", "1", ""}


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: Findings(missing=1.5), "missing is 1.5; expected 0 to 1"),
        (lambda: make_synthetic_cohort("findings", 2, 0, instances=(30, 90)), "at least 60"),
        (lambda: make_synthetic_cohort("findings", 2, 0, dim=7), "8 kinds"),
        (lambda: Findings(clustered=Cluster(density=0)), "density"),
    ],
)
def test_a_wrong_setting_is_rejected_with_what_was_expected(
    call: Callable[[], object], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected):
        call()
