"""Pictures: what they show is what was predicted, whatever things are called."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from matplotlib.figure import Figure
from predicted import predicted
from sklearn.calibration import calibration_curve
from sklearn.metrics import confusion_matrix, roc_curve

from sacmil.errors import MissingExtraError
from sacmil.evaluation.comparison import PairComparison, compare_models, mean_ranks
from sacmil.evaluation.fold_results import average_by_patient
from sacmil.evaluation.plots import (
    MAX_MODELS,
    ROC_GRID,
    check_matplotlib,
    compute_fold_curves,
    count_confusions,
    draw_calibration,
    draw_confusion,
    draw_ranks,
    draw_roc,
    find_indistinct_groups,
    interpolate_roc,
    reliability_curve,
    render_figure,
    save_figure,
)
from sacmil.results import Predictions

HOSTILE = ("$\\frac{1}{ \\$", "_hidden", "a" * 200, "<b>&amp; two\nlines %s {x}")


def texts(figure: Figure) -> str:
    from matplotlib.text import Text

    return "\n".join(text.get_text() for text in figure.findobj(Text))


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].get_legend().get_texts()]


# --- ROC -----------------------------------------------------------------------------------------

few = settings(deadline=None, max_examples=30, derandomize=True)
SCORES = arrays.arrays(np.float64, 30, elements=st.sampled_from(np.linspace(0, 1, 7)))


@few
@given(SCORES, arrays.arrays(np.bool_, 30))
def test_the_curve_is_that_of_scikit_learn(scores: np.ndarray, positive: np.ndarray) -> None:
    positive[0], positive[1] = True, False
    x, y, _ = roc_curve(positive, scores, drop_intermediate=False)
    np.testing.assert_allclose(
        interpolate_roc(positive, scores), np.interp(ROC_GRID, x, y), atol=1e-12
    )


@few
@given(SCORES, arrays.arrays(np.bool_, 30))
def test_sensitivity_never_falls_and_ends_at_one(scores: np.ndarray, positive: np.ndarray) -> None:
    positive[0], positive[1] = True, False
    curve = interpolate_roc(positive, scores)
    assert (np.diff(curve) >= 0).all()
    assert curve[-1] == 1


def test_a_curve_per_fold_is_the_mean_over_its_seeds() -> None:
    both = predicted(("a",), seeds=2)
    apart = [compute_fold_curves(both.select(both.seed == seed)) for seed in (0, 1)]
    np.testing.assert_allclose(compute_fold_curves(both), np.mean(apart, axis=0))
    assert compute_fold_curves(both).shape == (3, len(ROC_GRID))


def test_of_three_classes_the_curve_is_the_mean_of_each_against_the_rest() -> None:
    three = predicted(("a",), classes=("x", "y", "z"), folds=1)
    by_class = [interpolate_roc(three.label == c, three.probabilities[:, c]) for c in range(3)]
    np.testing.assert_allclose(compute_fold_curves(three)[0], np.mean(by_class, axis=0))


def test_a_fold_of_one_class_has_no_curve() -> None:
    predictions = predicted(("a",))
    one = predictions.select((predictions.fold > 0) | (predictions.label == 0))
    assert len(compute_fold_curves(one)) == 2
    nobody = predictions.select(predictions.label == 0)
    assert legend(draw_roc(nobody)) == ["a  –"]
    assert render_figure(draw_roc(nobody), "png")


def test_the_legend_shows_auc_the_best_first() -> None:
    figure = draw_roc(predicted(("weak", "strong"), strengths=(0.2, 3.0)))
    names = [text.split()[0] for text in legend(figure)]
    values = [float(text.split()[1]) for text in legend(figure)]
    assert names == ["strong", "weak"]
    assert values == sorted(values, reverse=True)


def test_of_twenty_models_the_best_are_named_and_the_others_counted() -> None:
    models = [f"m{i:02}" for i in range(20)]
    figure = draw_roc(predicted(models, strengths=np.linspace(3, 0, 20), patients=30))
    assert len(legend(figure)) == MAX_MODELS + 1
    assert legend(figure)[-1] == "14 others"


def test_a_patient_counts_once_however_many_slides_there_are() -> None:
    several = predicted(slides=3)
    assert render_figure(draw_roc(several), "svg") == render_figure(
        draw_roc(average_by_patient(several)), "svg"
    )


def test_validation_rows_are_not_drawn() -> None:
    predictions = predicted(("a", "b"))
    predictions.split[predictions.model == "b"] = "val"
    assert [text.split()[0] for text in legend(draw_roc(predictions))] == ["a"]


# --- calibration ---------------------------------------------------------------------------------


def test_reliability_is_that_of_scikit_learn() -> None:
    predictions = predicted(("a",), patients=300)
    found = reliability_curve(predictions)
    observed, promised = calibration_curve(
        predictions.label, predictions.probabilities[:, 1], n_bins=10
    )
    full = found.share > 0
    np.testing.assert_allclose(found.observed[full], observed)
    np.testing.assert_allclose(found.predicted[full], promised)
    assert found.share.sum() == pytest.approx(1)


def test_certain_predictions_fall_into_the_outer_bins() -> None:
    rows = [(f"s{i}", f"p{i}", "test", 0, 0, "a", i) for i in (0, 1)]
    found = reliability_curve(Predictions.from_rows(["x", "y"], rows, [[1, 0], [0, 1]]))
    assert found.share.tolist() == [0.5] + [0] * 8 + [0.5]
    assert (found.observed[0], found.observed[-1]) == (0, 1)


def test_of_three_classes_the_likeliest_is_what_is_promised() -> None:
    three = predicted(("a",), classes=("x", "y", "z"))
    found = reliability_curve(three)
    assert found.share[:3].sum() == 0  # the likeliest of three has at least a third
    hits = three.probabilities.argmax(1) == three.label
    assert np.nansum(found.observed * found.share) == pytest.approx(hits.mean())


# --- confusion -----------------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [("x", "y"), ("x", "y", "z")])
def test_confusion_is_that_of_scikit_learn(classes: tuple[str, ...]) -> None:
    predictions = predicted(("a",), classes=classes)
    taken = predictions.probabilities.argmax(1)
    expected = confusion_matrix(predictions.label, taken, labels=range(len(classes)))
    np.testing.assert_array_equal(count_confusions(predictions), expected)


def test_a_class_nobody_has_is_an_empty_line() -> None:
    predictions = predicted(("a",), classes=("x", "y", "z"))
    counts = count_confusions(predictions.select(predictions.label != 1))
    assert counts[1].sum() == 0
    assert render_figure(draw_confusion(predictions.select(predictions.label != 1)), "svg")


# --- ranks ---------------------------------------------------------------------------------------


def differ(first: str, second: str, p: float) -> PairComparison:
    return PairComparison(first, second, "auc", 0.1, 0.0, 0.2, p, None, None, p, 60, "AUC")


def pairs(names: str, different: set[str]) -> list[PairComparison]:
    return [
        differ(a, b, 0.01 if a + b in different else 0.5)
        for i, a in enumerate(names)
        for b in names[i + 1 :]
    ]


@pytest.mark.parametrize(
    ("different", "groups"),
    [
        (set(), ["abcd"]),
        ({"ad"}, ["abc", "bcd"]),
        ({"ac", "ad", "bc", "bd"}, ["ab", "cd"]),
        ({"bc"}, ["ab", "cd"]),
        ({"ab", "ac", "ad", "bc", "bd", "cd"}, []),
    ],
)
def test_a_bar_joins_exactly_the_models_that_do_not_differ(
    different: set[str], groups: list[str]
) -> None:
    found = find_indistinct_groups("abcd", pairs("abcd", different))
    assert ["".join("abcd"[i] for i in group) for group in found] == groups


@few
@given(st.sets(st.sampled_from(["ab", "ac", "ad", "ae", "bc", "bd", "be", "cd", "ce", "de"])))
def test_no_bar_joins_two_that_differ_and_no_equal_neighbours_lack_one(different: set[str]) -> None:
    groups = [set(group) for group in find_indistinct_groups("abcde", pairs("abcde", different))]
    places = [{"abcde".index(name) for name in pair} for pair in different]
    assert not any(pair <= group for pair in places for group in groups)
    for i, name in enumerate("abcd"):
        if name + "abcde"[i + 1] not in different:
            assert any({i, i + 1} <= group for group in groups)
    assert not any(one < other for one in groups for other in groups)


def test_who_was_not_compared_is_not_joined() -> None:
    assert find_indistinct_groups("abc", [differ("a", "b", 0.5), differ("a", "c", 0.5)]) == []


def test_ranks_are_drawn_with_the_best_on_top() -> None:
    figure = draw_ranks({"b": 2.5, "a": 1.0, "c": 2.5}, pairs("abc", {"ab", "ac"}))
    labels = [text.get_text() for text in figure.axes[0].get_yticklabels()]
    assert labels == ["a", "b", "c"]
    low, high = figure.axes[0].get_ylim()
    assert low > high
    assert "do not differ significantly" in texts(figure)


# --- all of them ---------------------------------------------------------------------------------


def all_drawn(predictions: Predictions) -> list[Figure]:
    order = mean_ranks(predictions)
    compared = compare_models(predictions, draws=20)
    single = [draw_roc, draw_calibration, draw_confusion]
    return [draw(predictions) for draw in single] + [draw_ranks(order, compared)]


def test_names_are_drawn_as_they_are() -> None:
    """Not as mathematics, not left out of a legend, not over the edge."""
    predictions = predicted(HOSTILE, classes=HOSTILE[:3], patients=18, folds=1)
    for figure in all_drawn(predictions):
        svg = render_figure(figure, "svg").decode()
        assert "<b>" not in svg
        assert "$\\frac{1}{" in svg
        assert "a" * 60 not in svg
        assert "hidden" in svg


def test_letters_of_any_language_stay_letters() -> None:
    figure = draw_roc(predicted(("模型", "модель"), classes=("正常", "癌"), patients=12))
    svg = render_figure(figure, "svg").decode()
    assert "模型" in svg
    assert "модель" in svg


def test_equal_figures_are_equal_files() -> None:
    assert render_figure(draw_roc(predicted()), "svg") == render_figure(
        draw_roc(predicted()), "svg"
    )


def test_drawing_does_not_change_the_callers_matplotlib() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    pyplot = "matplotlib.pyplot" in sys.modules
    for figure in all_drawn(predicted(patients=12)):
        render_figure(figure, "svg")
    assert dict(matplotlib.rcParams) == before
    assert ("matplotlib.pyplot" in sys.modules) == pyplot


@pytest.mark.parametrize(
    ("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml"), (".pdf", b"%PDF")]
)
def test_the_suffix_says_how_a_figure_is_saved(tmp_path: Path, suffix: str, start: bytes) -> None:
    path = tmp_path / "deep" / f"roc{suffix}"
    save_figure(draw_roc(predicted(patients=12)), path)
    assert path.read_bytes().startswith(start)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sacmil.evaluation.plots.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sacmil\[plots\]'"):
        check_matplotlib()
