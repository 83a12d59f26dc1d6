"""A survival curve is the same in the console, in every file, on pages and from ONNX."""

from __future__ import annotations

import csv
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from answering import write_bags
from click.testing import CliRunner
from survival_models import TASK, learn, write_survival_model, write_survival_run

from sacmil import export_model, load_runtime, read_bag
from sacmil.card import read_card, update_card
from sacmil.cli.predict import command
from sacmil.deploy.load import load_ensemble
from sacmil.errors import ConfigError, ModelFolderError
from sacmil.heatmap.curves import DrawnCurve
from sacmil.results import StoredPrediction, read_results
from sacmil.workflows import heatmaps
from sacmil.workflows.predict import predict_slides
from sacmil.workflows.prediction_folder import PredictionFolder
from sacmil.workflows.slide_report import render_slide_report

pytestmark = pytest.mark.usefixtures("inline_workers", "onnx_registry")
LOSSES = ("discrete", "cox")
CURVE = 2
"""The first column of the curve."""


def predict_into(out: Path, bags: Path, *models: Path, **settings: Any) -> Any:
    given = {"heatmaps": False, "device": "cpu"} | settings
    return predict_slides(bags, models, out, **given)


def read_slide(out: Path) -> StoredPrediction:
    """The last prediction of the only slide."""
    return read_results(out).slides[0].answers[-1]


@pytest.mark.parametrize("loss", LOSSES)
def test_torch_and_onnx_predict_the_same_curves(tmp_path: Path, loss: str) -> None:
    bags = write_bags(tmp_path / "bags", "a")
    run = write_survival_run(tmp_path / "run", 2, loss=loss)
    exported = export_model(run, tmp_path / "exported", sizes=[9])
    task, bag = TASK, read_bag(bags / "a.h5")
    in_torch = load_ensemble(run).predict(bag)
    in_onnx = load_runtime(exported, threads=1).predict(bag)
    for name, models in {"torch": run, "onnx": exported}.items():
        predict_into(tmp_path / name, bags, models)
        found = read_slide(tmp_path / name)
        np.testing.assert_allclose(found.values, in_torch.values, atol=1e-5)
        np.testing.assert_allclose(found.values, in_onnx.values, atol=1e-5)
        np.testing.assert_allclose(found.members, in_torch.members, atol=1e-5)
        np.testing.assert_allclose(found.spread, in_torch.spread, atol=1e-5)
        curve = task.get_curve(found)
        np.testing.assert_allclose(curve.y[1:], in_torch.values[CURVE:], atol=1e-5)
        assert (curve.x[0], curve.y[0]) == (0.0, 1.0)
        assert all(later <= earlier for earlier, later in zip(curve.y, curve.y[1:], strict=False))
        drawn = DrawnCurve.from_prediction(task, found)
        np.testing.assert_allclose(np.mean(drawn.members, axis=0), drawn.y, atol=1e-4)
    assert np.ptp(in_torch.members[:, -1]) > 1e-3, "members differ"


@pytest.mark.parametrize("loss", LOSSES)
def test_every_table_has_the_curve_and_its_percentile(tmp_path: Path, loss: str) -> None:
    bags = write_bags(tmp_path / "bags", "a")
    run = write_survival_run(tmp_path / "run", loss=loss)
    summary = predict_into(tmp_path / "out", bags, run)
    with (tmp_path / "out/predictions.csv").open(newline="", encoding="utf-8") as file:
        (row,) = csv.DictReader(file)
    found = read_slide(tmp_path / "out")
    assert [float(row[name]) for name in TASK.prediction_columns] == list(found.values)
    (slide,) = json.loads((tmp_path / "out/predictions.json").read_text())["slides"]
    assert slide["answers"][0]["values"] == list(found.values)
    assert slide["answers"][0]["parts"] == [list(member) for member in found.members]
    assert slide["answers"][0]["predicted"] == row["predicted"]
    assert row["predicted"] == ("high risk" if found.values[1] > 0.5 else "low risk")
    columns = [f"spread_{name}" for name in TASK.prediction_columns]
    assert [float(row[name]) for name in columns] == list(found.spread)
    shown = summary.task.describe(found).values[0].value
    assert shown == pytest.approx(found.values[1], abs=1e-6)


def test_a_single_model_has_no_members_in_results(tmp_path: Path) -> None:
    bags, model = write_bags(tmp_path / "bags", "a"), write_survival_model(tmp_path / "m")
    predict_into(tmp_path / "out", bags, model)
    assert "members" not in (tmp_path / "out/results.json").read_text().split('"slides"')[1]
    assert DrawnCurve.from_prediction(TASK, read_slide(tmp_path / "out")).members == ()


def test_the_console_has_the_percentile_in_percent(tmp_path: Path) -> None:
    bags, run = write_bags(tmp_path / "bags", "a"), write_survival_run(tmp_path / "run", 2)
    exported = export_model(run, tmp_path / "exported", sizes=[9])
    lines = []
    for model in (run, exported):
        out = tmp_path / f"{model.name} out"
        options = ["--model", model, "--out", out, "--no-heatmaps", "--device", "cpu"]
        done = CliRunner().invoke(command, [str(word) for word in (bags, *options)])
        assert done.exit_code == 0, done.output
        found = read_slide(out)
        lines.append(done.stdout.splitlines()[0].replace(model.name, "model"))
    percentile, spread = f"{found.values[1]:.0%}", f"{found.spread[1]:.0%}"
    group = "high" if found.values[1] > 0.5 else "low"
    expected = f"a  model: {group} risk, above {percentile} of the training patients ± {spread}"
    assert lines == [expected, expected]


# Pages.


class _Page(HTMLParser):
    """The lines, labels and text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.lines: list[tuple[str, np.ndarray]] = []
        self.images: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if tag == "polyline":
            points = [pair.split(",") for pair in (found["points"] or "").split()]
            self.lines.append((found.get("class") or "", np.array(points, dtype=float)))
        if found.get("role") == "img":
            self.images.append(found["aria-label"] or "")


def render(folder: Path, *models: Path, **settings: Any) -> str:
    bags = write_bags(folder / "bags", "a")
    predict_into(folder / "out", bags, *models, report=True, **settings)
    return (folder / "out/reports/a.html").read_text()


def test_a_page_draws_the_mean_before_the_members(tmp_path: Path) -> None:
    text = render(tmp_path, write_survival_run(tmp_path / "run"))
    page, found = _Page(text), read_slide(tmp_path / "out")
    assert [kind for kind, _ in page.lines] == ["member"] * 3 + [""]
    drawn = np.stack([points for _, points in page.lines])
    times = np.array([0.0, *TASK.curve_times])
    np.testing.assert_allclose(drawn[..., 0], np.tile(100 * times / 60, (4, 1)), atol=0.01)
    expected = np.array([*found.members, found.values])[:, CURVE:]
    np.testing.assert_allclose(drawn[:, 1:, 1], 100 - 100 * expected, atol=0.02)
    assert (drawn[:, 0, 1] == 0).all()
    (label,) = page.images
    assert label.startswith("survival by time (months): 100% at 0, ")
    assert f"{found.values[-1]:.0%} at 60" in label
    assert "Thick line: the mean. Thin lines: its 3 members." in text
    assert ">time (months)</text>" in text
    assert ">survival</text>" in text


def test_a_page_says_risk_and_survival_in_words_and_bars(tmp_path: Path) -> None:
    text = render(tmp_path, write_survival_run(tmp_path / "run"))
    found = read_slide(tmp_path / "out")
    survival = dict(zip(TASK.curve_times, found.values[CURVE:], strict=True))
    percentile = found.values[1]
    assert f"above {percentile:.0%} of the training patients" in text
    assert f"Expected survival: {survival[12]:.0%} at 12 months, {survival[36]:.0%} at" in text
    assert "Its 3 members place it above" in text
    assert "not the prognosis of this patient" in text
    assert "the probability of a disease" not in text
    bars = re.findall(r'<span class="class">(.*?)</span>', text)
    assert bars == ["risk percentile", "survival 12 months", "survival 36 months"]
    shown = re.findall(r'<span class="value">(.*?)</span>', text)
    assert shown == [f"{value:.0%}" for value in (percentile, survival[12], survival[36])]
    assert text.count("<i style") == 9, "a mark for each member"


def test_of_several_models_percentile_and_horizons_are_listed(tmp_path: Path) -> None:
    models = [write_survival_model(tmp_path / name, seed) for seed, name in enumerate("mn")]
    text = render(tmp_path, *models)
    header = re.findall(r"<th>(.*?)</th>", text)
    names = ["risk percentile", "survival 12 months", "survival 36 months"]
    assert header == ["model", "prediction", *names]
    rows = re.findall(r"<tr><td>(.*?)</td></tr>", text)
    assert len(rows) == 3
    assert re.fullmatch(r"ensemble</td><td>(high|low) risk(</td><td>\d+% ± \d+%){3}", rows[-1])


def test_a_page_of_a_folder_without_pictures_can_be_made(tmp_path: Path) -> None:
    render(tmp_path, write_survival_model(tmp_path / "m"))
    folder = PredictionFolder(tmp_path / "out")
    found = read_results(tmp_path / "out")
    text = render_slide_report(folder.out, folder.read_record("a"), found.models, [], learn())
    assert "There is no heatmap of this slide." in text


# Heatmaps.


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (
            "sac_mil_near_far",
            "a blue tile lowers the risk, and one without color has the median risk",
        ),
        ("abmil", "contributed to the prediction, in either direction. Scores are compared"),
    ],
)
def test_a_page_says_what_colors_mean(tmp_path: Path, kind: str, expected: str) -> None:
    text = render(tmp_path, write_survival_model(tmp_path / "m", 1, kind=kind), heatmaps=True)
    assert expected in text
    assert "all classes" not in text
    assert "negative" not in text
    record = PredictionFolder(tmp_path / "out").read_record("a")
    is_diverging = kind == "sac_mil_near_far"
    assert record.answers[0].normalization == ("diverging" if is_diverging else "rank")
    assert ("<h2>Heatmap: risk</h2>" in text) == is_diverging


@pytest.mark.slow
def test_the_map_of_an_ensemble_is_the_mean_of_its_members_maps(tmp_path: Path) -> None:
    run = write_survival_run(tmp_path / "run", 2, kind="sac_mil_near_far")
    text = render(tmp_path, run, heatmaps=True)
    assert "A red tile raises the risk" in text
    bag, ensemble = read_bag(tmp_path / "bags/a.h5"), load_ensemble(run)
    maps = [member.predict(bag).scores for member in ensemble.members]
    assert len(maps) > 1
    np.testing.assert_allclose(ensemble.predict(bag).scores, np.mean(maps, axis=0), rtol=1e-5)
    exported = load_runtime(export_model(run, tmp_path / "exported", sizes=[9]), threads=1).predict(
        bag
    )
    np.testing.assert_allclose(exported.scores, np.mean(maps, axis=0), atol=1e-4)


def test_scores_around_zero_have_no_normalization_to_choose(tmp_path: Path) -> None:
    bags = write_bags(tmp_path / "bags", "a")
    model = write_survival_model(tmp_path / "m", 1, kind="sac_mil_near_far")
    with pytest.raises(ConfigError, match=r"is minmax; expected none, .* a tile raises the risk"):
        heatmaps.draw_heatmaps(bags, model, tmp_path / "no", normalization="minmax")
    assert not (tmp_path / "no").exists()
    drawn = heatmaps.draw_heatmaps(bags, model, tmp_path / "out", csv=True, top=0)
    assert [path.name for path in drawn.written["a"]] == ["a_overlay.png", "a_map.png", "a.csv"]
    header = (tmp_path / "out/a.csv").read_text().splitlines()[0]
    assert header == "x,y,patch_size,score risk,score risk (diverging)"
    attention = write_survival_model(tmp_path / "n")
    drawn = heatmaps.draw_heatmaps(bags, attention, tmp_path / "n_out", normalization="minmax")
    assert not drawn.failures


def test_a_class_without_scores_is_rejected_before_a_folder_is_made(tmp_path: Path) -> None:
    bags, model = write_bags(tmp_path / "bags", "a", "b"), write_survival_model(tmp_path / "m")
    with pytest.raises(ConfigError, match="risk: this model scores tiles, not tiles per class"):
        heatmaps.draw_heatmaps(bags, model, tmp_path / "out", classes=["risk"])
    assert not (tmp_path / "out").exists()
    (bags / "a.h5").write_bytes(b"no bag")
    with pytest.raises(ConfigError, match="risk: this model scores tiles"):
        heatmaps.draw_heatmaps(bags, model, tmp_path / "out", classes=["risk"])
    assert not (tmp_path / "out").exists()
    drawn = heatmaps.draw_heatmaps(bags, model, tmp_path / "out", top=0)
    assert [*drawn.written] == ["b"]
    assert [path.name for path in drawn.failures] == ["a.h5"]


@pytest.mark.parametrize(
    ("loss", "missing"),
    [("discrete", "risk_quantiles"), ("cox", "risk_quantiles"), ("cox", "hazard")],
)
def test_a_model_without_what_its_training_taught_does_not_predict(
    tmp_path: Path, loss: str, missing: str
) -> None:
    model = write_survival_model(tmp_path / "m", loss=loss)
    card = json.loads((model / "card.json").read_text())
    del card["task"]["settings"]["learned"][missing]
    del card["card_sha256"]
    (model / "card.json").write_text(json.dumps(card))
    for use in (load_ensemble, lambda folder: export_model(folder, tmp_path / "out")):
        with pytest.raises(ModelFolderError, match="has not all that survival learns"):
            use(model)
    assert not (tmp_path / "out").exists()


OTHER_MEANINGS: dict[str, dict[str, Any]] = {
    "times": {"horizons": (12,), "curve_times": (12, 24, 36, 48, 60, 72)},
    "number of times": {"horizons": (12,), "curve_times": (12, 24)},
    "unit": {"unit": "weeks"},
    "no unit": {"unit": ""},
    "loss": {"loss": "cox"},
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory, onnx_registry: None) -> Path:
    folder = tmp_path_factory.mktemp("exported")
    return export_model(write_survival_model(folder / "model"), folder / "out", sizes=[9])


@pytest.mark.parametrize("changes", OTHER_MEANINGS.values(), ids=OTHER_MEANINGS)
def test_predictions_of_different_meaning_are_not_averaged(
    tmp_path: Path, changes: dict[str, Any], exported: Path
) -> None:
    bags = write_bags(tmp_path / "bags", "a")
    run = tmp_path / "run"
    one = write_survival_model(run / "abmil/seed_0/fold_0")
    other = write_survival_model(run / "abmil/seed_0/fold_1", **changes)
    reason = "differ in meaning .*survival at 6, 12, 24, 36, 48, 60 months with the discrete loss"
    with pytest.raises(ModelFolderError, match=f"the models make predictions that {reason}"):
        predict_into(tmp_path / "out", bags, one, other)
    with pytest.raises(ModelFolderError, match=f"its models make predictions that {reason}"):
        predict_into(tmp_path / "out", bags, run)
    with pytest.raises(ModelFolderError, match=reason):
        heatmaps.draw_heatmaps(bags, run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    for number, folder in enumerate((one, other)):  # with the cards of exports
        export = tmp_path / f"exported/member_{number}"
        shutil.copytree(exported, export)
        update_card(export, task=read_card(folder).task)
    with pytest.raises(ModelFolderError, match=reason):
        load_runtime(tmp_path / "exported")


def test_models_that_differ_in_horizons_only_are_averaged(tmp_path: Path) -> None:
    bags = write_bags(tmp_path / "bags", "a")
    one = write_survival_model(tmp_path / "one")
    other = write_survival_model(tmp_path / "other", 1, horizons=(24,))
    predict_into(tmp_path / "out", bags, one, other)
    first, second, mean = read_results(tmp_path / "out").slides[0].answers
    np.testing.assert_allclose(mean.values, np.mean([first.values, second.values], 0), rtol=1e-6)
