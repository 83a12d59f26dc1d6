"""The page of one slide: one HTML file that needs nothing else, no network and no script."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sacmil.atomic import atomic_write
from sacmil.errors import MissingExtraError
from sacmil.evaluation.html_page import escape_text, render_page, render_section, render_warnings
from sacmil.results import ModelInfo
from sacmil.workflows.model_summary import ModelSummary
from sacmil.workflows.prediction_folder import ModelPrediction, PredictionFolder, SlidePredictions

_CLEAR_PROBABILITY, _LEANING_PROBABILITY = 0.9, 0.7
"""From which probability on an answer is called clear, and from which leaning."""
_LARGE_SPREAD = 0.15
"""From which spread on members are said to disagree."""
_MAX_PICTURE_PX, _MAX_CLASS_PX = 1600, 900
"""Width of pictures, at the most."""
_MAX_MEMBER_MARKS = 40
"""Members shown one by one; of more only their range is told."""


def write_slide_report(
    folder: PredictionFolder,
    record: SlidePredictions,
    models: Sequence[ModelInfo],
    facts: Sequence[ModelSummary],
) -> Path:
    """Write the page of a slide, whole or not at all.

    Args:
        folder: where pictures are, and where the page goes.
        record: what was said of the slide.
        models: who answered; the last one's answer is the page's.
        facts: about the models.
    """
    path = folder.report_path(record.slide_id)
    with atomic_write(path) as partial:
        partial.write_text(render_slide_report(folder.out, record, models, facts), encoding="utf-8")
    return path


def render_slide_report(
    root: Path, record: SlidePredictions, models: Sequence[ModelInfo], facts: Sequence[ModelSummary]
) -> str:
    """The page as text; arguments as those of write_report, paths relative to the root."""
    answers = record.select_models(models)
    body = "\n".join(part for part in _render_sections(root, record, answers, facts) if part)
    footer = "Research use only, not a medical device."
    return render_page(record.slide_id, body, style=_STYLE, banner=_BANNER, footer=footer)


def _render_sections(
    root: Path,
    record: SlidePredictions,
    answers: Sequence[ModelPrediction],
    facts: Sequence[ModelSummary],
) -> Iterator[str]:
    answer = answers[-1]
    yield render_warnings(record.warnings)
    yield _render_prediction(record.classes, answer)
    yield render_section(
        _make_title("Where the model looked", answer), _render_heatmap(root, answer)
    )
    yield render_section("Class by class", _render_class_pictures(root, record.classes, answer))
    tiles = _render_picture(root, answer, "tiles", _TILES_ALT)
    yield render_section(_make_title("The tiles that scored highest", answer), tiles)
    if len(answers) > 1:
        yield render_section("Each model's answer", _render_model_table(record.classes, answers))
    yield render_section("What was looked at", _render_definitions(_describe_slide(record)))
    for model in facts:
        title = "The model" if len(facts) == 1 else f"The model {model.name}"
        yield render_section(escape_text(title), _render_definitions(model.facts))


def _render_prediction(classes: Sequence[str], answer: ModelPrediction) -> str:
    bars = "\n".join(
        _render_bar(name, probability, [part[number] for part in answer.parts])
        for number, (name, probability) in enumerate(
            zip(classes, answer.probabilities, strict=True)
        )
    )
    doubt = " <small>undecided</small>" if max(answer.probabilities) < _LEANING_PROBABILITY else ""
    key = '<p class="note">Bar: the mean. Marks: each member by itself.</p>'
    return (
        f'<section class="answer"><p class="label">Answer of {escape_text(answer.model)}</p>'
        f'<p class="winner">{escape_text(answer.find_predicted_class(classes))}{doubt}</p>'
        f'<p class="reading">{escape_text(describe_prediction(classes, answer))}</p>'
        f'<div class="bars">{bars}</div>{key if len(answer.parts) > 1 else ""}</section>'
    )


def _render_bar(name: str, probability: float, members: Sequence[float]) -> str:
    marks = "".join(
        f'<i style="left:{100 * part:.1f}%"></i>'
        for part in members
        if 1 < len(members) <= _MAX_MEMBER_MARKS
    )
    return (
        f'<span class="class">{escape_text(name)}</span>'
        f'<span class="track"><b style="width:{100 * probability:.1f}%"></b>{marks}</span>'
        f'<span class="value">{format_probability(probability)}</span>'
    )


def format_probability(probability: float) -> str:
    """A probability for people: never a certainty that rounding made.

    >>> format_probability(0.5), format_probability(0.9996), format_probability(0.0002)
    ('0.50', '> 0.99', '< 0.01')
    """
    if probability > 0.99:
        return "> 0.99"
    return "< 0.01" if probability < 0.01 else f"{probability:.2f}"


def describe_prediction(classes: Sequence[str], answer: ModelPrediction) -> str:
    """The answer in plain words.

    Args:
        classes: their names.
        answer: of one model or of several together.
    """
    order = sorted(range(len(classes)), key=lambda c: -answer.probabilities[c])
    first, second = order[:2]
    best = answer.probabilities[first]
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
        f"{_describe_agreement(classes, answer, first)}{_CAUTION}"
    )


_CAUTION = (
    "This number is how sure the model is, not how likely a disease is: it depends on the slides "
    "the model was trained on, and models are often surer than they are right."
)


def _describe_others(classes: Sequence[str], second: int) -> str:
    return classes[second] if len(classes) == 2 else f"the {len(classes) - 1} others"


def _describe_agreement(classes: Sequence[str], answer: ModelPrediction, first: int) -> str:
    count = len(answer.parts)
    if count == 1 or answer.spread is None:
        return ""
    for_it = sum(max(range(len(part)), key=part.__getitem__) == first for part in answer.parts)
    given = [part[first] for part in answer.parts]
    everyone = "Both" if count == 2 else f"All {count}"
    agreed = f"{everyone} members agree" if for_it == count else f"{for_it} of {count} members say"
    tail = "" if for_it == count else f" {classes[first]}"
    told = (
        f"{agreed}{tail}; they range from {format_probability(min(given))} to "
        f"{format_probability(max(given))} "
        f"(spread {answer.spread[first]:.2f}). "
    )
    differs = "How sure they are differs" if for_it == count else "They disagree"
    return told + (
        f"{differs} much: look closely. " if answer.spread[first] > _LARGE_SPREAD else ""
    )


_OVERLAY_ALT = "Scores of the tiles over the slide"
_TILES_ALT = "The highest-scoring tiles, cut from the slide"


def _render_heatmap(root: Path, answer: ModelPrediction) -> str:
    picture = _render_picture(root, answer, "overlay", _OVERLAY_ALT)
    if not picture:
        return '<p class="note">There is no heatmap of this slide.</p>'
    return f'{picture}<p class="note">{_describe_score(answer)} {_SLIDE_SCALE_NOTE}</p>'


_SLIDE_SCALE_NOTE = (
    "Scores are compared within this slide alone: the highest are bright even where the prediction "
    "is that nothing is there."
)


def _describe_score(answer: ModelPrediction) -> str:
    """What a score says, as HTML."""
    if answer.score_class is None:
        return (
            "A score says how much a tile counted for the prediction; this model has one score for "
            "all classes."
        )
    return f"A score says how much a tile speaks for {escape_text(answer.score_class)}."


def _make_title(title: str, answer: ModelPrediction) -> str:
    """The title of a section, and the class its pictures are about, as HTML."""
    about = answer.score_class if answer.pictures else None
    return title if about is None else f"{title}: {escape_text(about)}"


def _render_class_pictures(root: Path, classes: Sequence[str], answer: ModelPrediction) -> str:
    """The most probable class first; nothing where the model does not score tiles per class."""
    drawn = [number for number, name in enumerate(classes) if name in answer.class_pictures]
    figures = "\n".join(
        _render_image(
            root / answer.class_pictures[classes[number]],
            f"Scores for {escape_text(classes[number])}",
            _MAX_CLASS_PX,
            f"{escape_text(classes[number])}: "
            f"{escape_text(format_probability(answer.probabilities[number]))}",
        )
        for number in sorted(drawn, key=lambda c: -answer.probabilities[c])
    )
    return f'<div class="classes">{figures}</div>{_CLASS_SCALE_NOTE}' if figures else ""


_CLASS_SCALE_NOTE = (
    '<p class="note">Each class has a scale of its own: how bright a tile is in one picture says '
    "nothing about how bright it should be in another.</p>"
)


def _render_picture(root: Path, answer: ModelPrediction, kind: str, alt: str) -> str:
    if kind not in answer.pictures:
        return ""
    return _render_image(root / answer.pictures[kind], alt, _MAX_PICTURE_PX)


def _render_image(path: Path, alt: str, width: int, caption: str = "") -> str:
    """An image within the page; meaning and caption are HTML."""
    source = base64.b64encode(_encode_jpeg(path, width)).decode()
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure>{below}<img alt="{alt}" src="data:image/jpeg;base64,{source}"></figure>'


def _encode_jpeg(path: Path, width: int) -> bytes:
    """A picture as JPEG, which is a tenth of the PNG, and no larger than a page shows."""
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtraError("slides", "a page with pictures") from None
    buffer = io.BytesIO()
    with Image.open(path) as image:
        image.thumbnail((width, 2 * width))
        image.convert("RGB").save(buffer, format="JPEG", quality=88)
    return buffer.getvalue()


def _render_model_table(classes: Sequence[str], answers: Sequence[ModelPrediction]) -> str:
    head = "".join(f"<th>{escape_text(name)}</th>" for name in ("model", "answer", *classes))
    rows = "\n".join(
        f"<tr><td>{escape_text(one.model)}</td><td>{escape_text(one.find_predicted_class(classes))}</td>"
        + "".join(f"<td>{_format_with_spread(one, number)}</td>" for number in range(len(classes)))
        + "</tr>"
        for one in answers
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"


def _format_with_spread(answer: ModelPrediction, number: int) -> str:
    spread = f" ± {answer.spread[number]:.2f}" if answer.spread else ""
    return escape_text(format_probability(answer.probabilities[number])) + spread


def _describe_slide(record: SlidePredictions) -> dict[str, str]:
    size = f"{record.size[0]:,} x {record.size[1]:,} pixels" if record.size else ""
    mpp = f"{record.mpp:.4g} µm per pixel" if record.mpp else ""
    wide = f", {record.patch_um:.4g} µm a side" if record.patch_um else ""
    return {
        "Slide": ", ".join(part for part in (record.slide_id, size, mpp) if part),
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
    '<p class="research">Research use only. This is not a medical device: no diagnosis or '
    "treatment may rest on it.</p>\n"
)

_STYLE = """
p { margin: .4rem 0; }
.research { border: 2px solid #a33; color: #822; padding: .4rem .8rem; font-weight: 600; }
.answer { background: #f2f6f9; padding: .9rem 1.1rem 1rem; border-radius: 6px; }
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
  .answer, dl { break-inside: avoid; }
  img { max-height: 118mm; margin: 0 auto; }
}
"""
