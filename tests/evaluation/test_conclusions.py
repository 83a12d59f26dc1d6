"""Comparisons in words."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from sacmil.evaluation.comparison import PairComparison
from sacmil.evaluation.conclusions import list_conclusions, order_better_first
from sacmil.evaluation.tables import TableStyle


def pair(
    difference: float, p: float | None, metric: str = "auc", names: str = "ab"
) -> PairComparison:
    low, high = difference - 0.02, difference + 0.03
    return PairComparison(names[0], names[1], metric, difference, low, high, p, None, None, p, 60)


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
