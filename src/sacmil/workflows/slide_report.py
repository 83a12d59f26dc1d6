"""The page of one slide: one HTML file that needs nothing else, no network and no script."""

from __future__ import annotations

import base64
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from sacmil.atomic import whole_file
from sacmil.errors import MissingExtraError
from sacmil.evaluation.html_page import html_page, safe, section, warned
from sacmil.results import Model
from sacmil.workflows.model_facts import ModelFacts
from sacmil.workflows.prediction_folder import ModelAnswer, PredictionFolder, SlideAnswers

_CLEAR, _LEANING = 0.9, 0.7
"""From which probability on an answer is called clear, and from which leaning."""
_WIDE = 0.15
"""From which spread on members are said to disagree."""
_PICTURE_PX, _CLASS_PX = 1600, 900
"""Width of pictures, at the most."""
_DOTS = 40
"""Members shown one by one; of more only their range is told."""


def write_report(
    folder: PredictionFolder,
    record: SlideAnswers,
    models: Sequence[Model],
    facts: Sequence[ModelFacts],
) -> Path:
    """Write the page of a slide, whole or not at all.

    Args:
        folder: where pictures are, and where the page goes.
        record: what was said of the slide.
        models: who answered; the last one's answer is the page's.
        facts: about the models.
    """
    path = folder.report(record.slide_id)
    with whole_file(path) as partial:
        partial.write_text(page(folder.out, record, models, facts), encoding="utf-8")
    return path


def page(
    root: Path, record: SlideAnswers, models: Sequence[Model], facts: Sequence[ModelFacts]
) -> str:
    """The page as text; arguments as those of write_report, paths relative to the root."""
    answers = record.by(models)
    body = "\n".join(part for part in _sections(root, record, answers, facts) if part)
    footer = "Research use only, not a medical device."
    return html_page(record.slide_id, body, style=_STYLE, banner=_BANNER, footer=footer)


def _sections(
    root: Path,
    record: SlideAnswers,
    answers: Sequence[ModelAnswer],
    facts: Sequence[ModelFacts],
) -> Iterator[str]:
    answer = answers[-1]
    yield warned(record.warnings)
    yield _answer(record.classes, answer)
    yield section(_titled("Where the model looked", answer), _heatmap(root, answer))
    yield section("Class by class", _by_class(root, record.classes, answer))
    tiles = _picture(root, answer, "tiles", _TILES)
    yield section(_titled("The tiles that scored highest", answer), tiles)
    if len(answers) > 1:
        yield section("Each model's answer", _each(record.classes, answers))
    yield section("What was looked at", _definitions(_material(record)))
    for model in facts:
        title = "The model" if len(facts) == 1 else f"The model {model.name}"
        yield section(safe(title), _definitions(model.facts))


def _answer(classes: Sequence[str], answer: ModelAnswer) -> str:
    bars = "\n".join(
        _bar(name, probability, [part[number] for part in answer.parts])
        for number, (name, probability) in enumerate(
            zip(classes, answer.probabilities, strict=True)
        )
    )
    doubt = " <small>undecided</small>" if max(answer.probabilities) < _LEANING else ""
    key = '<p class="note">Bar: the mean. Marks: each member by itself.</p>'
    return (
        f'<section class="answer"><p class="label">Answer of {safe(answer.model)}</p>'
        f'<p class="winner">{safe(answer.winner(classes))}{doubt}</p>'
        f'<p class="reading">{safe(reading(classes, answer))}</p>'
        f'<div class="bars">{bars}</div>{key if len(answer.parts) > 1 else ""}</section>'
    )


def _bar(name: str, probability: float, parts: Sequence[float]) -> str:
    marks = "".join(
        f'<i style="left:{100 * part:.1f}%"></i>' for part in parts if 1 < len(parts) <= _DOTS
    )
    return (
        f'<span class="class">{safe(name)}</span>'
        f'<span class="track"><b style="width:{100 * probability:.1f}%"></b>{marks}</span>'
        f'<span class="value">{shown(probability)}</span>'
    )


def shown(probability: float) -> str:
    """A probability for people: never a certainty that rounding made.

    >>> shown(0.5), shown(0.9996), shown(0.0002)
    ('0.50', '> 0.99', '< 0.01')
    """
    if probability > 0.99:
        return "> 0.99"
    return "< 0.01" if probability < 0.01 else f"{probability:.2f}"


def reading(classes: Sequence[str], answer: ModelAnswer) -> str:
    """The answer in plain words.

    Args:
        classes: their names.
        answer: of one model or of several together.
    """
    order = sorted(range(len(classes)), key=lambda c: -answer.probabilities[c])
    first, second = order[:2]
    best = answer.probabilities[first]
    if best >= _CLEAR:
        words = f"The model clearly favours {classes[first]} over {_rest(classes, second)}"
    elif best >= _LEANING:
        words = f"The model leans towards {classes[first]}, but not clearly"
    else:
        words = f"The model is undecided between {classes[first]} and {classes[second]}"
    return f"{words} (probability {shown(best)}). {_agreement(classes, answer, first)}{_CAUTION}"


_CAUTION = (
    "This number is how sure the model is, not how likely a disease is: it depends on the slides "
    "the model was trained on, and models are often surer than they are right."
)


def _rest(classes: Sequence[str], second: int) -> str:
    return classes[second] if len(classes) == 2 else f"the {len(classes) - 1} others"


def _agreement(classes: Sequence[str], answer: ModelAnswer, first: int) -> str:
    count = len(answer.parts)
    if count == 1 or answer.spread is None:
        return ""
    for_it = sum(max(range(len(part)), key=part.__getitem__) == first for part in answer.parts)
    given = [part[first] for part in answer.parts]
    everyone = "Both" if count == 2 else f"All {count}"
    agreed = f"{everyone} members agree" if for_it == count else f"{for_it} of {count} members say"
    tail = "" if for_it == count else f" {classes[first]}"
    told = (
        f"{agreed}{tail}; they range from {shown(min(given))} to {shown(max(given))} "
        f"(spread {answer.spread[first]:.2f}). "
    )
    differs = "How sure they are differs" if for_it == count else "They disagree"
    return told + (f"{differs} much: look closely. " if answer.spread[first] > _WIDE else "")


_OVERLAY = "Scores of the tiles over the slide"
_TILES = "The highest-scoring tiles, cut from the slide"


def _heatmap(root: Path, answer: ModelAnswer) -> str:
    picture = _picture(root, answer, "overlay", _OVERLAY)
    if not picture:
        return '<p class="note">There is no heatmap of this slide.</p>'
    return f'{picture}<p class="note">{_meaning(answer)} {_WITHIN}</p>'


_WITHIN = (
    "Scores are compared within this slide alone: the highest are bright even where the prediction "
    "is that nothing is there."
)


def _meaning(answer: ModelAnswer) -> str:
    """What a score says, as HTML."""
    if answer.score_class is None:
        return (
            "A score says how much a tile counted for the prediction; this model has one score for "
            "all classes."
        )
    return f"A score says how much a tile speaks for {safe(answer.score_class)}."


def _titled(title: str, answer: ModelAnswer) -> str:
    """The title of a section, and the class its pictures are about, as HTML."""
    about = answer.score_class if answer.pictures else None
    return title if about is None else f"{title}: {safe(about)}"


def _by_class(root: Path, classes: Sequence[str], answer: ModelAnswer) -> str:
    """The most probable class first; nothing where the model does not score tiles per class."""
    drawn = [number for number, name in enumerate(classes) if name in answer.class_pictures]
    figures = "\n".join(
        _figure(
            root / answer.class_pictures[classes[number]],
            f"Scores for {safe(classes[number])}",
            _CLASS_PX,
            f"{safe(classes[number])}: {safe(shown(answer.probabilities[number]))}",
        )
        for number in sorted(drawn, key=lambda c: -answer.probabilities[c])
    )
    return f'<div class="classes">{figures}</div>{_APART}' if figures else ""


_APART = (
    '<p class="note">Each class has a scale of its own: how bright a tile is in one picture says '
    "nothing about how bright it should be in another.</p>"
)


def _picture(root: Path, answer: ModelAnswer, kind: str, meaning: str) -> str:
    if kind not in answer.pictures:
        return ""
    return _figure(root / answer.pictures[kind], meaning, _PICTURE_PX)


def _figure(path: Path, meaning: str, width: int, caption: str = "") -> str:
    """An image within the page; meaning and caption are HTML."""
    source = base64.b64encode(_small(path, width)).decode()
    below = f"<figcaption>{caption}</figcaption>" if caption else ""
    return f'<figure>{below}<img alt="{meaning}" src="data:image/jpeg;base64,{source}"></figure>'


def _small(path: Path, width: int) -> bytes:
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


def _each(classes: Sequence[str], answers: Sequence[ModelAnswer]) -> str:
    head = "".join(f"<th>{safe(name)}</th>" for name in ("model", "answer", *classes))
    rows = "\n".join(
        f"<tr><td>{safe(one.model)}</td><td>{safe(one.winner(classes))}</td>"
        + "".join(f"<td>{_with_spread(one, number)}</td>" for number in range(len(classes)))
        + "</tr>"
        for one in answers
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"


def _with_spread(answer: ModelAnswer, number: int) -> str:
    spread = f" ± {answer.spread[number]:.2f}" if answer.spread else ""
    return safe(shown(answer.probabilities[number])) + spread


def _material(record: SlideAnswers) -> dict[str, str]:
    size = f"{record.size[0]:,} x {record.size[1]:,} pixels" if record.size else ""
    mpp = f"{record.mpp:.4g} µm per pixel" if record.mpp else ""
    wide = f", {record.patch_um:.4g} µm a side" if record.patch_um else ""
    return {
        "Slide": ", ".join(part for part in (record.slide_id, size, mpp) if part),
        "File": Path(record.item).name,
        "Tiles": f"{record.instances:,}{wide}",
        "Encoder": record.encoder or "not known",
    }


def _definitions(facts: Mapping[str, str]) -> str:
    lines = "\n".join(f"<dt>{safe(k)}</dt><dd>{safe(v)}</dd>" for k, v in facts.items())
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
