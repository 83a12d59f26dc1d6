"""The pictures of one slide that is answered: a heatmap per model, and the slide in small."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sacmil.atomic import whole_file
from sacmil.heatmap import draw_heatmap
from sacmil.results import read_scores
from sacmil.slides.readers import open_slide
from sacmil.slides.thumbnail import thumbnail
from sacmil.workflows.prediction_folder import ModelAnswer, PredictionFolder, SlideAnswers

_THUMBNAIL_PX = 1024


def draw_slide(
    folder: PredictionFolder,
    record: SlideAnswers,
    answers: Sequence[ModelAnswer],
    slide: str | None,
) -> SlideAnswers:
    """Draw, and say in the record where the pictures are.

    Args:
        folder: where scores are, and where pictures go.
        record: what is known of the slide.
        answers: those of its answers that get pictures.
        slide: its file; None draws scores on white.
    """
    newer = [_with_pictures(folder, record, answer, slide) for answer in answers]
    small = _thumbnail(folder, record.slide_id, slide) if slide else None
    return replace(record, slide=slide, thumbnail=small).with_answers(newer)


def _with_pictures(
    folder: PredictionFolder, record: SlideAnswers, answer: ModelAnswer, slide: str | None
) -> ModelAnswer:
    members = len(answer.parts)
    winner = answer.winner(record.classes)
    pictures = draw_heatmap(
        folder.heatmaps(answer.model),
        record.slide_id,
        read_scores(folder.out / answer.scores),
        slide=slide,
        mpp=record.mpp,
        slide_size=record.size,
        name="score" if members == 1 else f"mean rank of {members} models' scores",
        note=f"{answer.model}: {winner} {max(answer.probabilities):.2f}",
    )
    return replace(answer, pictures={k: folder.relative(path) for k, path in pictures.items()})


def _thumbnail(folder: PredictionFolder, slide_id: str, slide: str) -> str:
    from PIL import Image

    path = folder.thumbnail(slide_id)
    with open_slide(slide) as opened:
        small = thumbnail(opened, max(opened.size) / _THUMBNAIL_PX, max_side=_THUMBNAIL_PX)
    with whole_file(folder.out / path) as partial:
        Image.fromarray(small.pixels).save(partial, format="JPEG", quality=88)
    return path
