"""Localisation over patients: means, intervals, and a permutation test that is one."""

from __future__ import annotations

import math

import numpy as np
import pytest
from localised import localised

from sacmil.errors import ConfigError, RunError
from sacmil.evaluation.conclusions import list_conclusions
from sacmil.evaluation.localization_summary import (
    compare_localization,
    summarize_localization,
)
from sacmil.results import SlideLocalization


def row(slide: str, patient: str, auc: float, **changes: object) -> SlideLocalization:
    made = SlideLocalization(slide, patient, 0, 0, "m", 10, 2, auc, auc / 2)
    return made._replace(**changes)


def test_the_mean_is_over_patients_of_slides_of_folds_and_seeds() -> None:
    rows = [
        row("a", "p", 0.5),
        row("a", "p", 0.7, seed=1),
        row("b", "p", 1.0, positives=6),
        row("c", "q", 0.6, fold=1),
        row("d", "r", math.nan, positives=0),
    ]
    found = summarize_localization(rows)["m"]
    assert found.estimates["localisation_auc"].mean == pytest.approx((0.8 + 0.6) / 2)
    assert found.estimates["localisation_ap"].mean == pytest.approx((0.4 + 0.3) / 2)
    assert found.chance == pytest.approx(((0.2 + 0.6) / 2 + 0.2) / 2)
    assert (found.patients, found.slides, found.folds) == (2, 3, 2)


def test_an_interval_needs_three_patients_and_holds_the_mean() -> None:
    two = summarize_localization([row(name, name, 0.5) for name in "ab"])["m"]
    assert math.isnan(two.estimates["localisation_auc"].low)
    rows = localised({"m": 0.8})
    figure = summarize_localization(rows, draws=300)["m"].estimates["localisation_auc"]
    assert figure.low < figure.mean < figure.high
    values = [one.auc for one in rows if one.has_both_labels]
    error = np.std(values, ddof=1) / math.sqrt(len(values))
    assert figure.high - figure.low == pytest.approx(2 * 1.96 * error, rel=0.2)


def test_slides_of_one_kind_give_nothing() -> None:
    assert summarize_localization([row("a", "p", math.nan, positives=0)]) == {}


def test_the_better_model_is_claimed_and_equal_ones_are_not() -> None:
    rows = localised({"strong": 0.9, "weak": 0.7, "twin": 0.7}, seeds=2)
    found = compare_localization(rows, draws=300)
    assert [(pair.first, pair.second) for pair in found] == [
        ("strong", "twin"),
        ("strong", "weak"),
        ("twin", "weak"),
    ]
    means = summarize_localization(rows, draws=10)
    aucs = {name: one.estimates["localisation_auc"].mean for name, one in means.items()}
    for pair in found:
        assert pair.difference == pytest.approx(aucs[pair.first] - aucs[pair.second])
        assert pair.low < pair.difference < pair.high
    first, second, third = list_conclusions(found)
    assert first.startswith("strong is better than ")
    assert " Localisation AUC [" in first
    assert second.startswith("strong is better than ")
    assert third.startswith("No significant difference between ")


def test_p_can_survive_the_correction_for_many_pairs() -> None:
    rows = localised({f"m{number}": 0.5 for number in range(8)} | {"best": 0.95})
    found = compare_localization(rows, draws=100)
    assert all(pair.p_holm < 0.05 for pair in found if "best" in (pair.first, pair.second))


def test_against_one_model_fewer_pairs_are_compared() -> None:
    rows = localised({"a": 0.8, "b": 0.7, "c": 0.7})
    found = compare_localization(rows, metric="localisation_ap", against="b", draws=20)
    assert [(pair.first, pair.second) for pair in found] == [("b", "a"), ("b", "c")]
    with pytest.raises(RunError, match="known are: a, b, c"):
        compare_localization(rows, against="z", draws=20)


def test_models_with_labels_on_different_slides_are_rejected() -> None:
    rows = localised({"a": 0.8, "b": 0.7})
    with pytest.raises(RunError, match=r"a and b have instance labels on different slides \(s39,"):
        compare_localization(rows[:-1])


def test_an_unknown_metric_is_rejected_with_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'localisation_auc'"):
        compare_localization(localised({"a": 0.8, "b": 0.7}), metric="localization_auc")
