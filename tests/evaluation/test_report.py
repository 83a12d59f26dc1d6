"""The report: whole in one file, and inert whatever is written in it."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from itertools import combinations
from pathlib import Path
from xml.etree import ElementTree

import pytest
from predicted import predicted

from sacmil.evaluation.comparison import PairComparison, compare_models
from sacmil.evaluation.report import Report, render_report, write_report_folder
from sacmil.evaluation.summary import summarize
from sacmil.results import Predictions

EVIL = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>"


def report(predictions: Predictions, **changed: object) -> Report:
    known = {"title": "My run", "estimates": summarize(predictions, draws=20)}
    if "comparisons" not in changed:
        known["comparisons"] = compare_models(predictions, draws=20)
    return Report(predictions=predictions, **known | changed)


class Seen(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.open: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def evil_page() -> str:
    predictions = predicted((EVIL, "b"), classes=(EVIL, "tumour"), patients=20, strengths=(0, 0))
    predictions.slide_id[:] = predictions.patient_id
    renamed = {"p0": EVIL, "p1": "\x1b]0;title\x07"}
    patients = [renamed.get(name, name) for name in predictions.patient_id.tolist()]
    keys = ("split", "fold", "seed", "model", "label")
    rows = zip(patients, patients, *(getattr(predictions, key) for key in keys), strict=True)
    made = Predictions.from_rows(predictions.classes, rows, predictions.probabilities)
    return render_report(
        report(made, title=EVIL, data=EVIL, settings={EVIL: EVIL + "\n" + EVIL}, warnings=[EVIL])
    )


def test_nothing_written_in_a_report_can_run(evil_page: str) -> None:
    seen = Seen(evil_page)
    assert "script" not in seen.tags
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    assert seen.open == []
    assert seen.text.count("alert('x')") > 5  # shown as text
    assert "\x1b" not in evil_page


def test_within_the_pictures_nothing_can_run_either(evil_page: str) -> None:
    images = re.findall(r"data:image/svg\+xml;base64,([^\"]+)", evil_page)
    assert len(images) == 4
    for image in images:
        tree = ElementTree.fromstring(base64.b64decode(image))
        names = {element.tag.rpartition("}")[2] for element in tree.iter()}
        assert "script" not in names
        assert "img" not in names


def test_a_report_fetches_nothing(evil_page: str) -> None:
    seen = Seen(evil_page)
    sources = [value for name, value in seen.attributes if name in ("src", "href")]
    assert all(value.startswith("data:image/svg+xml;base64,") for value in sources)
    assert "link" not in seen.tags
    assert "url(" not in evil_page
    assert "default-src 'none'" in evil_page


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a folder; few patients, because drawing takes most of the time."""
    return write_report_folder(tmp_path_factory.mktemp("report") / "out", small_report())


def small_report() -> Report:
    return report(predicted(patients=12), settings={"config.yaml": "epochs: 200"})


def test_a_report_has_every_section(written: Path) -> None:
    text = written.read_text(encoding="utf-8")
    headings = re.findall("<h2>(.*?)</h2>", text)
    assert headings == [
        "Settings",
        "Summary",
        "Comparison",
        "Plots",
        "Fold by fold",
        "Misclassified",
    ]
    assert "epochs: 200" in text
    assert "Unit: the patient (12 patients" in text


def test_of_one_model_nothing_is_compared() -> None:
    text = render_report(report(predicted(("sac_mil",), patients=12)))
    assert "Who is better" not in text
    assert text.count("<img") == 3
    assert "<strong>" not in text


def test_ranks_that_are_not_defined_are_not_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Report, "svg_plots", {})
    predictions = predicted(patients=24)
    made = report(predictions.select((predictions.fold > 0) | (predictions.label == 0)))
    assert list(made.plots) == ["roc", "calibration", "confusion"]
    assert "AUC is not defined in every fold" in render_report(made)


def test_ten_models_and_three_classes_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Report, "svg_plots", {})  # test_plots.py draws many models
    models = [f"m{i:02}" for i in range(10)]
    predictions = predicted(models, classes=("x", "y", "z"), patients=12, folds=2)
    undecided = [
        PairComparison(*pair, "auc", 0.01, -0.1, 0.1, 0.8, None, None, 1.0, 60, "AUC")
        for pair in combinations(models, 2)
    ]
    text = render_report(report(predictions, comparisons=undecided))
    assert Seen(text).open == []
    assert "45 lines" in text
    assert "No significant difference in the" in text


def test_a_folder_holds_the_page_the_tables_and_the_plots(written: Path) -> None:
    assert written.parent.name == "out"
    names = {str(file.relative_to(written.parent)) for file in written.parent.rglob("*.*")}
    assert names == {
        "report.html",
        *(f"{stem}.{suffix}" for stem in ("summary", "comparison") for suffix in FORMATS),
        *(f"plots/{stem}.{suffix}" for stem in PLOTS for suffix in ("png", "svg")),
    }


def test_equal_predictions_give_equal_pages(written: Path) -> None:
    assert written.read_text(encoding="utf-8") == render_report(small_report())


def test_an_interval_may_go_below_its_mean_on_a_page(written: Path) -> None:
    page = written.read_text(encoding="utf-8")
    numbers = r'<td>(<strong>)?<span class="number">0\.\d{3} ± 0\.\d{3}</span>'
    assert re.search(numbers + r' <span class="number">\[0\.\d{3}, [01]\.\d{3}\]</span>', page)


FORMATS = ("csv", "md", "tex")
PLOTS = ("roc", "calibration", "confusion", "ranks")
