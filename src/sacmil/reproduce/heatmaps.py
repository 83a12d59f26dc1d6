"""The paper's heatmaps: a row per slide with the annotation and every model's scores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

from sacmil.atomic import atomic_write
from sacmil.bag import Bag
from sacmil.cohorts.camelyon16 import read_camelyon16
from sacmil.cohorts.cohort import Cohort, read_cohort
from sacmil.cohorts.dataset import Dataset
from sacmil.cohorts.outlines import Outlines, label_tiles
from sacmil.cohorts.splits import make_folds
from sacmil.csv_text import escape_cell
from sacmil.errors import CohortError, RunError
from sacmil.formats import read_bag
from sacmil.heatmap import annotations as figure_parts
from sacmil.heatmap import canvas, read_truth
from sacmil.heatmap.annotations import TEXT_COLOR, TEXT_PX, draw_text
from sacmil.heatmap.colors import normalize_scores
from sacmil.heatmap.pictures import blend_colors, draw_truth
from sacmil.metrics.classification import auc
from sacmil.models import load_model, predict
from sacmil.reproduce._dataset import ReproduceDataset, load_datasets
from sacmil.reproduce._paper import TABLES
from sacmil.reproduce._table import RUNS, cross_validate_rows
from sacmil.reproduce.experiments import DatasetPaths, ReproduceRequest
from sacmil.results import InstanceScores
from sacmil.slides.readers import open_slide
from sacmil.slides.search import find_slides

if TYPE_CHECKING:
    from PIL.Image import Image

NAME = "heatmaps"
DATASET = "camelyon16"
ROWS = {name: TABLES["table1"].rows[name] for name in ("SAC-MIL", "AB-MIL", "CLAM-SB", "Trans-MIL")}
"""Columns of the figure and their models."""
NUM_SLIDES = 4
CELL_PX = 380
"""Side of a map in pixels."""
_GAP_PX, _HEADER_PX = 16, 28


class ScoredSlide(NamedTuple):
    """A test slide with instance labels, and the models' scores."""

    bag: Bag
    labels: npt.NDArray[np.integer]
    """(N,), 1 where the tile is positive."""
    outlines: Outlines | None
    scores: Mapping[str, npt.NDArray[np.float32]]
    """By column."""


def run(out: Path, request: ReproduceRequest) -> Iterator[Path]:
    """Train each model on the first fold, and draw the test slides with instance labels."""
    figure_parts.check_can_draw()
    dataset = _load_dataset(out, request)
    folder = out / RUNS / f"{dataset.name}-{NAME}"
    done = cross_validate_rows(folder, dataset, ROWS, replace(request, seeds=1))
    if done.failures:
        listed = "\n".join(f"  - {job}: {why}" for job, why in done.failures.items())
        raise RunError(f"training failed for a model of the figure:\n{listed}")
    slides = _score_slides(folder, dataset, request)
    found = {row: float(np.mean([auc(s.labels, s.scores[row]) for s in slides])) for row in ROWS}
    yield _write_table(out / f"{NAME}.csv", slides, found)
    with atomic_write(out / f"{NAME}.png") as partial:
        _draw_figure(slides, dataset, found, request.images).save(partial, format="PNG")
    yield out / f"{NAME}.png"


# --- scores --------------------------------------------------------------------------------------


def _load_dataset(out: Path, request: ReproduceRequest) -> ReproduceDataset:
    """Return the first fold of the user's cohort, or of a synthetic one."""
    if not request.data:
        only = request.only[:1] or (DATASET,)
        (synthetic_dataset,) = load_datasets(out, TABLES["table1"], replace(request, only=only))
        return synthetic_dataset._replace(folds=synthetic_dataset.folds[:1])
    name, source = next(iter(request.data.items()))
    cohort = _read_cohort(source)
    data = Dataset(cohort, source.bags)
    folds = make_folds(cohort, request.folds)[:1]
    description = f"{source.table.name}, bags of {source.bags.name}"
    return ReproduceDataset(name, source.table.stem, data, folds, description, synthetic=False)


def _read_cohort(source: DatasetPaths) -> Cohort:
    """Read CAMELYON16 without its official test set, or any other table."""
    cohort = read_cohort(source.table)
    names = [slide.slide_id for slide in cohort.slides]
    if all(name.startswith(("normal_", "tumor_", "test_")) for name in names):
        return read_camelyon16(source.table).training
    return cohort


def _score_slides(
    folder: Path, dataset: ReproduceDataset, request: ReproduceRequest
) -> list[ScoredSlide]:
    """Score every test slide that has tiles of both kinds, the largest lesion first."""
    models = {
        row: load_model(folder / variant.name / "seed_0" / "fold_0")
        for row, variant in ROWS.items()
    }
    scored = []
    for slide_id in dataset.folds[0].test:
        bag = read_bag(dataset.data.bags[slide_id])
        labels, outlines = _load_truth(bag, request.truth)
        if labels is None or not labels.any() or labels.all():
            continue
        scores = {row: predict(model, bag).scores for row, model in models.items()}
        scored.append(ScoredSlide(bag, labels, outlines, scores))
    if not scored:
        raise CohortError(
            dataset.description,
            [
                "no test slide of the first fold has positive and negative tiles; expected bags "
                "with instance labels, or annotations by `truth`"
            ],
        )
    return sorted(scored, key=lambda slide: -float(slide.labels.mean()))


def _load_truth(
    bag: Bag, truth: Path | None
) -> tuple[npt.NDArray[np.integer] | None, Outlines | None]:
    found = truth and read_truth(truth, bag.slide_id, bounds_origin=bag.bounds_origin)
    if found:
        return label_tiles(bag.coords, float(bag.patch_size), found), found
    return None if bag.labels is None else (bag.labels > 0).astype(np.int64), None


def select_slides(slides: Sequence[ScoredSlide], count: int = NUM_SLIDES) -> list[ScoredSlide]:
    """Select slides at even steps from the largest lesion to the smallest."""
    indices = np.linspace(0, len(slides) - 1, min(count, len(slides))).round().astype(int)
    return [slides[index] for index in indices.tolist()]


# --- the figure ----------------------------------------------------------------------------------


def _draw_figure(
    slides: Sequence[ScoredSlide],
    dataset: ReproduceDataset,
    mean_auc: Mapping[str, float],
    images: Path | None,
) -> Image:
    sheet = _draw_sheet(select_slides(slides), mean_auc, images)
    note = (
        f"{dataset.description}; test slides of the first fold, from the largest lesion to the "
        f"smallest of {len(slides)} with labels. AUC: scores against labels of tiles; means are "
        "over all of these slides. Colours: rank of the score within each slide."
    )
    title = "Models' tile scores beside the annotations"
    panel, legend = figure_parts.Panel("", sheet), figure_parts.ColorBar(0, 1, "rank")
    return figure_parts.compose_figure(title, note, [panel], legend)


def _draw_sheet(
    rows: Sequence[ScoredSlide], mean_auc: Mapping[str, float], images: Path | None
) -> npt.NDArray[np.uint8]:
    from PIL import Image, ImageDraw

    step, line = CELL_PX + _GAP_PX, CELL_PX + _GAP_PX + _HEADER_PX
    size = (1 + len(ROWS)) * step - _GAP_PX, _HEADER_PX + len(rows) * line
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    heads = ["annotation", *(f"{row} · mean AUC {mean_auc[row]:.2f}" for row in ROWS)]
    for column, head in enumerate(heads):
        draw_text(draw, (column * step, 0), head, TEXT_PX, TEXT_COLOR)
    for number, slide in enumerate(rows):
        top = _HEADER_PX + number * line
        for column, (caption, cell) in enumerate(_draw_cells(slide, images)):
            draw_text(draw, (column * step, top + 4), caption, TEXT_PX - 3, TEXT_COLOR)
            sheet.paste(cell, (column * step, top + _HEADER_PX))
    return np.asarray(sheet)


def _draw_cells(slide: ScoredSlide, images: Path | None) -> Iterator[tuple[str, Image]]:
    """Yield the annotation and every model's map, each with a caption."""
    from PIL import Image

    bag = slide.bag
    instances = InstanceScores(bag.coords, float(bag.patch_size), np.zeros(len(bag), np.float32))
    view = canvas.fit_viewport(instances, slide_size=bag.slide_size, longer_side=CELL_PX)
    pixels = _read_pixels(bag, instances, view, images)
    truth = slide.labels if slide.outlines is None else slide.outlines
    first = Image.fromarray(draw_truth(instances, truth, pixels, view))
    figure_parts.draw_scale_bar(first, view.downsample, bag.mpp)
    yield f"{bag.slide_id}: {slide.labels.mean():.1%} positive", first
    for scores in slide.scores.values():
        means, covered = canvas.rasterize(instances, normalize_scores(scores, "rank"), view)
        overlay = Image.fromarray(blend_colors(pixels, means, covered))
        yield f"AUC {auc(slide.labels, scores):.2f}", overlay


def _read_pixels(
    bag: Bag, instances: InstanceScores, view: canvas.Viewport, images: Path | None
) -> npt.NDArray[np.uint8] | None:
    paths = {path.stem: path for path in find_slides([images])} if images else {}
    if bag.slide_id not in paths:
        return None
    with open_slide(paths[bag.slide_id]) as slide:
        canvas.check_slide_matches(instances, slide, bag.slide_size)
        return canvas.read_viewport(slide, view)


def _write_table(path: Path, slides: Sequence[ScoredSlide], mean_auc: Mapping[str, float]) -> Path:
    """Write the AUC of every model's scores on every slide, and the mean."""
    rows: list[dict[str, object]] = [
        {
            "slide_id": escape_cell(slide.bag.slide_id),
            "tiles": len(slide.labels),
            "positive": int(slide.labels.sum()),
            **{row: auc(slide.labels, slide.scores[row]) for row in ROWS},
        }
        for slide in slides
    ]
    rows.append({"slide_id": "mean", "tiles": "", "positive": "", **mean_auc})
    with atomic_write(path) as partial:
        table = pd.DataFrame(rows)
        table.to_csv(partial, index=False, float_format="%.6f", na_rep="nan", lineterminator="\n")
    return path
