"""Comparisons find what is there, claim nothing that is not, and refuse the incomparable."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from answers import answers, shuffled
from hypothesis import given, settings
from hypothesis import strategies as st

from sacmil.errors import ConfigError, RunError
from sacmil.evaluation.comparison import (
    PairComparison,
    compare_models,
    list_conclusions,
    mean_ranks,
    order_better_first,
)
from sacmil.evaluation.significance import corrected_t_test, delong_test, holm
from sacmil.evaluation.summary import summarize
from sacmil.evaluation.table_format import TableStyle
from sacmil.metrics.classification import CLASSIFICATION_METRICS, METRICS
from sacmil.results import Predictions


def renamed(predictions: Predictions, name: str) -> Predictions:
    part = predictions.select(np.arange(len(predictions)))
    return Predictions(**{**vars(part), "model": np.full(len(part), name)})


@pytest.mark.parametrize("metric", METRICS)
def test_a_model_does_not_differ_from_its_copy(metric: str) -> None:
    one = answers({"a": 1}, seeds=2)
    found = compare_models(
        Predictions.concatenate([one, renamed(one, "b")]), metric=metric, draws=100
    )[0]
    assert found.difference == 0
    assert found.p_t == 1
    assert (found.p_permutation, found.p_holm) == (1, 1)
    if metric != "calibration_error":
        assert (found.low, found.high) == (0, 0)


def test_a_copy_is_no_different_under_delong() -> None:
    one = answers({"a": 1}, folds=1)
    assert (
        compare_models(Predictions.concatenate([one, renamed(one, "b")]), draws=50)[0].p_delong == 1
    )


def test_the_difference_is_that_of_the_summary() -> None:
    given = answers({"a": 2, "b": 1}, seeds=2)
    figures = summarize(given, draws=20)
    found = compare_models(given, metric="f1", draws=100)[0]
    assert (found.first, found.second, found.metric) == ("a", "b", "f1")
    assert found.difference == pytest.approx(figures["a"]["f1"].mean - figures["b"]["f1"].mean)
    assert found.low <= found.difference <= found.high


def test_turning_a_pair_turns_the_signs() -> None:
    given = answers({"a": 2, "b": 1})
    one, other = compare_models(given, pairs=[("a", "b"), ("b", "a")], draws=100)
    assert other.difference == pytest.approx(-one.difference)
    assert (other.low, other.high) == pytest.approx((-one.high, -one.low))
    assert (other.p_permutation, other.p_t) == pytest.approx((one.p_permutation, one.p_t))


def test_the_best_of_many_can_still_be_significant_after_correction() -> None:
    skills = {"best": 4.0} | {f"m{i:02d}": 0.0 for i in range(7)}
    found = compare_models(answers(skills, patients=80, folds=2), draws=100)
    assert len(found) == 8 * 7 / 2
    for one in found:
        assert one.p_holm is not None
        assert (one.p_holm < 0.05) == ("best" in (one.first, one.second))


def test_row_order_changes_nothing_and_the_seed_decides() -> None:
    given = answers({"a": 2, "b": 1, "c": 1}, seeds=2, slides=2)
    one = compare_models(given, draws=100, seed=1)
    assert one == compare_models(shuffled(given), draws=100, seed=1)
    assert one != compare_models(given, draws=100, seed=2)


def test_all_pairs_or_those_given_or_one_against_the_rest() -> None:
    given = answers({"c": 1, "a": 1, "b": 1}, patients=30)

    def named(**options: object) -> list[tuple[str, str]]:
        return [(c.first, c.second) for c in compare_models(given, draws=20, **options)]

    assert named() == list(combinations("abc", 2))
    assert named(pairs=[("c", "a")]) == [("c", "a")]
    assert named(against="b") == [("b", "a"), ("b", "c")]


def test_a_single_model_has_nothing_to_compare_with() -> None:
    assert compare_models(answers({"a": 1})) == []
    assert compare_models(answers({"a": 1}), against="a") == []


def test_different_numbers_of_seeds_can_be_compared() -> None:
    both = Predictions.concatenate([answers({"a": 2}, seeds=3), answers({"b": 1}, seeds=1)])
    assert compare_models(both, draws=50)[0].difference > 0


def test_a_corrected_t_test_worked_by_hand() -> None:
    # mean 0.06, variance 0.001, (1/5 + 1/4) of it: t = 0.06 / sqrt(0.00045) = sqrt(8), and with
    # four degrees of freedom P(T < t) = 1/2 + 3/8 t/sqrt(1 + t²/4) (1 - t²/(1 + t²/4)/12)
    inside = 3 / 8 * math.sqrt(8 / 3) * (1 - 8 / 3 / 12)
    found = corrected_t_test([0.02, 0.04, 0.06, 0.08, 0.10], 1 / 4)
    assert found == pytest.approx(2 * (0.5 - inside), abs=1e-12)


def test_the_correction_is_what_makes_it_careful() -> None:
    values = [0.02, 0.04, 0.06, 0.08, 0.10]
    plain, corrected = corrected_t_test(values, 0), corrected_t_test(values, 1 / 4)
    assert plain is not None
    assert corrected is not None
    assert plain < 0.02 < corrected


def test_differences_that_do_not_vary_cannot_be_tested() -> None:
    assert corrected_t_test([0.1, 0.1, 0.1], 0.5) is None
    assert corrected_t_test([0.1], 0.5) is None
    assert corrected_t_test([0.0, 0.0], 0.5) == 1


@pytest.mark.parametrize(("folds", "repeats"), [(5, 1), (4, 3)])
def test_k_folds_test_one_patient_for_every_k_less_one_trained_on(folds: int, repeats: int) -> None:
    given = answers({"a": 2, "b": 1}, patients=60, folds=folds, repeats=repeats)
    figures = summarize(given, metrics=["auc"], draws=10)
    values = np.subtract(figures["a"]["auc"].values, figures["b"]["auc"].values)
    found = compare_models(given, draws=50)[0]
    assert found.p_t == pytest.approx(corrected_t_test(values, 1 / (folds - 1)))


def test_one_test_set_for_all_folds_has_no_t_test() -> None:
    one = answers({"a": 2, "b": 1}, folds=1)
    again = one.select(np.arange(len(one)))
    again.fold[:] = 1
    assert compare_models(Predictions.concatenate([one, again]), draws=50)[0].p_t is None
    assert compare_models(one, draws=50)[0].p_t is None


def test_delong_is_for_one_binary_test_set_and_one_seed() -> None:
    given = answers({"a": 2, "b": 1}, folds=1)
    a, b = (given.select(given.model == name) for name in "ab")
    expected = delong_test(a.label, a.probabilities[:, 1], b.probabilities[:, 1]).p
    assert compare_models(given, draws=50)[0].p_delong == pytest.approx(expected)
    assert compare_models(given, metric="f1", draws=50)[0].p_delong is None
    for other in ({"folds": 2}, {"folds": 1, "seeds": 2}, {"folds": 1, "classes": 3}):
        assert compare_models(answers({"a": 2, "b": 1}, **other), draws=50)[0].p_delong is None


def test_delong_is_not_for_slides_of_the_same_patient() -> None:
    given = answers({"a": 2, "b": 1}, folds=1)
    given.patient_id[:] = [f"q{int(p[1:]) // 2}" for p in given.patient_id]
    assert compare_models(given, draws=50)[0].p_delong is None


def test_holm_by_the_book() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


@settings(deadline=None, max_examples=30, derandomize=True)
@given(st.lists(st.floats(0, 1), max_size=12))
def test_holm_lies_between_no_correction_and_bonferroni_and_keeps_the_order(
    values: list[float],
) -> None:
    found = holm(values)
    for p, corrected in zip(values, found, strict=True):
        assert corrected is not None
        assert p <= corrected <= min(1, p * len(values))
    order = np.argsort(values, kind="stable")
    assert (np.diff(np.array(found, dtype=float)[order]) >= 0).all()


def test_patients_that_one_model_was_not_tested_on_are_named() -> None:
    given = answers({"a": 1, "b": 1})
    lacking = given.select((given.model == "a") | (given.patient_id != "p7"))
    with pytest.raises(
        RunError, match=r"a and b .*different slides or patients \(p7 in one only\)"
    ):
        compare_models(lacking)
    with pytest.raises(RunError, match="p7"):
        mean_ranks(lacking)


def test_different_folds_are_named() -> None:
    given = answers({"a": 1, "b": 1})
    with pytest.raises(RunError, match=r"different folds \(\[0, 1, 2\] and \[0, 2\]\)"):
        compare_models(given.select((given.model == "a") | (given.fold != 1)))


def test_different_labels_are_named() -> None:
    given = answers({"a": 1, "b": 1}, folds=1)
    row = np.flatnonzero((given.model == "b") & (given.patient_id == "p7"))
    given.targets[row] = 1 - given.targets[row]
    with pytest.raises(RunError, match=r"different labels \(p7"):
        compare_models(given)


def test_models_that_are_not_compared_need_not_be_alike() -> None:
    given = answers({"a": 1, "b": 1, "odd": 1})
    odd = given.select((given.model != "odd") | (given.fold != 1))
    assert len(compare_models(odd, pairs=[("a", "b")], draws=20)) == 1


@pytest.mark.parametrize("options", [{"against": "sacmil"}, {"pairs": [("abmil", "sacmil")]}])
def test_an_unknown_model_is_reported_with_the_nearest(options: dict[str, object]) -> None:
    with pytest.raises(RunError, match="'sacmil'; did you mean 'sac_mil'"):
        compare_models(answers({"sac_mil": 1, "abmil": 1}), **options)


@pytest.mark.parametrize("options", [{"metric": "acu"}, {"level": 1}, {"draws": -1}])
def test_a_wrong_setting_is_reported(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError):
        compare_models(answers({"a": 1, "b": 1}), **options)


def test_a_metric_that_a_fold_leaves_undefined_gives_no_p() -> None:
    given = answers({"a": 1, "b": 1})
    found = compare_models(given.select((given.fold > 0) | (given.label == 1)), draws=50)[0]
    assert math.isnan(found.difference)
    assert (found.p_permutation, found.p_t, found.p_holm) == (None, None, None)


def test_ranks_are_one_for_the_best_and_shared_by_equals() -> None:
    given = answers({"a": 6, "b": 0})
    three = Predictions.concatenate([given, renamed(given.select(given.model == "b"), "c")])
    assert mean_ranks(three) == {"a": 1, "b": 2.5, "c": 2.5}
    assert mean_ranks(three, "brier") == {"a": 1, "b": 2.5, "c": 2.5}


def test_ranks_sum_to_what_there_is_to_share() -> None:
    assert sum(mean_ranks(answers({"a": 1, "b": 1, "c": 1}), "accuracy").values()) == pytest.approx(
        6
    )


# Comparisons in words.


def pair(
    difference: float, p: float | None, metric: str = "auc", names: str = "ab"
) -> PairComparison:
    low, high, known = difference - 0.02, difference + 0.03, CLASSIFICATION_METRICS[metric]
    numbers = (difference, low, high, p, None, None, p, 60)
    return PairComparison(*names, metric, *numbers, known.title, known.lower_is_better)


@pytest.mark.parametrize(
    ("comparison", "sentence"),
    [
        (
            pair(0.031, 0.03),
            "a is better than b by 0.031 AUC [0.011, 0.061], p = 0.030 after Holm.",
        ),
        (
            pair(-0.031, 0.0002),
            "b is better than a by 0.031 AUC [0.001, 0.051], p < 0.001 after Holm.",
        ),
        (
            pair(-0.031, 0.03, "brier"),
            "a is better than b by 0.031 Brier score [0.001, 0.051], p = 0.030 after Holm.",
        ),
        (
            pair(0.031, 0.03, "brier"),
            "b is better than a by 0.031 Brier score [0.011, 0.061], p = 0.030 after Holm.",
        ),
        (
            pair(0.01, 0.3),
            "No significant difference between a and b: 0.010 AUC [-0.010, 0.040], "
            "p = 0.300 after Holm.",
        ),
        (
            pair(math.nan, None),
            "No significant difference between a and b: AUC is not defined in every fold.",
        ),
    ],
)
def test_a_pair_becomes_a_sentence(comparison: PairComparison, sentence: str) -> None:
    assert list_conclusions([comparison]) == [sentence]


def test_in_percent_differences_are_points() -> None:
    (sentence,) = list_conclusions([pair(0.031, 0.03)], style=TableStyle(percent=True))
    assert sentence.startswith("a is better than b by 3.1 points of AUC [1.1, 6.1], ")


def test_without_a_p_value_nothing_is_claimed() -> None:
    (sentence,) = list_conclusions([pair(0.4, None)])
    assert sentence.startswith("No significant difference")
    assert sentence.endswith("no p-value.")


def test_the_level_decides_what_is_claimed() -> None:
    assert "better" in list_conclusions([pair(0.1, 0.03)], level=0.95)[0]
    assert "No significant difference" in list_conclusions([pair(0.1, 0.03)], level=0.99)[0]


def test_the_largest_difference_is_first_and_the_undecided_last() -> None:
    sentences = list_conclusions(
        [pair(0.0, 1.0), pair(0.1, 0.01, names="cd"), pair(-0.2, 0.01, names="ef")]
    )
    assert [sentence.split()[0] for sentence in sentences] == ["f", "c", "No"]


def test_a_cohort_too_small_for_any_p_to_pass_is_named() -> None:
    few = replace(pair(0.2, 0.0625), patients=5)
    assert list_conclusions([few]) == [
        "The cohort is too small to compare a and b: it has 5 patients, and p < 0.05 needs "
        "at least 6."
    ]
    assert list_conclusions([replace(few, patients=8)] * 15) == [
        "The cohort is too small to compare the models: it has 8 patients, and p < 0.05 needs "
        "at least 10 for 15 pairs."
    ]
    assert "No significant difference" in list_conclusions([replace(few, patients=6)])[0]


def test_an_interval_without_zero_is_no_claim() -> None:
    (sentence,) = list_conclusions([pair(0.2, 0.125)])  # the interval is 0.18 to 0.23
    assert sentence.startswith("No significant difference between a and b")


def test_many_undecided_pairs_are_counted() -> None:
    sentences = list_conclusions([pair(0.1, 0.01)] + [pair(0.0, 1.0)] * 30)
    assert sentences[1:] == ["No significant difference in the other 30 pairs."]


def test_many_significant_pairs_are_summarized_by_winner() -> None:
    won = [
        pair(0.1 + i / 100, 0.01 + i / 1000, names=f"a{loser}") for i, loser in enumerate("hgfedcb")
    ]
    lost = [pair(-0.05, 0.0001, names=f"{loser}b") for loser in "cdefgh"]
    assert list_conclusions(won + lost) == [
        "a is better than b, c, d, e, f, g, h: by 0.100 to 0.160 AUC, p ≤ 0.016 after Holm.",
        "b is better than c, d, e, f, g, h: by 0.050 to 0.050 AUC, p < 0.001 after Holm.",
    ]


def test_names_cannot_steer_a_terminal() -> None:
    (sentence,) = list_conclusions([pair(0.1, 0.01, names=["\x1b[2J", "b\nc"])])
    assert sentence.isprintable()


@pytest.mark.parametrize("metric", ["auc", "log_loss"])
def test_the_better_one_is_the_same_whichever_comes_first(metric: str) -> None:
    there, back = pair(0.1, 0.01, metric), pair(-0.1, 0.01, metric, names="ba")
    assert order_better_first(there) == order_better_first(back)
