"""The API shows results of every task without the page knowing its kind."""

from __future__ import annotations

import numpy as np
import pytest
from asgi_caller import fetch

from sacmil.heatmap.colors import DIVERGING_COLOR_SCALE
from sacmil.results import read_results, read_scores

KINDS = {
    "regression": "regression",
    "targets": "regression",
    "ordinal": "ordinal",
    "multilabel": "multilabel",
    "survival": "survival",
}


@pytest.fixture
def describe(task_folder, make_app):
    """Return the list of a task's results."""
    return lambda name: fetch(make_app(task_folder(name)), "/api/results").json()


@pytest.mark.parametrize("name", KINDS)
def test_values_arrive_as_they_are(describe, task_folder, name: str) -> None:
    document, known = describe(name), read_results(task_folder(name))
    assert document["task"] == KINDS[name]
    assert document["classes"] == list(known.classes)
    assert document["diverging_colors"] == DIVERGING_COLOR_SCALE.tolist()
    for slide, expected in zip(document["slides"], known.slides, strict=True):
        for shown, stored in zip(slide["predictions"], expected.answers, strict=True):
            assert tuple(shown["values"]) == stored.values
            assert shown["score_name"] in document["score_names"]
            assert {each["name"] for each in shown["choices"]} == set(document["choices"])


def test_a_regression_has_numbers_and_no_levels(describe) -> None:
    document = describe("regression")
    assert (document["levels"], document["choices"]) == ([], ["ki67"])
    assert (document["are_probabilities"], document["diverging"]) == (False, True)
    assert document["score_names"] == ["ki67"]
    one, many = document["slides"][0]["predictions"]
    assert (one["predicted"], one["headline"]) == ("23.14", "ki67 23.14")
    assert one["choices"] == [{"name": "ki67", "value": 23.14159, "spread": None}]
    assert many["choices"][0]["spread"] == 0.01


def test_every_target_has_its_spread(describe) -> None:
    document = describe("targets")
    assert document["choices"] == document["score_names"] == ["ki67", "age"]
    many = document["slides"][1]["predictions"][1]
    assert (many["predicted"], many["score_name"]) == ("115.5, 47.25", "ki67")
    assert [tuple(each.values()) for each in many["choices"]] == [
        ("ki67", 115.5, 0.01),
        ("age", 47.25, 0.02),
    ]


def test_an_ordinal_lists_levels_but_not_the_expected_one(describe) -> None:
    document = describe("ordinal")
    assert document["levels"] == document["choices"] == ["low", "mid", "high"]
    assert (document["has_classes"], document["are_probabilities"]) == (False, True)
    assert (document["score_names"], document["diverging"]) == (["grade"], True)
    assert document["classes"][-1] == "expected"
    many = document["slides"][0]["predictions"][1]
    assert many["headline"] == "mid, expected level from 0 (low) to 2 (high): 1.10"
    assert [tuple(each.values()) for each in many["choices"]] == [
        ("mid", 0.5, 0.02),
        ("high", 0.3, 0.03),
        ("low", 0.2, 0.01),
    ]


def test_labels_are_listed_with_the_most_probable_first(describe) -> None:
    document = describe("multilabel")
    assert (document["levels"], document["diverging"]) == ([], False)
    assert document["choices"] == document["score_names"] == ["er", "pr", "her2"]
    shown = [slide["predictions"][0] for slide in document["slides"]]
    assert [each["predicted"] for each in shown] == ["er, her2", "pr", "none"]
    assert [each["score_name"] for each in shown] == ["er", "pr", "her2"]
    assert [each["name"] for each in shown[0]["choices"]] == ["er", "her2", "pr"]


def test_survival_has_a_curve_for_each_prediction(describe, task_folder) -> None:
    document, known = describe("survival"), read_results(task_folder("survival"))
    assert (document["are_probabilities"], document["are_percentages"]) == (False, True)
    assert document["choices"] == ["risk percentile", "survival 12 months", "survival 36 months"]
    assert document["score_effects"] == {"risk": ["raises the risk", "lowers the risk"]}
    one, many = document["slides"][0]["predictions"]
    assert one["headline"] == "high risk, above 81% of the training patients"
    assert one["curve"] == {
        "x_title": "time (months)",
        "y_title": "survival",
        "x": [0, 12, 24, 36, 48],
        "y": [1, 0.82, 0.7, 0.55, 0.31],
        "members": [],
        "ticks": [0, 12, 24, 36, 48],
        "text": "survival by time (months): 100% at 0, 82% at 12, 70% at 24, 55% at 36, 31% at 48",
        "note": "",
    }
    assert many["curve"]["note"] == "Thick line: the mean. Thin lines: its 3 members."
    stored = known.slides[0].answers[1].members
    drawn = [member[1:] for member in many["curve"]["members"]]
    np.testing.assert_allclose(drawn, [member[2:] for member in stored], atol=1e-4)
    assert {member[0] for member in many["curve"]["members"]} == {1}


@pytest.mark.parametrize("name", [name for name in KINDS if name != "survival"])
def test_other_predictions_have_no_curve(describe, name: str) -> None:
    document = describe(name)
    assert not document["are_percentages"]
    assert all(p["curve"] is None for slide in document["slides"] for p in slide["predictions"])
    words = [document["score_effects"][each] for each in document["score_names"]]
    expected = [[f"adds to {each}", f"lowers {each}"] for each in document["score_names"]]
    assert words == (expected if document["diverging"] else [None] * len(words))


@pytest.mark.parametrize("name", KINDS)
def test_scores_have_the_names_of_their_columns(task_folder, make_app, name: str) -> None:
    app, known = make_app(task_folder(name)), read_scores(task_folder(name) / "scores/one/a.npz")
    names = fetch(app, "/api/results").json()["score_names"]
    document = fetch(app, "/api/slides/0/scores/0").json()
    assert document["score_class"] == names[0]
    if len(names) == 1:
        assert document["class_scores"] is None
    else:
        found = np.stack([document["class_scores"][each] for each in names], axis=1)
        np.testing.assert_array_equal(np.float32(found), known.class_scores)
    assert fetch(app, "/api/slides/0/scores/1").json()["score_class"] is None


def test_scores_of_another_number_of_targets_are_reported(task_folder, make_app, tmp_path) -> None:
    import shutil

    folder = shutil.copytree(task_folder("targets"), tmp_path / "results")
    wrong = task_folder("multilabel") / "scores/one/a.npz"
    shutil.copy(wrong, folder / "scores/one/a.npz")
    reply = fetch(make_app(folder), "/api/slides/0/scores/0")
    assert reply.status == 422
    assert "has 3 columns of scores; expected 2 (ki67, age)" in reply.json()["error"]
