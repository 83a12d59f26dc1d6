"""Images of one predicted slide: heatmaps per model and class, and a thumbnail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sacmil.atomic import atomic_write
from sacmil.heatmap.annotations import check_can_draw
from sacmil.heatmap.canvas import Canvas, open_canvas
from sacmil.heatmap.pictures import draw_overlay, draw_pictures, save_picture, select_scores
from sacmil.heatmap.score_files import safe_file_name
from sacmil.heatmap.score_words import ScoreWords
from sacmil.results import InstanceScores, StoredPrediction, read_scores
from sacmil.slides.pixels import make_thumbnail
from sacmil.slides.readers import Slide
from sacmil.tasks import Task
from sacmil.workflows.prediction_folder import PredictionFolder, SlidePredictions

if TYPE_CHECKING:
    from PIL.Image import Image

_THUMBNAIL_PX = 1024


def draw_slide_pictures(
    folder: PredictionFolder,
    record: SlidePredictions,
    answers: Sequence[StoredPrediction],
    slide: str | None,
    task: Task,
) -> SlidePredictions:
    """Draw the images of a slide, and return the record with their paths.

    Args:
        folder: folder of scores and images.
        record: record of the slide.
        answers: predictions to draw, at least one.
        slide: its file; None draws scores on white.
        task: what is predicted.
    """
    check_can_draw()
    scored = [read_scores(folder.out / (answer.scores or "")) for answer in answers]
    # all are of one bag, so the slide is read once
    with open_canvas(scored[0], slide, mpp=record.mpp, slide_size=record.size) as canvas:
        newer = [
            _draw_model_pictures(folder, record, answer, scores, canvas, task)
            for answer, scores in zip(answers, scored, strict=True)
        ]
        small = folder.thumbnail_path(record.slide_id) if canvas.slide else None
        if canvas.slide and small:
            write_thumbnail(folder.out / small, canvas.slide, _THUMBNAIL_PX)
    return replace(record, slide=slide, thumbnail=small).with_answers(newer)


def _draw_model_pictures(
    folder: PredictionFolder,
    record: SlidePredictions,
    answer: StoredPrediction,
    scores: InstanceScores,
    canvas: Canvas,
    task: Task,
) -> StoredPrediction:
    members, classes, summary = len(answer.members), task.score_names, task.describe(answer)
    words = ScoreWords.from_task(task)
    predicted = classes[summary.score_column]
    note = f"{answer.model}: {summary.headline}"
    name = "score" if members == 1 else f"mean rank of {members} models' scores"
    shown = select_scores(scores, classes, predicted=predicted)
    how = shown.choose_normalization(words=words)
    text = shown.make_text(record.slide_id, note, name, how, words)
    heatmaps, stem = f"heatmaps/{safe_file_name(answer.model)}", safe_file_name(record.slide_id)

    def save(path: str, picture: Image) -> str:
        save_picture(folder.out / path, picture)
        return path

    pictures = {
        kind: save(f"{heatmaps}/{stem}_{kind}.png", picture)
        for kind, picture in draw_pictures(shown.scores, canvas, text).items()
    }
    by_class = {}
    for which in classes if scores.class_scores is not None else ():
        one = select_scores(scores, classes, predicted=predicted, class_name=which)
        own = one.make_text(record.slide_id, note, name, how, words)
        overlay = draw_overlay(one.scores, canvas, own, show_slide=False)
        path = f"{heatmaps}/classes/{safe_file_name(which)}/{stem}_overlay.png"
        by_class[which] = save(path, overlay)
    newer = replace(answer, pictures=pictures, class_pictures=by_class)
    return replace(newer, score_class=shown.class_name, normalization=how)


def write_thumbnail(path: Path, slide: Slide, side: int) -> None:
    """Write a small image of a slide.

    Args:
        path: of the JPEG.
        slide: an open slide.
        side: its longer side in pixels.
    """
    from PIL import Image

    small = make_thumbnail(slide, max(slide.size) / side, max_side=side)
    with atomic_write(path) as partial:
        Image.fromarray(small.pixels).save(partial, format="JPEG", quality=88)
