"""``sacmil compare``."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from pathlib import Path

import pytest
from localised import localised
from matplotlib.figure import Figure
from predicted import predicted

from sacmil.results import LOCALIZATION_FILE, Predictions, write_localization, write_predictions

FEW = ("--draws", 200)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes predictions as a run folder."""

    def run(name: str, predictions: Predictions) -> Path:
        write_predictions(tmp_path / name / "predictions.csv", predictions)
        return tmp_path / name

    return run


@pytest.fixture
def run(write: Callable) -> Path:
    """A strong model, a weak one and its twin."""
    made = predicted(("strong", "weak"), strengths=(4.0, 0.0))
    twin = made.select(made.model == "weak")
    twin.model[:] = "twin"
    return write("run", Predictions.concatenate([made, twin]))


def test_the_better_model_is_stated_in_words(sacmil: Callable, run: Path) -> None:
    done = sacmil("compare", run, *FEW)
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    (won,) = [line for line in lines if line.startswith("strong is better than weak by 0.")]
    assert " AUC [0." in won
    assert won.endswith(" after Holm.")
    twins = "No significant difference between twin and weak: 0.000 AUC [0.000, 0.000], p = 1.000"
    assert any(line.startswith(twins) for line in lines)
    assert "Unit: the patient (60 patients, 60 slides); 3 folds, 1 seed;" in done.out


def test_against_one_model_only_its_pairs_are_listed(sacmil: Callable, run: Path) -> None:
    done = sacmil("compare", run, "--against", "weak", "--format", "csv", *FEW)
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [(row["first"], row["second"]) for row in rows] == [("weak", "strong"), ("weak", "twin")]
    assert float(rows[0]["difference"]) < 0


def test_of_a_cost_the_lower_one_is_better(sacmil: Callable, run: Path) -> None:
    done = sacmil("compare", run, "--metric", "log_loss", *FEW)
    assert "strong is better than weak by " in done.out
    assert " Log loss [" in done.out


@pytest.mark.parametrize(
    ("layout", "start"), [("markdown", "| first |"), ("latex", r"\begin{table}"), ("csv", "first,")]
)
def test_other_formats_are_the_table_only(
    sacmil: Callable, run: Path, layout: str, start: str
) -> None:
    done = sacmil("compare", run, "--format", layout, *FEW)
    assert done.out.startswith(start)
    assert "is better than" not in done.out


def test_equal_calls_print_equal_figures(sacmil: Callable, run: Path) -> None:
    assert sacmil("compare", run, *FEW).out == sacmil("compare", run, *FEW).out
    assert sacmil("compare", run, *FEW).out != sacmil("compare", run, *FEW, "--seed", 1).out


def test_localisation_of_runs_with_equal_models_has_the_runs_in_front(
    sacmil: Callable, write: Callable
) -> None:
    for name, strength in (("one", 0.9), ("two", 0.6)):
        folder = write(name, predicted(("a",)))
        write_localization(folder / LOCALIZATION_FILE, localised({"a": strength}))
    runs = (folder.with_name("one"), folder.with_name("two"))
    done = sacmil("compare", *runs, "--metric", "localisation_ap", *FEW)
    assert "one/a is better than two/a by 0.3" in done.out


def test_runs_with_equal_models_get_distinct_names(sacmil: Callable, write: Callable) -> None:
    one = write("one", predicted(("sac_mil",), strengths=(1.0,)))
    two = write("two", predicted(("sac_mil",), strengths=(1.1,)))
    done = sacmil("compare", one, two, *FEW)
    assert done.code == 0
    assert "one/sac_mil" in done.out
    assert "two/sac_mil" in done.out


def test_out_holds_the_report(
    sacmil: Callable, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("roc", "calibration", "confusion"):  # not the point here, and slow
        monkeypatch.setattr(f"sacmil.evaluation.report.draw_{name}", lambda _: Figure())
    (run / "config.yaml").write_text("epochs: 7\n")
    out = tmp_path / "out"
    done = sacmil("compare", run, "--out", out, *FEW)
    assert done.code == 0
    assert done.err == f"Report: {out / 'report.html'}\n"
    page = (out / "report.html").read_text()
    assert "epochs: 7" in page
    assert "strong is better than weak" in page
    assert (out / "plots" / "ranks.png").stat().st_size > 1000
    assert "strong" in (out / "comparison.tex").read_text()


def test_localisation_is_compared_in_words_and_in_a_report(
    sacmil: Callable, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("roc", "calibration", "confusion"):  # not the point here, and slow
        monkeypatch.setattr(f"sacmil.evaluation.report.draw_{name}", lambda _: None)
    monkeypatch.setattr("sacmil.evaluation.report.Report.svg_plots", {})
    write_localization(
        run / LOCALIZATION_FILE, localised({"strong": 0.9, "weak": 0.6, "twin": 0.6}, patients=12)
    )
    call = ("compare", run, *FEW, "--metric", "localisation_auc")
    done = sacmil(*call, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert done.out.splitlines()[0].split()[:3] == ["model", "Localisation", "AUC"]
    assert "strong is better than weak by 0." in done.out
    assert "No significant difference between " in done.out
    assert "Paired permutation test over patients; " in done.out
    page = (tmp_path / "out" / "report.html").read_text()
    assert "strong is better than weak by 0." in page
    assert "Localisation (out of fold): " in page
    other = sacmil("compare", run, run / "predictions.csv", "--metric", "localisation_ap")
    assert (other.code, "is given twice" in other.err) == (1, True)


def test_a_run_without_instance_labels_is_not_compared_by_them(sacmil: Callable, run: Path) -> None:
    write_localization(run / LOCALIZATION_FILE, localised({"strong": 0.9, "weak": 0.6}))
    done = sacmil("compare", run, "--metric", "localisation_ap")
    assert done.code == 1
    assert "there is no localisation of twin; expected localisation_by_slide.csv" in done.err


def test_without_matplotlib_nothing_is_computed_for_a_report(
    sacmil: Callable, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sacmil.evaluation.plots.find_spec", lambda name: None)
    done = sacmil("compare", run, "--out", tmp_path / "out", *FEW)
    assert done.code == 1
    assert "pip install 'sacmil[plots]'" in done.err
    assert not (tmp_path / "out").exists()
    assert sacmil("compare", run, *FEW).code == 0


def test_one_model_cannot_be_compared(sacmil: Callable, write: Callable) -> None:
    done = sacmil("compare", write("run", predicted(("abmil",))))
    assert done.code == 1
    assert done.err == "Error: a comparison needs two models; found abmil: give more runs\n"


def test_models_tested_on_different_patients_are_refused(sacmil: Callable, write: Callable) -> None:
    one, two = write("one", predicted(("a",))), write("two", predicted(("b",), patients=40))
    done = sacmil("compare", one, two)
    assert done.code == 1
    assert done.err.startswith("Error: a and b were tested on ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--metric", "uac"], "did you mean 'auc'"),
        (["--metric", "auc,f1"], "one metric"),
        (["--metric", "localisation"], "did you mean 'localisation_ap' or 'localisation_auc'"),
        (["--level", "1"], "--level"),
        (["--draws", "0"], "--draws"),
        (["--format", "pdf"], "--format"),
        (["--percnt"], "--percent"),
    ],
)
def test_a_wrong_call_is_reported(
    sacmil: Callable, run: Path, arguments: list[str], message: str
) -> None:
    done = sacmil("compare", run, *arguments)
    assert done.code == 2
    assert message in done.err


def test_an_unknown_reference_is_reported(sacmil: Callable, run: Path) -> None:
    done = sacmil("compare", run, "--against", "strnog")
    assert done.code == 1
    assert "did you mean 'strong'" in done.err


@pytest.mark.parametrize("content", [None, "", "a,b\n1,2\n", "\x00\xff"])
def test_what_is_no_run_is_reported_in_one_sentence(
    sacmil: Callable, tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "predictions.csv").write_text(content, encoding="latin-1")
    done = sacmil("compare", tmp_path)
    assert done.code == 1
    assert done.err.startswith(f"Error: {tmp_path}")
    assert done.err.count("\n") == 1
