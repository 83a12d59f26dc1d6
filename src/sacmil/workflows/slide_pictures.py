"""Images of one predicted slide: heatmaps per model and class, and a thumbnail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sacmil.atomic import atomic_write
from sacmil.heatmap.annotations import PictureText, check_can_draw
from sacmil.heatmap.canvas import Canvas, open_canvas
from sacmil.heatmap.pictures import draw_overlay, draw_pictures, save_picture, select_scores
from sacmil.heatmap.score_files import safe_file_name
from sacmil.results import InstanceScores, StoredPrediction, read_scores
from sacmil.slides.pixels import make_thumbnail
from sacmil.slides.readers import Slide
from sacmil.workflows.prediction_folder import PredictionFolder, SlidePredictions

if TYPE_CHECKING:
    from PIL.Image import Image

_THUMBNAIL_PX = 1024


def draw_slide_pictures(
    folder: PredictionFolder,
    record: SlidePredictions,
    answers: Sequence[StoredPrediction],
    slide: str | None,
) -> SlidePredictions:
    """Draw the images of a slide, and return the record with their paths.

    Args:
        folder: folder of scores and images.
        record: record of the slide.
        answers: predictions to draw, at least one.
        slide: its file; None draws scores on white.
    """
    check_can_draw()
    scored = [read_scores(folder.out / (answer.scores or "")) for answer in answers]
    # all are of one bag, so the slide is read once
    with open_canvas(scored[0], slide, mpp=record.mpp, slide_size=record.size) as canvas:
        newer = [
            _draw_model_pictures(folder, record, answer, scores, canvas)
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
) -> StoredPrediction:
    members, classes = len(answer.members), record.classes
    predicted = answer.find_predicted_class(classes)
    note = f"{answer.model}: {predicted} {max(answer.probabilities):.2f}"
    name = "score" if members == 1 else f"mean rank of {members} models' scores"
    shown = select_scores(scores, classes, predicted=predicted)
    words = PictureText(record.slide_id, note, shown.describe(name))
    heatmaps, stem = f"heatmaps/{safe_file_name(answer.model)}", safe_file_name(record.slide_id)

    def save(path: str, picture: Image) -> str:
        save_picture(folder.out / path, picture)
        return path

    pictures = {
        kind: save(f"{heatmaps}/{stem}_{kind}.png", picture)
        for kind, picture in draw_pictures(shown.scores, canvas, words).items()
    }
    by_class = {}
    for which in classes if scores.class_scores is not None else ():
        one = select_scores(scores, classes, predicted=predicted, class_name=which)
        text = words._replace(name=one.describe(name))
        overlay = draw_overlay(one.scores, canvas, text, show_slide=False)
        path = f"{heatmaps}/classes/{safe_file_name(which)}/{stem}_overlay.png"
        by_class[which] = save(path, overlay)
    return replace(answer, pictures=pictures, class_pictures=by_class, score_class=shown.class_name)


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
