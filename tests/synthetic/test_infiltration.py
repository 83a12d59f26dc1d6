"""Infiltration as a number and as a grade: only positions decide, and the oracle reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from exhaustive import mostly_slow
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import cross_val_predict

from sacmil.cohorts.cohort import read_cohort
from sacmil.errors import ConfigError
from sacmil.metrics.regression import spearman
from sacmil.synthetic.bags import (
    PRESETS,
    Infiltration,
    SyntheticCohort,
    compute_oracle_scores,
    draw_truth,
    make_labeled_bag,
    make_synthetic_cohort,
    write_synthetic_cohort,
)
from sacmil.synthetic.bags.infiltration import GRADES
from sacmil.tasks import Ordinal, Regression

SMALL = {"instances": (200, 400), "dim": 8}
TASKS = ("infiltration", "infiltration_grade")
ENDS = {"infiltration": ((0.0,), (1.0,)), "infiltration_grade": (0, 3)}
TUMOUR, IMMUNE = 3, 4


def make_easy(task: str = "infiltration", slides: int = 60, seed: int = 1) -> SyntheticCohort:
    return make_synthetic_cohort(task, slides, seed, difficulty="easy", **SMALL)


def share_inside(made: SyntheticCohort, number: int, label: object) -> float:
    """Return the share of immune cells on positions where all are if all are inside."""
    all_inside, own = (
        draw_truth(made.settings, made.seed, number, given).kinds == IMMUNE
        for given in ((1.0,), label)
    )
    return float((all_inside & own).sum() / own.sum())


# The label


def test_the_value_is_a_number_of_the_table_and_the_grade_a_level() -> None:
    value, grade = (make_easy(task, slides=8).table for task in TASKS)
    assert value.task == Regression("infiltration")
    assert value.classes == ()
    assert all(slide.targets == (round(slide.targets[0], 3),) for slide in value.slides)
    assert grade.task == Ordinal(GRADES)
    assert [slide.label for slide in grade.slides] == [0, 1, 2, 3] * 2


def test_values_are_spread_over_the_span() -> None:
    task = Infiltration(infiltration=(0.2, 0.6))
    values = make_synthetic_cohort(task, 400, 0).table.targets[:, 0]
    assert 0.2 <= values.min() < 0.21
    assert 0.59 < values.max() <= 0.6
    assert values.mean() == pytest.approx(0.4, abs=0.02)


def test_a_larger_cohort_begins_with_the_values_of_a_smaller_one() -> None:
    few, many = (make_easy(slides=n).table.targets for n in (5, 20))
    np.testing.assert_array_equal(few, many[:5])
    assert not np.isin(few, make_easy(slides=5, seed=2).table.targets).any()


def test_a_patient_has_one_value() -> None:
    made = make_synthetic_cohort("infiltration", 60, 0, slides_per_patient=3, sites=2, **SMALL)
    values: dict[str, set] = {}
    for slide in made.table.slides:
        values.setdefault(slide.patient_id, set()).add((slide.label, slide.site))
    assert all(len(found) == 1 for found in values.values())
    assert len({label for ((label, _),) in values.values()}) > 25
    assert {site for ((_, site),) in values.values()} == {"site-0", "site-1"}


def test_the_label_is_the_share_of_immune_cells_inside() -> None:
    made = make_synthetic_cohort("infiltration", 6, 0, difficulty="easy", instances=(2000, 4000))
    for number, (_, label) in enumerate(made.bags):
        assert share_inside(made, number, label) == pytest.approx(label[0], abs=0.01)


def test_a_grade_is_a_span_of_the_share() -> None:
    task = Infiltration(contrast=4, stray=0, classes=("low", "mid", "high"))
    made = make_synthetic_cohort(task, 15, 0, instances=(1000, 2000))
    for number, (_, label) in enumerate(made.bags):
        low = label / 3
        assert low - 0.01 <= share_inside(made, number, label) <= low + 1 / 3 + 0.01


# What says nothing about the value


@settings(max_examples=25, deadline=None)
@given(
    task=st.sampled_from(TASKS),
    difficulty=st.sampled_from(["easy", "medium", "hard"]),
    seed=st.integers(0, 10**6),
    size=st.integers(20, 1500),
)
def test_any_two_values_have_the_very_same_features_tissue_and_tumour(
    task: str, difficulty: str, seed: int, size: int
) -> None:
    """So no function of only the features, or of where tumour is, can predict the value."""
    made = make_synthetic_cohort(
        task, 1, seed, difficulty=difficulty, instances=(size, size), dim=8
    )
    one, other = (make_labeled_bag(made.settings, seed, 0, label=end).bag for end in ENDS[task])
    np.testing.assert_array_equal(one.coords, other.coords)
    np.testing.assert_array_equal(one.labels, other.labels)
    in_order = [bag.features[np.lexsort(bag.features.T)] for bag in (one, other)]
    np.testing.assert_array_equal(*in_order)


@pytest.mark.parametrize("task", TASKS)
def test_what_decides_is_which_feature_is_where(task: str) -> None:
    made = make_easy(task, slides=1)
    one, other = (make_labeled_bag(made.settings, 1, 0, label=end).bag for end in ENDS[task])
    assert not np.array_equal(one.features, other.features)


def predict_by_mean_feature(made: SyntheticCohort) -> float:
    """Return the rank correlation of the value with a prediction from the mean feature."""
    means = [bag.features.mean(0) for bag, _ in made.bags]
    values = made.table.targets[:, 0]
    return spearman(values, cross_val_predict(RidgeCV(np.logspace(-6, 3, 10)), means, values, cv=5))


@pytest.mark.parametrize("task", TASKS)
def test_the_mean_feature_says_nothing_of_the_value(task: str) -> None:
    assert abs(predict_by_mean_feature(make_easy(task, slides=80))) < 0.3


@pytest.mark.parametrize("task", TASKS)
def test_the_mean_feature_would_say_it_if_counts_followed_the_value(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the test above would find a leak."""
    draw = Infiltration.draw_other_counts

    def draw_more(self: Infiltration, n: int, label: object, random: np.random.Generator) -> list:
        tumour, immune = draw(self, n, label, random)
        share = label[0] if isinstance(label, tuple) else label / 3
        return [tumour, max(1, round(immune * (0.3 + 0.7 * share)))]

    monkeypatch.setattr(Infiltration, "draw_other_counts", draw_more)
    assert predict_by_mean_feature(make_easy(task, slides=80)) > 0.4


# The oracle


def test_the_oracle_knows_an_easy_value_and_less_of_a_hard_one() -> None:
    easy, hard = (
        make_synthetic_cohort(
            "infiltration", 40, 0, difficulty=level, instances=(800, 1600), dim=8
        ).compute_oracle_metrics()
        for level in ("easy", "hard")
    )
    assert easy["r2"] > 0.93
    assert easy["spearman"] > 0.97
    assert easy["r2"] - 0.05 > hard["r2"] > 0.6


def test_the_oracle_knows_an_easy_grade_and_less_of_a_hard_one() -> None:
    easy, hard = (
        make_synthetic_cohort(
            "infiltration_grade", 40, 0, difficulty=level, instances=(800, 1600), dim=8
        ).compute_oracle_metrics()
        for level in ("easy", "hard")
    )
    assert easy["kappa"] - 0.03 > hard["kappa"] > 0.6
    assert easy["kappa"] > 0.9
    assert easy["mae"] < hard["mae"] < 0.7


@pytest.mark.parametrize("difficulty", mostly_slow(["easy", "medium", "hard"], "easy"))
def test_the_oracle_of_true_kinds_is_on_the_scale_of_the_value(difficulty: str) -> None:
    made = make_synthetic_cohort(
        "infiltration", 40, 0, difficulty=difficulty, instances=(1500, 3000)
    )
    labels = np.concatenate([label for _, label in made.bags])
    estimates = [made._score_by_truth(n, (label,))[0] for n, label in enumerate(labels)]
    slope, start = np.polyfit(labels, estimates, 1)
    assert slope == pytest.approx(1, abs=0.12)
    assert start == pytest.approx(0, abs=0.08)
    assert made.compute_oracle_metrics(oracle_input="truth")["r2"] > 0.93


def test_the_oracle_reads_positions_and_not_features() -> None:
    made, random = make_easy(), np.random.default_rng(0)
    estimates = [
        compute_oracle_scores(
            replace(bag, features=random.permutation(bag.features)), made.settings, 1
        )[0]
        for bag, _ in made.bags
    ]
    assert abs(spearman(made.table.targets[:, 0], estimates)) < 0.3


def test_the_oracle_does_not_know_the_value_that_a_slide_would_have() -> None:
    made = make_easy()
    bags = [make_labeled_bag(made.settings, 1, n, label=(0.5,)).bag for n in range(60)]
    estimates = [compute_oracle_scores(bag, made.settings, 1)[0] for bag in bags]
    assert abs(spearman(made.table.targets[:, 0], estimates)) < 0.3


@pytest.mark.parametrize("task", TASKS)
def test_a_number_has_no_auc(task: str) -> None:
    with pytest.raises(ConfigError, match="infiltration has no AUC; call compute_oracle_metrics"):
        make_easy(task, slides=8).compute_oracle_auc()


# Folders


@pytest.mark.parametrize(
    ("task", "target"),
    [("infiltration", {"targets": "infiltration"}), ("infiltration_grade", {"order": GRADES})],
)
def test_a_written_table_is_read_as_the_same_cohort(
    tmp_path: Path, task: str, target: dict
) -> None:
    made = make_synthetic_cohort(task, 12, 0, slides_per_patient=2, sites=2, **SMALL)
    write_synthetic_cohort(made, tmp_path)
    assert read_cohort(tmp_path / "table.csv", site="site", **target) == made.table


def test_a_table_names_the_target(tmp_path: Path) -> None:
    write_synthetic_cohort(make_easy(slides=2), tmp_path)
    header, first, _ = (tmp_path / "table.csv").read_text().splitlines()
    assert header == "slide_id,patient_id,infiltration"
    assert first.startswith("infiltration-1-000,patient-1-000,0.")


def test_both_are_in_the_presets_with_the_same_settings() -> None:
    for level in ("easy", "medium", "hard"):
        value, grade = (PRESETS[task][level] for task in TASKS)
        assert grade == replace(value, classes=GRADES)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"infiltration": (0.5, 0.2)}, "lowest and highest share"),
        ({"infiltration": (0.5, 1.2)}, "lowest and highest share"),
        ({"stray": 1.0}, "0 or more and below 1"),
        ({"classes": ("one",)}, "expected two or more"),
        ({"tumour_share": (0.1, 0.9)}, "do not fit"),
    ],
)
def test_a_wrong_setting_is_rejected_with_what_was_expected(given: dict, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        Infiltration(**given)
