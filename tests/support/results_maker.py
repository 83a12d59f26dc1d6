"""A maker of results folders: real pyramids, truth, two models, and what may be missing."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from PIL import Image
from slide_maker import shrunk, tissue_pixels, write_slide

from sacmil.results import (
    InstanceScores,
    ModelInfo,
    Results,
    SlideResult,
    StoredPrediction,
    write_results,
    write_scores,
)

CLASSES = ("normal", "tumour")
MODELS = ("sac_mil", "mean_pool")
SIZE = (1536, 1280)
SIDE = 128
"""Of a tile, in level-0 pixels."""
MPP = 0.5
HOT = {"sac_mil": (384, 512), "mean_pool": (1024, 768)}
"""Corner of the tile each model scores highest."""
TRUTH = ((300, 420), (720, 420), (720, 780), (300, 780))


def make_results(folder: Path) -> Path:
    """A folder in which each slide shows one thing that happens.

    ``tumour-1`` has everything and is right; ``normal-1`` is called tumour; ``unscored`` has an
    answer but no scores; ``bag-only`` has scores but no slide; ``thumbnail-only`` has lost its
    slide; ``damaged`` cannot be opened; ``unlabelled`` has no label and one answer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pixels = tissue_pixels(*SIZE, seed=3)
    _write_pyramid(folder / "slides/tumour-1.tif", pixels)
    for name in ("normal-1", "unscored", "unlabelled"):
        shutil.copy(folder / "slides/tumour-1.tif", folder / f"slides/{name}.tif")
    (folder / "slides/damaged.tif").write_bytes(b"II*\0 and nothing that follows")
    _write_thumbnail(folder / "thumbnails/thumbnail-only.png", pixels)
    _write_truth(folder / "truth/tumour-1.geojson")
    slides = (
        _slide(folder, "tumour-1", 0.94, label="tumour", truth="truth/tumour-1.geojson"),
        _slide(folder, "normal-1", 0.71, label="normal"),
        _slide(folder, "unscored", 0.08, label="normal", scored=False),
        _slide(folder, "bag-only", 0.88, label="tumour", slide=None),
        _slide(
            folder,
            "thumbnail-only",
            0.35,
            label="normal",
            slide="slides/lost.tif",
            thumbnail="thumbnails/thumbnail-only.png",
        ),
        _slide(folder, "damaged", 0.12, label="tumour"),
        _slide(folder, "unlabelled", 0.55, models=MODELS[:1]),
    )
    models = (ModelInfo("sac_mil", "0" * 64, members=3), ModelInfo("mean_pool", "1" * 64))
    write_results(folder, Results(CLASSES, models, slides))
    return folder


def tile_scores(model: str) -> InstanceScores:
    """Scores that fall with the distance from the model's hot tile; by class the other way round.

    Only the tile itself has the highest score, and ranks and min-max differ.
    """
    columns, rows = (np.arange(0, side, SIDE) for side in SIZE)
    coords = np.stack(np.meshgrid(columns, rows), axis=-1).reshape(-1, 2)
    far = np.linalg.norm(coords - HOT[model], axis=1)
    own = np.exp(-((far / 500) ** 2)).astype(np.float32)
    return InstanceScores(coords, SIDE, own, np.stack([1 - own, own], axis=1))


def _slide(
    folder: Path,
    name: str,
    tumour: float,
    *,
    label: str | None = None,
    slide: str | None = "",
    scored: bool = True,
    models: tuple[str, ...] = MODELS,
    truth: str | None = None,
    thumbnail: str | None = None,
) -> SlideResult:
    answers = tuple(_answer(folder, name, model, tumour, scored=scored) for model in models)
    path = f"slides/{name}.tif" if slide == "" else slide
    return SlideResult(name, answers, label, path, thumbnail, truth, MPP, SIZE)


def _answer(
    folder: Path, name: str, model: str, tumour: float, *, scored: bool
) -> StoredPrediction:
    ensemble = model == "sac_mil"
    share = tumour if ensemble else 1 - tumour  # the models never agree
    path = f"scores/{model}/{name}.npz"
    if scored:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        write_scores(folder / path, tile_scores(model))
    spread = (0.03, 0.03) if ensemble else None
    return StoredPrediction(model, (1 - share, share), spread, path if scored else None)


def _write_pyramid(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_slide(path, pixels, mpp=MPP)


def _write_thumbnail(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(shrunk(pixels, 8)).save(path)


def _write_truth(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    ring = [[*corner] for corner in (*TRUTH, TRUTH[0])]
    geometry = {"type": "Polygon", "coordinates": [ring]}
    feature = {"type": "Feature", "geometry": geometry, "properties": {}}
    path.write_text(json.dumps({"type": "FeatureCollection", "features": [feature]}))
