"""The page of one slide: one self-contained HTML file without scripts."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sacmil.atomic import atomic_write
from sacmil.errors import MissingExtraError
from sacmil.evaluation.html_page import escape_text, render_page, render_section, render_warnings
from sacmil.results import ModelInfo, StoredPrediction
from sacmil.workflows.model_summary import ModelSummary
from sacmil.workflows.prediction_folder import PredictionFolder, SlidePredictions

_CLEAR_PROBABILITY, _LEANING_PROBABILITY = 0.9, 0.7
"""Minimum probability of a clear prediction, and of a leaning one."""
_LARGE_SPREAD = 0.15
"""Minimum spread at which the page points out disagreement."""
_MAX_PICTURE_PX, _MAX_CLASS_PX = 1600, 900
"""Maximum width of images."""
_MAX_MEMBER_MARKS = 40
"""Maximum number of members with a mark each; of more, only the range is shown."""


def write_slide_report(
    folder: PredictionFolder,
    record: SlidePredictions,
    models: Sequence[ModelInfo],
    facts: Sequence[ModelSummary],
) -> Path:
    """Write the page of a slide atomically.

    Args:
        folder: folder of images and pages.
        record: predictions of the slide.
        models: models that predicted; the page shows the last one's prediction.
        facts: sections about the models.
    """
    path = folder.report_path(record.slide_id)
    with atomic_write(path) as partial:
        partial.write_text(render_slide_report(folder.out, record, models, facts), encoding="utf-8")
    return path


def render_slide_report(
    root: Path, record: SlidePredictions, models: Sequence[ModelInfo], facts: Sequence[ModelSummary]
) -> str:
    """Return the page as text; arguments as of write_slide_report, paths relative to root."""
    predictions = record.select_models(models)
    body = "\n".join(filter(None, _render_sections(root, record, predictions, facts)))
    footer = "Research use only, not a medical device."
    return render_page(record.slide_id, body, style=_STYLE, banner=_BANNER, footer=footer)


def _render_sections(
    root: Path,
    record: SlidePredictions,
    predictions: Sequence[StoredPrediction],
    facts: Sequence[ModelSummary],
) -> Iterator[str]:
    prediction = predictions[-1]
    yield render_warnings(record.warnings)
    yield _render_prediction(record.classes, prediction)
    yield render_section(_make_title("Heatmap", prediction), _render_heatmap(root, prediction))
    yield render_section(
        "Heatmaps by class", _render_class_pictures(root, record.classes, prediction)
    )
    tiles = _render_picture(root, prediction, "tiles", _TILES_ALT)
    yield render_section(_make_title("Tiles with the highest scores", prediction), tiles)
    if len(predictions) > 1:
        yield render_section(
            "Predictions of each model", _render_model_table(record.classes, predictions)
        )
    yield render_section("Slide", _render_definitions(_describe_slide(record)))
    for model in facts:
        title = "Model" if len(facts) == 1 else f"Model {model.name}"
        yield render_section(escape_text(title), _render_definitions(model.facts))


def _render_prediction(classes: Sequence[str], prediction: StoredPrediction) -> str:
    bars = "\n".join(
        _render_bar(name, probability, [member[number] for member in prediction.members])
        for number, (name, probability) in enumerate(
            zip(classes, prediction.probabilities, strict=True)
        )
    )
    doubt = (
        " <small>undecided</small>" if max(prediction.probabilities) < _LEANING_PROBABILITY else ""
    )
    key = '<p class="note">Bar: the mean. Marks: single members.</p>'
    return (
        '<section class="prediction">'
        f'<p class="label">Prediction of {escape_text(prediction.model)}</p>'
        f'<p class="winner">{escape_text(prediction.find_predicted_class(classes))}{doubt}</p>'
        f'<p class="reading">{escape_text(describe_prediction(classes, prediction))}</p>'
        f'<div class="bars">{bars}</div>{key if len(prediction.members) > 1 else ""}</section>'
    )


def _render_bar(name: str, probability: float, members: Sequence[float]) -> str:
    marks = "".join(
        f'<i style="left:{100 * member:.1f}%"></i>'
        for member in members
        if 1 < len(members) <= _MAX_MEMBER_MARKS
    )
    return (
        f'<span class="class">{escape_text(name)}</span>'
        f'<span class="track"><b style="width:{100 * probability:.1f}%"></b>{marks}</span>'
        f'<span class="value">{format_probability(probability)}</span>'
    )


def format_probability(probability: float) -> str:
    """Format a probability, so that rounding never makes it certain.

    >>> format_probability(0.5), format_probability(0.9996), format_probability(0.0002)
    ('0.50', '> 0.99', '< 0.01')
    """
    if probability > 0.99:
        return "> 0.99"
    return "< 0.01" if probability < 0.01 else f"{probability:.2f}"


def describe_prediction(classes: Sequence[str], prediction: StoredPrediction) -> str:
    """Describe a prediction in plain words.

    Args:
        classes: their names.
        prediction: prediction of one model or an ensemble.
    """
    order = sorted(range(len(classes)), key=lambda c: -prediction.probabilities[c])
    first, second = order[:2]
    best = prediction.probabilities[first]
    if best >= _CLEAR_PROBABILITY:
        words = (
            f"The model clearly favours {classes[first]} over {_describe_others(classes, second)}"
        )
    elif best >= _LEANING_PROBABILITY:
        words = f"The model leans towards {classes[first]}, but not clearly"
    else:
        words = f"The model is undecided between {classes[first]} and {classes[second]}"
    return (
        f"{words} (probability {format_probability(best)}). "
        f"{_describe_agreement(classes, prediction, first)}{_CAUTION}"
    )


_CAUTION = (
    "This number is the model's confidence, not the probability of a disease. It depends on the "
    "slides the model was trained on, and models are often over-confident."
)


def _describe_others(classes: Sequence[str], second: int) -> str:
    return classes[second] if len(classes) == 2 else f"the {len(classes) - 1} other classes"


def _describe_agreement(classes: Sequence[str], prediction: StoredPrediction, first: int) -> str:
    count = len(prediction.members)
    if count == 1 or prediction.spread is None:
        return ""
    in_favor = sum(max(range(len(one)), key=one.__getitem__) == first for one in prediction.members)
    given = [one[first] for one in prediction.members]
    everyone = "Both" if count == 2 else f"All {count}"
    agreed = f"{everyone} members agree"
    if in_favor < count:
        agreed = f"{in_favor} of {count} members predict {classes[first]}"
    text = (
        f"{agreed}; their probabilities range from {format_probability(min(given))} to "
        f"{format_probability(max(given))} "
        f"(spread {prediction.spread[first]:.2f}). "
    )
    differs = "Their confidence differs a lot" if in_favor == count else "They disagree a lot"
    return text + (f"{differs}: look closely. " if prediction.spread[first] > _LARGE_SPREAD else "")


_OVERLAY_ALT = "Scores of the tiles over the slide"
_TILES_ALT = "The highest-scoring tiles, cut from the slide"


def _render_heatmap(root: Path, prediction: StoredPrediction) -> str:
    picture = _render_picture(root, prediction, "overlay", _OVERLAY_ALT)
    if not picture:
        return '<p class="note">There is no heatmap of this slide.</p>'
    return f'{picture}<p class="note">{_describe_score(prediction)} {_SLIDE_SCALE_NOTE}</p>'


_SLIDE_SCALE_NOTE = (
    "Scores are compared within this slide only. The highest are bright even if the prediction is "
    "negative."
)


def _describe_score(prediction: StoredPrediction) -> str:
    """Return what a score means, as HTML."""
    if prediction.score_class is None:
        return (
            "A score shows how much a tile contributed to the prediction; this model has one score "
            "for all classes."
        )
    return f"A score shows how much a tile supports {escape_text(prediction.score_class)}."


def _make_title(title: str, prediction: StoredPrediction) -> str:
    """Return the title of a section with the class of its images, as HTML."""
    class_name = prediction.score_class if prediction.pictures else None
    return title if class_name is None else f"{title}: {escape_text(class_name)}"


def _render_class_pictures(root: Path, classes: Sequence[str], prediction: StoredPrediction) -> str:
    """Render images by class, the most probable first; "" if scores are not by class."""
    drawn = [number for number, name in enumerate(classes) if name in prediction.class_pictures]
    figures = "\n".join(
        _render_image(
            root / prediction.class_pictures[classes[number]],
            f"Scores for {escape_text(classes[number])}",
            _MAX_CLASS_PX,
            f"{escape_text(classes[number])}: "
            f"{escape_text(format_probability(prediction.probabilities[number]))}",
        )
        for number in sorted(drawn, key=lambda c: -prediction.probabilities[c])
    )
    return f'<div class="classes">{figures}</div>{_CLASS_SCALE_NOTE}' if figures else ""


_CLASS_SCALE_NOTE = (
    '<p class="note">Each class has its own scale: do not compare brightness between images.</p>'
)


def _render_picture(root: Path, prediction: StoredPrediction, kind: str, alt: str) -> str:
    if kind not in prediction.pictures:
        return ""
    return _render_image(root / prediction.pictures[kind], alt, _MAX_PICTURE_PX)


def _render_image(path: Path, alt: str, width: int, caption: str = "") -> str:
    """Return an inline image; alt and caption are HTML."""
    source = base64.b64encode(_encode_jpeg(path, width)).decode()
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure>{below}<img alt="{alt}" src="data:image/jpeg;base64,{source}"></figure>'


def _encode_jpeg(path: Path, width: int) -> bytes:
    """Return an image as JPEG, a tenth of the PNG's size, no wider than the page shows."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("slides", "a page with pictures") from None
    buffer = io.BytesIO()
    with Image.open(path) as image:
        image.thumbnail((width, 2 * width))
        image.convert("RGB").save(buffer, format="JPEG", quality=88)
    return buffer.getvalue()


def _render_model_table(classes: Sequence[str], predictions: Sequence[StoredPrediction]) -> str:
    head = "".join(f"<th>{escape_text(name)}</th>" for name in ("model", "prediction", *classes))
    rows = "\n".join(
        f"<tr><td>{escape_text(one.model)}</td><td>{escape_text(one.find_predicted_class(classes))}</td>"
        + "".join(f"<td>{_format_with_spread(one, number)}</td>" for number in range(len(classes)))
        + "</tr>"
        for one in predictions
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"


def _format_with_spread(prediction: StoredPrediction, number: int) -> str:
    spread = f" ± {prediction.spread[number]:.2f}" if prediction.spread else ""
    return escape_text(format_probability(prediction.probabilities[number])) + spread


def _describe_slide(record: SlidePredictions) -> dict[str, str]:
    size = f"{record.size[0]:,} x {record.size[1]:,} pixels" if record.size else ""
    mpp = f"{record.mpp:.4g} µm per pixel" if record.mpp else ""
    wide = f", {record.patch_um:.4g} µm a side" if record.patch_um else ""
    return {
        "Slide": ", ".join(filter(None, (record.slide_id, size, mpp))),
        "File": Path(record.item).name,
        "Tiles": f"{record.instances:,}{wide}",
        "Encoder": record.encoder or "not known",
    }


def _render_definitions(facts: Mapping[str, str]) -> str:
    lines = "\n".join(
        f"<dt>{escape_text(k)}</dt><dd>{escape_text(v)}</dd>" for k, v in facts.items()
    )
    return f"<dl>{lines}</dl>"


_BANNER = (
    '<p class="research">Research use only. This is not a medical device: do not base diagnosis '
    "or treatment on it.</p>\n"
)

_STYLE = """
p { margin: .4rem 0; }
.research { border: 2px solid #a33; color: #822; padding: .4rem .8rem; font-weight: 600; }
.prediction { background: #f2f6f9; padding: .9rem 1.1rem 1rem; border-radius: 6px; }
.label { color: #555; font-size: .875rem; margin: 0; }
.winner { font-size: 1.9rem; font-weight: 700; line-height: 1.2; margin: 0 0 .4rem; }
.winner small { font-size: 1rem; font-weight: 600; color: #a35a00; margin-left: .6rem; }
.reading { max-width: 46rem; }
.bars { display: grid; grid-template-columns: minmax(4rem, max-content) 1fr max-content;
  gap: .45rem .8rem; align-items: center; margin-top: .8rem; }
.class { max-width: 16rem; }
.track { position: relative; height: 1.1rem; background: #dde4ea; border-radius: 3px; }
.track b { position: absolute; inset: 0 auto 0 0; background: #56a0cf; border-radius: 3px; }
.track i { position: absolute; top: -3px; bottom: -3px; width: 2px; margin-left: -1px;
  background: #222; }
.value { font-variant-numeric: tabular-nums; text-align: right; }
img { display: block; max-height: 44rem; }
.classes { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 24rem), 1fr));
  gap: .8rem 1.2rem; align-items: start; }
figcaption { font-weight: 600; margin-bottom: .2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1.2rem; margin: .4rem 0; }
dt { color: #555; } dd { margin: 0; }
@page { size: A4; margin: 14mm; }
@media print {
  body { font-size: 9.5pt; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  h1 { font-size: 15pt; margin: .5rem 0; } h2 { margin-top: 1rem; }
  .winner { font-size: 18pt; }
  .prediction, dl { break-inside: avoid; }
  img { max-height: 118mm; margin: 0 auto; }
}
"""
