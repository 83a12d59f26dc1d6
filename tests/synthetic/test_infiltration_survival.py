"""Survival of synthetic patients: only positions decide the hazard, and the oracle reads them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import cross_val_predict

from sacmil.cohorts.cohort import read_cohort
from sacmil.errors import ConfigError
from sacmil.metrics.survival import harrell_c, kaplan_meier
from sacmil.synthetic.bags import (
    PRESETS,
    Infiltration,
    InfiltrationSurvival,
    SurvivalTruth,
    SyntheticCohort,
    compute_oracle_scores,
    draw_truth,
    make_labeled_bag,
    make_synthetic_cohort,
    write_synthetic_cohort,
)
from sacmil.synthetic.bags.infiltration_survival import find_follow_up
from sacmil.tasks import Survival

TASK = "infiltration_survival"
SMALL = {"instances": (100, 200), "dim": 8}
NONE_INSIDE, ALL_INSIDE = SurvivalTruth(3.0, 1.0, 0.0), SurvivalTruth(60.0, 0.0, 1.0)
IMMUNE = 4


def make_easy(slides: int = 80, seed: int = 1) -> SyntheticCohort:
    return make_synthetic_cohort(TASK, slides, seed, difficulty="easy", **SMALL)


@pytest.fixture(scope="module")
def patients() -> np.ndarray:
    """Return (n, 3) months, events and infiltration of many patients."""
    task, random = InfiltrationSurvival(), np.random.default_rng(0)
    return np.array([task.draw_label(0, random) for _ in range(4000)])


def log_hazards(shares: np.ndarray) -> np.ndarray:
    return np.array([InfiltrationSurvival().get_log_hazard(share) for share in shares])


# Times


def test_the_table_has_months_and_events() -> None:
    table = make_easy(slides=20).table
    assert isinstance(table.task, Survival)
    assert table.task.source_columns == ("OS_MONTHS", "OS_STATUS")
    assert table.task.unit == "months"
    months, events = table.targets.T
    assert (months > 0).all()
    assert set(events.tolist()) == {0.0, 1.0}


def test_two_of_five_patients_are_censored(patients: np.ndarray) -> None:
    assert 1 - patients[:, 1].mean() == pytest.approx(0.4, abs=0.02)


def test_the_true_hazard_has_a_c_of_0_75_to_0_8(patients: np.ndarray) -> None:
    months, events, shares = patients.T
    assert 0.75 < harrell_c(months, events, log_hazards(shares)) < 0.8


@pytest.mark.parametrize("low", [0.0, 0.4, 0.8])
def test_events_per_month_are_the_hazard(patients: np.ndarray, low: float) -> None:
    """Of an exponential time the estimate is the number of events by the months observed."""
    group = patients[(low <= patients[:, 2]) & (patients[:, 2] < low + 0.2)]
    expected = np.log(2) / 24 * np.exp(log_hazards(group[:, 2]))
    observed = group[:, 1].sum() / group[:, 0].sum()
    weighted = (expected * group[:, 0]).sum() / group[:, 0].sum()
    assert observed == pytest.approx(weighted, rel=0.1)


def test_censoring_depends_on_nothing(patients: np.ndarray) -> None:
    """Patients of high and of low hazard leave the study evenly, up to its end."""
    length = 24 / np.log(2) * find_follow_up(4.5, 0.4)
    for group in (patients[patients[:, 2] < 0.5], patients[patients[:, 2] >= 0.5]):
        curve = kaplan_meier(group[:, 0], 1 - group[:, 1])
        for share in (0.1, 0.3, 0.5):
            reached = np.searchsorted(curve.times, share * length, side="right") - 1
            assert curve.survival[reached] == pytest.approx(1 - share, abs=0.05)
    assert patients[:, 0].max() <= length + 0.01


@pytest.mark.parametrize(("ratio", "censored"), [(0.5, 0.2), (4.5, 0.4), (8.0, 0.7)])
def test_the_follow_up_censors_the_requested_share(ratio: float, censored: float) -> None:
    length = find_follow_up(ratio, censored)

    def share_censored(log_hazard: float) -> float:
        passed = length * np.exp(log_hazard)
        return -np.expm1(-passed) / passed

    total, _ = quad(share_censored, -ratio / 2, ratio / 2)
    assert total / ratio == pytest.approx(censored, abs=1e-4)


def test_without_an_effect_the_hazard_is_the_same_for_all() -> None:
    task = InfiltrationSurvival(log_hazard_ratio=0)
    assert task.get_log_hazard(0.1) == task.get_log_hazard(0.9) == 0
    assert InfiltrationSurvival(infiltration=(0.3, 0.3)).get_log_hazard(0.3) == 0


def test_a_larger_cohort_begins_with_the_patients_of_a_smaller_one() -> None:
    few, many = (make_easy(slides=n).table.targets for n in (5, 20))
    np.testing.assert_array_equal(few, many[:5])
    assert not np.isin(few[:, 0], make_easy(slides=5, seed=2).table.targets[:, 0]).any()


def test_a_patient_has_one_time() -> None:
    made = make_synthetic_cohort(TASK, 30, 0, slides_per_patient=3, sites=2, **SMALL)
    found: dict[str, set] = {}
    for slide in made.table.slides:
        found.setdefault(slide.patient_id, set()).add((slide.label, slide.site))
    assert len(found) < 30
    assert all(len(values) == 1 for values in found.values())


def test_the_infiltration_is_the_share_of_immune_cells_inside() -> None:
    made = make_synthetic_cohort(TASK, 4, 0, difficulty="easy", instances=(2000, 4000))
    for number, (_, truth) in enumerate(made.bags):
        all_inside, own = (
            draw_truth(made.settings, 0, number, label).kinds == IMMUNE
            for label in (ALL_INSIDE, truth)
        )
        share = (all_inside & own).sum() / own.sum()
        assert share == pytest.approx(truth.infiltration, abs=0.01)


# What says nothing about the hazard


@settings(max_examples=25, deadline=None)
@given(
    difficulty=st.sampled_from(["easy", "medium", "hard"]),
    seed=st.integers(0, 10**6),
    size=st.integers(20, 1500),
)
def test_any_two_hazards_have_the_very_same_features_tissue_and_tumour(
    difficulty: str, seed: int, size: int
) -> None:
    """So no function of only the features, or of where tumour is, can predict the time."""
    made = make_synthetic_cohort(
        TASK, 1, seed, difficulty=difficulty, instances=(size, size), dim=8
    )
    one, other = (
        make_labeled_bag(made.settings, seed, 0, label=label).bag
        for label in (NONE_INSIDE, ALL_INSIDE)
    )
    np.testing.assert_array_equal(one.coords, other.coords)
    np.testing.assert_array_equal(one.labels, other.labels)
    in_order = [bag.features[np.lexsort(bag.features.T)] for bag in (one, other)]
    np.testing.assert_array_equal(*in_order)


def test_what_decides_is_which_feature_is_where() -> None:
    made = make_easy(slides=1)
    one, other = (
        make_labeled_bag(made.settings, 1, 0, label=label).bag
        for label in (NONE_INSIDE, ALL_INSIDE)
    )
    assert not np.array_equal(one.features, other.features)


def c_of_mean_feature(made: SyntheticCohort) -> float:
    """Return the c of a rule that sees the mean feature, and learns the true hazard."""
    means, truths = zip(*((bag.features.mean(0), truth) for bag, truth in made.bags), strict=True)
    months, events, shares = np.transpose(truths)
    risks = cross_val_predict(RidgeCV(np.logspace(-6, 3, 10)), means, log_hazards(shares), cv=5)
    return harrell_c(months, events, risks)


def test_the_mean_feature_says_nothing_of_the_hazard() -> None:
    assert c_of_mean_feature(make_easy(slides=200)) == pytest.approx(0.5, abs=0.08)


def test_the_mean_feature_would_say_it_if_counts_followed_the_hazard(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The control: the test above would find a leak."""
    draw = InfiltrationSurvival.draw_other_counts

    def draw_more(
        self: InfiltrationSurvival, n: int, label: SurvivalTruth, random: np.random.Generator
    ) -> list:
        tumour, immune = draw(self, n, label, random)
        return [tumour, max(1, round(immune * (0.3 + 0.7 * label.infiltration)))]

    monkeypatch.setattr(InfiltrationSurvival, "draw_other_counts", draw_more)
    assert c_of_mean_feature(make_easy(slides=200)) > 0.65


# The oracle


@pytest.mark.slow
def test_the_oracle_knows_less_than_the_hazard_and_still_less_of_hard_slides() -> None:
    easy, hard = (
        make_synthetic_cohort(
            TASK, 120, 0, difficulty=level, instances=(300, 600), dim=8
        ).compute_oracle_metrics()
        for level in ("easy", "hard")
    )
    assert list(easy) == ["c", "c_true_hazard"]
    assert easy["c_true_hazard"] == hard["c_true_hazard"]
    assert easy["c_true_hazard"] + 0.01 > easy["c"] > hard["c"] + 0.02 > 0.6


@pytest.mark.slow
def test_the_oracle_reads_positions_and_not_features() -> None:
    made, random = make_easy(slides=150), np.random.default_rng(0)
    risks = [
        compute_oracle_scores(
            replace(bag, features=random.permutation(bag.features)), made.settings, 1
        )[0]
        for bag, _ in made.bags
    ]
    assert harrell_c(*made.table.targets.T, risks) == pytest.approx(0.5, abs=0.08)
    assert made.compute_oracle_metrics()["c"] > 0.65


def test_survival_has_no_auc() -> None:
    with pytest.raises(
        ConfigError, match="infiltration_survival has no AUC; call compute_oracle_m"
    ):
        make_easy(slides=8).compute_oracle_auc()


# Folders


def test_a_written_table_is_found_by_its_usual_columns(tmp_path: Path) -> None:
    made = make_synthetic_cohort(TASK, 20, 0, slides_per_patient=2, sites=2, **SMALL)
    write_synthetic_cohort(made, tmp_path)
    assert read_cohort(tmp_path / "table.csv", site="site", task="survival") == made.table


def test_the_infiltration_is_not_in_the_table(tmp_path: Path) -> None:
    write_synthetic_cohort(make_easy(slides=2), tmp_path)
    header, first, _ = (tmp_path / "table.csv").read_text().splitlines()
    assert header == "slide_id,patient_id,OS_MONTHS,OS_STATUS"
    assert first.startswith("infiltration_survival-1-000,patient-1-000,")
    assert first[-2:] in (",0", ",1")


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    def write(name: str, seed: int) -> list[bytes]:
        write_synthetic_cohort(make_easy(slides=5, seed=seed), tmp_path / name)
        files = [file for file in (tmp_path / name).rglob("*") if file.is_file()]
        return [file.read_bytes() for file in sorted(files)]

    first = write("one", 1)
    assert len(first) == 6
    assert write("again", 1) == first
    assert write("other", 2) != first


def test_slides_are_those_of_infiltration_with_other_targets() -> None:
    for level in ("easy", "medium", "hard"):
        own, value = PRESETS[TASK][level], PRESETS["infiltration"][level]
        assert isinstance(value, Infiltration)
        assert vars(value).items() <= vars(own).items()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"censored": 0}, "0.05 to 0.95"),
        ({"median_months": 0}, "above 0"),
        ({"log_hazard_ratio": -1}, "0 to 20"),
        ({"infiltration": (0.5, 1.2)}, "lowest and highest share"),
        ({"classes": ("low", "high")}, "has times, not the classes low, high"),
    ],
)
def test_a_wrong_setting_is_rejected_with_what_was_expected(given: dict, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        InfiltrationSurvival(**given)
