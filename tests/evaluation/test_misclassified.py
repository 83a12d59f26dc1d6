"""Who is misclassified."""

from __future__ import annotations

from predicted import predicted

from sacmil.evaluation.misclassified import find_misclassified, misclassified_table
from sacmil.results import Predictions


def made(*rows: tuple[str, str, str, int, float]) -> Predictions:
    """From (slide, patient, model, label, probability of class 1)."""
    keys = [
        (slide, patient, "test", 0, number, model, label)
        for number, (slide, patient, model, label, _) in enumerate(rows)
    ]
    return Predictions.from_rows(("no", "yes"), keys, [[1 - row[-1], row[-1]] for row in rows])


def test_a_misclassification_names_the_wrong_models() -> None:
    found = find_misclassified(
        made(
            ("s1", "p1", "a", 1, 0.9),
            ("s1", "p1", "b", 1, 0.2),
            ("s2", "p2", "a", 0, 0.8),
            ("s2", "p2", "b", 0, 0.7),
            ("s3", "p3", "a", 0, 0.1),
            ("s3", "p3", "b", 0, 0.1),
        )
    )
    assert [(m.name, m.truth, m.predicted, m.num_wrong, m.num_models) for m in found] == [
        ("p2", "no", "yes", 2, 2),
        ("p1", "yes", "no", 1, 2),
    ]
    assert round(found[0].probability, 12) == 0.25


def test_a_patient_is_judged_by_the_mean_over_slides() -> None:
    rows = made(("s1", "p1", "a", 1, 0.1), ("s2", "p1", "a", 1, 0.95))
    rows.seed[:] = 0
    assert find_misclassified(rows) == []


def test_a_model_is_judged_by_the_mean_over_its_seeds() -> None:
    assert find_misclassified(made(("s", "p", "a", 1, 0.1), ("s", "p", "a", 1, 0.95))) == []


def test_where_labels_differ_within_a_patient_slides_are_listed() -> None:
    table = misclassified_table(made(("s1", "p1", "a", 1, 0.1), ("s2", "p1", "a", 0, 0.1)))
    assert table.header[0] == "slide"
    assert [row[0].text for row in table.rows] == ["s1"]
    assert table.caption == "1 slide misclassified by at least one model."


def test_everyone_not_listed_is_classified_rightly() -> None:
    predictions = predicted(("a",), strengths=(1.0,))
    wrong = predictions.probabilities.argmax(1) != predictions.label
    assert {m.name for m in find_misclassified(predictions)} == set(predictions.patient_id[wrong])
    assert 0 < wrong.sum() < len(wrong)
