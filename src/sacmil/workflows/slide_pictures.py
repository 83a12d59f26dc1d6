"""The pictures of one slide that is answered: heatmaps per model and class, and itself in small."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sacmil.atomic import whole_file
from sacmil.heatmap.file_name import file_name
from sacmil.heatmap.furniture import check_can_draw
from sacmil.heatmap.ground import Ground, ground_of
from sacmil.heatmap.pictures import (
    ShownScores,
    Words,
    draw_all,
    draw_alone,
    save_picture,
    select_scores,
)
from sacmil.results import Scores, read_scores
from sacmil.slides.readers import Slide
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
        answers: those of its answers that get pictures, one at least.
        slide: its file; None draws scores on white.
    """
    check_can_draw()
    scored = [read_scores(folder.out / answer.scores) for answer in answers]
    # all of them are of one bag, so that the slide is read once
    with ground_of(scored[0], slide, mpp=record.mpp, slide_size=record.size) as ground:
        newer = [
            _with_pictures(folder, record, answer, scores, ground)
            for answer, scores in zip(answers, scored, strict=True)
        ]
        small = _thumbnail(folder, record.slide_id, ground.slide) if ground.slide else None
    return replace(record, slide=slide, thumbnail=small).with_answers(newer)


def _with_pictures(
    folder: PredictionFolder,
    record: SlideAnswers,
    answer: ModelAnswer,
    scores: Scores,
    ground: Ground,
) -> ModelAnswer:
    members = len(answer.parts)
    note = f"{answer.model}: {answer.winner(record.classes)} {max(answer.probabilities):.2f}"
    name = "score" if members == 1 else f"mean rank of {members} models' scores"
    predicted = answer.winner(record.classes)
    shown = select_scores(scores, record.classes, predicted=predicted)
    words = Words(record.slide_id, note, shown.describe(name))
    where, stem = folder.heatmaps(answer.model), file_name(record.slide_id)
    pictures = {
        kind: save_picture(where / f"{stem}_{kind}.png", picture)
        for kind, picture in draw_all(shown.scores, ground, words).items()
    }
    by_class = {
        which: save_picture(
            where / "classes" / file_name(which) / f"{stem}_overlay.png",
            draw_alone(one.scores, ground, words._replace(name=one.describe(name))),
        )
        for which, one in _by_class(scores, record.classes, predicted).items()
    }
    return replace(
        answer,
        pictures={kind: folder.relative(path) for kind, path in pictures.items()},
        class_pictures={which: folder.relative(path) for which, path in by_class.items()},
        score_class=shown.class_name,
    )


def _by_class(scores: Scores, classes: Sequence[str], predicted: str) -> Mapping[str, ShownScores]:
    if scores.class_scores is None:
        return {}
    return {
        which: select_scores(scores, classes, predicted=predicted, which=which) for which in classes
    }


def _thumbnail(folder: PredictionFolder, slide_id: str, slide: Slide) -> str:
    from PIL import Image

    path = folder.thumbnail(slide_id)
    small = thumbnail(slide, max(slide.size) / _THUMBNAIL_PX, max_side=_THUMBNAIL_PX)
    with whole_file(folder.out / path) as partial:
        Image.fromarray(small.pixels).save(partial, format="JPEG", quality=88)
    return path
