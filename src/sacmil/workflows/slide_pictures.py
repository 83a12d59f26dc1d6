"""Images of one predicted slide: heatmaps per model and class, and a thumbnail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sacmil.atomic import atomic_write
from sacmil.heatmap.annotations import PictureText, check_can_draw
from sacmil.heatmap.canvas import Canvas, open_canvas
from sacmil.heatmap.overlay import draw_overlay
from sacmil.heatmap.pictures import ShownScores, draw_pictures, save_picture, select_scores
from sacmil.heatmap.score_files import safe_file_name
from sacmil.results import InstanceScores, StoredPrediction, read_scores
from sacmil.slides.pixels import make_thumbnail
from sacmil.slides.readers import Slide
from sacmil.workflows.prediction_folder import PredictionFolder, SlidePredictions

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
        small = _write_thumbnail(folder, record.slide_id, canvas.slide) if canvas.slide else None
    return replace(record, slide=slide, thumbnail=small).with_answers(newer)


def _draw_model_pictures(
    folder: PredictionFolder,
    record: SlidePredictions,
    answer: StoredPrediction,
    scores: InstanceScores,
    canvas: Canvas,
) -> StoredPrediction:
    members = len(answer.members)
    note = (
        f"{answer.model}: {answer.find_predicted_class(record.classes)} "
        f"{max(answer.probabilities):.2f}"
    )
    name = "score" if members == 1 else f"mean rank of {members} models' scores"
    predicted = answer.find_predicted_class(record.classes)
    shown = select_scores(scores, record.classes, predicted=predicted)
    words = PictureText(record.slide_id, note, shown.describe(name))
    heatmaps, stem = folder.heatmap_folder(answer.model), safe_file_name(record.slide_id)
    pictures = {
        kind: save_picture(heatmaps / f"{stem}_{kind}.png", picture)
        for kind, picture in draw_pictures(shown.scores, canvas, words).items()
    }
    by_class = {
        which: save_picture(
            heatmaps / "classes" / safe_file_name(which) / f"{stem}_overlay.png",
            draw_overlay(
                one.scores, canvas, words._replace(name=one.describe(name)), show_slide=False
            ),
        )
        for which, one in _select_by_class(scores, record.classes, predicted).items()
    }
    return replace(
        answer,
        pictures={kind: folder.to_relative_path(path) for kind, path in pictures.items()},
        class_pictures={which: folder.to_relative_path(path) for which, path in by_class.items()},
        score_class=shown.class_name,
    )


def _select_by_class(
    scores: InstanceScores, classes: Sequence[str], predicted: str
) -> Mapping[str, ShownScores]:
    if scores.class_scores is None:
        return {}
    return {
        which: select_scores(scores, classes, predicted=predicted, class_name=which)
        for which in classes
    }


def _write_thumbnail(folder: PredictionFolder, slide_id: str, slide: Slide) -> str:
    from PIL import Image

    path = folder.thumbnail_path(slide_id)
    small = make_thumbnail(slide, max(slide.size) / _THUMBNAIL_PX, max_side=_THUMBNAIL_PX)
    with atomic_write(folder.out / path) as partial:
        Image.fromarray(small.pixels).save(partial, format="JPEG", quality=88)
    return path
