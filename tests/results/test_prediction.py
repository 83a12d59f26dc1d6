"""An ensemble is the mean of its members, and says how far they are apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from sacmil.errors import InputError, ModelFolderError
from sacmil.results import Ensemble, Prediction
from sacmil.results.prediction import average_predictions, combine_hashes
from sacmil.tasks import Classification

CLASSES = ("normal", "tumor")


def make_prediction(
    *scores: float, p: float = 0.5, class_scores: Any = None, score_class: int | None = None
) -> Prediction:
    values = np.array([1 - p, p])
    by_class = None if class_scores is None else np.array(class_scores, np.float32)
    return Prediction(
        "s",
        ("p_normal", "p_tumor"),
        values,
        np.array(scores, np.float32),
        by_class,
        None,
        score_class,
    )


class FakeMember(NamedTuple):
    prediction: Prediction
    hash: str = "a"
    classes: tuple[str, ...] = CLASSES
    card: Any = None

    @property
    def task(self) -> Classification:
        return Classification(self.classes)

    def predict(self, bag: object) -> Prediction:
        return self.prediction


def make_ensemble(*members: FakeMember) -> Ensemble[FakeMember]:
    return Ensemble(members, name="e", path=Path("e"))


def test_scores_of_members_are_joined_by_rank_for_their_scales_differ() -> None:
    joint = average_predictions([make_prediction(1, 2, 3), make_prediction(3000, 1000, 2000)])
    np.testing.assert_allclose(joint.scores, [0.5, 0.25, 0.75])
    scaled = average_predictions([make_prediction(10, 20, 30), make_prediction(3, 1, 2)])
    np.testing.assert_array_equal(joint.scores, scaled.scores)


def test_scores_that_add_to_a_value_have_one_scale_and_are_averaged() -> None:
    members = [replace(make_prediction(*scores), scores_add=True) for scores in ((1, 2), (-4, 0))]
    joint = average_predictions(members)
    np.testing.assert_array_equal(joint.scores, [-1.5, 1])
    assert joint.scores_add
    mixed = average_predictions([members[0], make_prediction(-4, 0)])
    np.testing.assert_array_equal(mixed.scores, [0, 1])
    assert not mixed.scores_add


def test_a_single_member_keeps_its_scores_and_has_no_spread() -> None:
    found = make_ensemble(FakeMember(make_prediction(3, 1, 2))).predict(None)
    np.testing.assert_array_equal(found.scores, [3, 1, 2])
    assert found.members is None
    assert found.spread is None


def test_values_are_the_mean_and_spread_is_the_standard_deviation() -> None:
    members = [FakeMember(make_prediction(1, 2, p=p)) for p in (0.2, 0.6, 0.7)]
    found = make_ensemble(*members).predict(None)
    np.testing.assert_allclose(found.probabilities, [0.5, 0.5])
    np.testing.assert_allclose(found.members[:, 1], [0.2, 0.6, 0.7])
    np.testing.assert_allclose(found.spread, np.std([0.2, 0.6, 0.7]))


def test_scores_are_of_the_class_that_the_mean_predicts() -> None:
    first = make_prediction(9, 8, p=0.1, class_scores=[[9, 1], [8, 2]], score_class=0)
    second = make_prediction(2, 5, p=0.99, class_scores=[[7, 2], [6, 5]], score_class=1)
    found = average_predictions([first, second])
    assert found.predicted_class == "tumor"
    assert found.score_class == 1
    np.testing.assert_array_equal(found.scores, [0, 1])
    np.testing.assert_array_equal(found.class_scores, [[1, 0], [0, 1]])


def test_members_with_and_without_class_scores_have_only_joint_scores() -> None:
    by_class = make_prediction(2, 5, p=0.9, class_scores=[[7, 2], [6, 5]], score_class=1)
    found = average_predictions([by_class, make_prediction(1, 2, p=0.9)])
    assert found.class_scores is None
    assert found.score_class == 1


def test_a_prediction_that_is_not_a_number_is_rejected() -> None:
    lost = Prediction("s", ("p_a", "p_b"), np.array([np.nan, np.nan]), np.zeros(12, np.float32))
    with pytest.raises(InputError, match=r"\[nan, nan\], which are not probabilities"):
        make_ensemble(FakeMember(lost)).predict(None)


def test_members_of_different_classes_are_rejected() -> None:
    other = FakeMember(make_prediction(1), classes=("a", "b"))
    with pytest.raises(ModelFolderError, match=r"different classes \(.*a, b; .*normal, tumor\)"):
        make_ensemble(FakeMember(make_prediction(1)), other)


def test_the_hash_of_several_depends_on_each_and_on_their_order() -> None:
    found = {combine_hashes(hashes) for hashes in (["a", "b"], ["b", "a"], ["a"], ["a", "b", "c"])}
    assert len(found) == 4


def test_values_that_are_not_probabilities_are_not_called_so() -> None:
    risk = Prediction("s", ("risk",), np.array([0.3]), np.zeros(2, np.float32))
    with pytest.raises(InputError, match="the values are risk, not probabilities"):
        _ = risk.probabilities
