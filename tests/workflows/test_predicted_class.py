"""Pictures, tables and top tiles are about the predicted class, and say so."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from slide_maker import tissue_pixels, write_slide

from sacmil import Bag, create_model, list_models, load_model, predict, save_model, write_bag
from sacmil.deploy.load import load_ensembles
from sacmil.errors import ConfigError, InputError
from sacmil.heatmap import find_top_tiles, normalize_scores, select_scores
from sacmil.models import MILModel
from sacmil.models._registry import get_model_class
from sacmil.results import InstanceScores, Prediction, read_scores, write_scores
from sacmil.tasks import Classification
from sacmil.workflows.heatmaps import draw_heatmaps
from sacmil.workflows.predict import predict_slides

CLASSES = ("stroma", "tumour")
WIDTH, GRID, LESION, PATCH = 8, 8, 4, 100
OPTIONS: dict[str, dict[str, Any]] = {
    "clam_mb": {"hidden": 32, "attention_dim": 16, "subtyping": True},
    "sac_mil_local": {"dim": 32},
    "sac_mil_dual": {"dim": 32},
    "sac_mil_near_far": {"dim": 32},
    "max_pool": {"hidden": 32},
}


def make_slide(label: int, seed: int) -> tuple[Bag, set[int]]:
    """A slide whose evidence for its class is in one square of tiles, and which these are."""
    draw = np.random.default_rng(seed)
    cells = np.indices((GRID, GRID)).reshape(2, -1).T
    corner = draw.integers(0, GRID - LESION + 1, 2)
    lesion = ((cells >= corner) & (cells < corner + LESION)).all(axis=1)
    features = 0.3 * draw.normal(size=(len(cells), WIDTH)).astype(np.float32)
    features[lesion, label] += 3
    bag = Bag(f"s{seed}", features, cells * PATCH, PATCH, mpp=0.5)
    return bag, set(np.flatnonzero(lesion).tolist())


def as_tensors(model: MILModel, bag: Bag) -> tuple[Any, ...]:
    coords = bag.patch_coords
    return torch.from_numpy(bag.features), torch.from_numpy(coords), model.plan(coords)


def train_model(name: str) -> MILModel:
    torch.manual_seed(0)
    small = OPTIONS.get(name, get_model_class(name).small_options)
    options = {"in_dim": WIDTH, "num_classes": 2, **small}
    model = create_model(name, **options).train()
    slides = [(as_tensors(model, make_slide(n % 2, n)[0]), torch.tensor(n % 2)) for n in range(40)]
    groups = model.parameter_groups().values()
    optimizer = torch.optim.Adam([p for group in groups for p in group.values()], lr=0.01)
    for step in range(120):
        slide, target = slides[step % len(slides)]
        optimizer.zero_grad()
        sum(model.losses(model(*slide), target).values()).backward()
        optimizer.step()
    return model.eval()


def has_class_scores(name: str) -> bool:
    small = OPTIONS.get(name, get_model_class(name).small_options)
    options = {"in_dim": WIDTH, "num_classes": 2, **small}
    return predict(create_model(name, **options), make_slide(0, 0)[0]).class_scores is not None


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name not in ("sac_mil_local", "clam_mb")))
        for name in list_models()
        if has_class_scores(name)
    ],
)
def test_the_top_tiles_of_a_class_0_prediction_are_its_evidence(name: str) -> None:
    slide, evidence = make_slide(0, 1000)
    found = predict(train_model(name), slide)
    assert found.label == 0
    assert found.score_class == 0
    scores = InstanceScores(
        slide.coords, PATCH, found.scores, found.class_scores, found.score_class
    )
    shown = select_scores(scores, CLASSES, predicted=CLASSES[found.label])
    best = find_top_tiles(shown.scores, normalize_scores(shown.scores.scores, "rank"), 4)
    assert set(best.tolist()) <= evidence
    assert shown.describe() == "score for stroma (predicted)"


def write_linear_model(folder: Path, *, bias: float = 0.0) -> Path:
    """A model that adds up feature 0 for class 0 and feature 1 for class 1, without training."""
    model = create_model("mean_pool", in_dim=WIDTH, num_classes=2, kind="features")
    with torch.no_grad():
        model.head.weight.copy_(torch.eye(2, WIDTH))
        model.head.bias.copy_(torch.tensor([0.0, bias]))
    save_model(folder, model, classes=CLASSES)
    return folder


@pytest.mark.parametrize("label", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_files_of_a_prediction_are_of_the_predicted_class(tmp_path: Path, label: int) -> None:
    slide, evidence = make_slide(label, 7)
    write_bag(tmp_path / "bags" / "s7.h5", slide)
    (tmp_path / "slides").mkdir()
    write_slide(tmp_path / "slides" / "s7.tif", tissue_pixels(900, 900), mpp=0.5)
    model = write_linear_model(tmp_path / "m")
    given = {"device": "cpu", "slides": tmp_path / "slides", "report": True}
    done = predict_slides(tmp_path / "bags", model, tmp_path / "out", **given)
    (answer,) = done.records[0].answers
    assert (
        Classification(CLASSES).describe(answer).predicted == answer.score_class == CLASSES[label]
    )
    kept = read_scores(tmp_path / "out" / answer.scores)
    assert kept.score_class == label
    assert set(np.argsort(-kept.scores)[: len(evidence)].tolist()) == evidence
    page = (tmp_path / "out" / "reports" / "s7.html").read_text()
    assert f"Heatmap: {CLASSES[label]}" in page
    assert f"Tiles with the highest scores: {CLASSES[label]}" in page
    assert f"how much a tile supports {CLASSES[label]}" in page


@pytest.mark.slow
def test_pictures_that_an_earlier_version_drew_are_drawn_again(tmp_path: Path) -> None:
    write_bag(tmp_path / "bags" / "s7.h5", make_slide(0, 7)[0])
    model, out = write_linear_model(tmp_path / "m"), tmp_path / "out"
    predict_slides(tmp_path / "bags", model, out, device="cpu")
    picture = out / "heatmaps" / "m" / "s7_overlay.png"
    drawn = picture.read_bytes()
    file = out / "answers" / "s7.json"
    record = json.loads(file.read_text())
    for answer in record["answers"]:
        del answer["score_class"]
    file.write_text(json.dumps(record))
    Image.new("RGB", (9, 9)).save(picture)
    predict_slides(tmp_path / "bags", model, out, device="cpu")
    assert picture.read_bytes() == drawn


def test_tiles_for_qupath_and_tables_name_the_class_and_are_coloured_by_it(tmp_path: Path) -> None:
    slide, evidence = make_slide(0, 7)
    write_bag(tmp_path / "s7.h5", slide)
    model, out = write_linear_model(tmp_path / "m"), tmp_path / "out"
    draw_heatmaps(tmp_path / "s7.h5", model, out, geojson=True, csv=True)
    rows = list(csv.DictReader((out / "s7.csv").read_text().splitlines()))
    assert list(rows[0]) == [
        *("x", "y", "patch_size", "score stroma", "score tumour"),
        "score stroma (rank)",
    ]
    ranks = np.array([float(row["score stroma (rank)"]) for row in rows])
    assert set(np.argsort(-ranks)[: len(evidence)].tolist()) == evidence
    features = json.loads(gzip.decompress((out / "s7.geojson.gz").read_bytes()))["features"]
    bright = [sum(feature["properties"]["color"]) for feature in features]
    assert set(np.argsort(bright)[-len(evidence) :].tolist()) == evidence


def test_a_single_output_names_the_only_class_it_scores(tmp_path: Path) -> None:
    model = create_model("mean_pool", in_dim=WIDTH, num_classes=1, kind="features")
    with torch.no_grad():
        model.head.bias.fill_(-9.0)
    save_model(tmp_path / "m", model, classes=("tumour",))
    slide, _ = make_slide(0, 7)
    (ensemble,) = load_ensembles([tmp_path / "m"])
    found = ensemble.predict(slide)
    assert ensemble.classes[found.label] == "not tumour"
    located = InstanceScores.from_prediction(found, slide.coords, float(slide.patch_size))
    shown = select_scores(located, ensemble.classes, predicted="not tumour")
    assert shown.describe() == "score for tumour"
    chosen = select_scores(located, ensemble.classes, predicted="not tumour", class_name="tumour")
    np.testing.assert_array_equal(chosen.scores.scores, shown.scores.scores)
    with pytest.raises(ConfigError, match="this model has scores of tumour"):
        select_scores(located, ensemble.classes, predicted="not tumour", class_name="not tumour")
    with pytest.raises(InputError, match="no scores for class 0"):
        predict(model, slide).scores_for(0)
    np.testing.assert_array_equal(
        shown.scores.scores, predict(load_model(tmp_path / "m"), slide).scores
    )


def test_one_score_for_all_classes_says_so() -> None:
    scores = InstanceScores(np.zeros((2, 2)), 1.0, np.zeros(2, np.float32))
    assert select_scores(scores, CLASSES, predicted="tumour").describe("attention") == (
        "attention, one for all classes"
    )


def test_scores_follow_the_probabilities_where_a_model_gave_those_of_another_class() -> None:
    by_class = np.array([[1.0, 2.0], [4.0, 3.0]], np.float32)
    found = Prediction.from_output("s", np.array([0.9, 0.1]), by_class[:, 1], by_class, CLASSES)
    np.testing.assert_array_equal(found.scores, by_class[:, 0])
    np.testing.assert_array_equal(found.scores_for(1), by_class[:, 1])
    for wrong in (2, -1, None, True):
        with pytest.raises(InputError, match="expected the index of one, 0 to 1"):
            found.scores_for(wrong)


def test_a_file_of_scores_says_which_class_they_are_about(tmp_path: Path) -> None:
    scores = InstanceScores(np.zeros((2, 2)), 1.0, np.zeros(2, np.float32), score_class=1)
    write_scores(tmp_path / "new.npz", scores)
    assert read_scores(tmp_path / "new.npz").score_class == 1
    np.savez(tmp_path / "old.npz", coords=np.zeros((2, 2)), patch_size=1.0, scores=np.zeros(2))
    assert read_scores(tmp_path / "old.npz").score_class is None
