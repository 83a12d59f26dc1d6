"""Where predictions go, and what is kept of each slide so that nothing is done twice.

::

    OUT/
    ├── predictions.csv              a row per slide and model
    ├── predictions.json             the same and more, also what failed and why
    ├── results.json                 for the viewer: see results/results_folder.py
    ├── answers/<slide>.json         what is known of a slide, whole as soon as it is answered
    ├── scores/<model>/<slide>.npz
    ├── heatmaps/<model>/<slide>….png, classes/<class>/<slide>_overlay.png
    ├── thumbnails/<slide>.jpg
    ├── reports/<slide>.html         with --report
    └── bags/                        of slides: see extraction/folder.py

The tables, results.json and reports are of the items and models of the last command alone.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from sacmil._version import __version__
from sacmil.atomic import whole_file
from sacmil.card import CARD
from sacmil.csv_text import escape_cells
from sacmil.errors import RunError
from sacmil.formats._search import bags_in
from sacmil.heatmap.file_name import file_name
from sacmil.results import PREDICTIONS, Answer, Model, Results, SlideResult, write_results

SCHEMA_VERSION = 1
WHOLE = "predictions.json"
_OF_TRAINING = (CARD, "config.yaml")
"""What folders of models and runs hold."""


class BagFile(NamedTuple):
    """A file, and what changes when it is written again."""

    path: str
    size: int
    modified_ns: int

    @classmethod
    def of(cls, path: Path) -> Self:
        """As it is now."""
        found = path.stat()
        return cls(str(path.resolve()), found.st_size, found.st_mtime_ns)


@dataclass(frozen=True, kw_only=True)
class ModelAnswer:
    """What one model, or several together, said of a slide."""

    model: str
    hash: str
    probabilities: tuple[float, ...]
    parts: tuple[tuple[float, ...], ...]
    """Of each member, by class."""
    spread: tuple[float, ...] | None
    scores: str
    """Path of the npz, relative to the folder, as are those of pictures."""
    seconds: float
    pictures: dict[str, str] = field(default_factory=dict)
    """Paths by kind, as draw_heatmap names them."""
    class_pictures: dict[str, str] = field(default_factory=dict)
    """Overlays by class, where the model scores tiles for each."""
    score_class: str | None = None
    """The class the pictures are about; None where one score serves all classes."""

    def winner(self, classes: Sequence[str]) -> str:
        """The most probable class."""
        return classes[max(range(len(classes)), key=lambda c: self.probabilities[c])]


@dataclass(frozen=True, kw_only=True)
class SlideAnswers:
    """Everything said of a slide, and what it was said from."""

    slide_id: str
    item: str
    """The file the user gave: a slide or a bag."""
    bag: BagFile
    classes: tuple[str, ...]
    instances: int
    encoder: str | None
    patch_um: float | None
    mpp: float | None
    size: tuple[int, int] | None
    bounds_origin: tuple[int, int] | None
    mismatches: tuple[str, ...] = ()
    """In what the bag is not what the models were trained on; the user wanted answers anyway."""
    warnings: tuple[str, ...] = ()
    answers: tuple[ModelAnswer, ...] = ()
    slide: str | None = None
    """The slide pictures were drawn from, if any."""
    thumbnail: str | None = None

    def by(self, models: Sequence[Model]) -> tuple[ModelAnswer, ...]:
        """The answers of these models, as far as there are any, in their order."""
        found = {(answer.model, answer.hash): answer for answer in self.answers}
        keys = [(model.name, model.hash) for model in models]
        return tuple(found[key] for key in keys if key in found)

    def with_answers(self, newer: Sequence[ModelAnswer]) -> Self:
        """With these in the place of older ones of the same models."""
        names = {answer.model for answer in newer}
        kept = tuple(answer for answer in self.answers if answer.model not in names)
        return replace(self, answers=(*kept, *newer))


@dataclass(frozen=True)
class PredictionFolder:
    """The paths of one output folder, and the records in it."""

    out: Path

    def check_is_ours(self) -> None:
        """Refuse a model folder or a run, whose predictions.csv would be replaced, and bags."""
        kept = (self.out / PREDICTIONS).exists() and not (self.out / WHOLE).exists()
        exported = any(self.out.glob(f"part_*/{CARD}"))
        if kept or exported or any((self.out / name).exists() for name in _OF_TRAINING):
            raise RunError(
                f"{self.out}: holds a model or a run, expected a folder for new answers alone; "
                "choose another --out"
            )
        others = [] if (self.out / WHOLE).exists() else bags_in(self.out, self.bags)
        if others:
            raise RunError(
                f"{self.out}: holds bags such as {others[0].name}, expected a folder for new "
                "answers alone; choose another --out"
            )

    @property
    def bags(self) -> Path:
        """Where slides are extracted to."""
        return self.out / "bags"

    def scores(self, model: str, slide_id: str) -> str:
        """Relative to the folder."""
        return f"scores/{file_name(model)}/{file_name(slide_id)}.npz"

    def heatmaps(self, model: str) -> Path:
        """The folder of a model's pictures."""
        return self.out / "heatmaps" / file_name(model)

    def thumbnail(self, slide_id: str) -> str:
        """Relative to the folder."""
        return f"thumbnails/{file_name(slide_id)}.jpg"

    def report(self, slide_id: str) -> Path:
        """The page of a slide."""
        return self.out / "reports" / f"{file_name(slide_id)}.html"

    def remove_pages(self, *, but: Iterable[str] = ()) -> int:
        """Remove pages of earlier commands; files that are no page of a slide here stay.

        Args:
            but: slides whose pages stay.

        Returns:
            How many pages were removed.
        """
        current = {self.report(slide_id) for slide_id in but}
        pages = [page for page in (self.out / "reports").glob("*.html") if page not in current]
        old = [page for page in pages if (self.out / "answers" / f"{page.stem}.json").is_file()]
        for page in old:
            page.unlink()
        return len(old)

    def relative(self, path: Path) -> str:
        """A path in the folder as files of the folder spell it."""
        return path.relative_to(self.out).as_posix()

    def _record(self, slide_id: str) -> Path:
        return self.out / "answers" / f"{file_name(slide_id)}.json"

    def write(self, record: SlideAnswers) -> None:
        """Keep what is known of a slide."""
        with whole_file(self._record(record.slide_id)) as partial:
            content = asdict(record)
            content["sha256"] = _hash(content)
            partial.write_text(_json(content), encoding="utf-8")

    def read(self, slide_id: str) -> SlideAnswers | None:
        """What is known of a slide; None where that is nothing, or cannot be read."""
        try:
            text = self._record(slide_id).read_text(encoding="utf-8")
            content = json.loads(text, parse_constant=_reject_constant)
            expected = content.pop("sha256", None)  # records of earlier versions have none
            if expected not in (None, _hash(content)):
                return None
            record = _slide_answers(content)
            is_sound = record.slide_id == slide_id and self._has_files(record)
        except (OSError, ValueError, TypeError, LookupError, AttributeError):
            return None
        # RuntimeError: too deep a document, and a link to itself before Python 3.13
        except (RuntimeError, OverflowError):
            return None
        return record if is_sound and _has_right_kinds(record) else None

    def _has_files(self, record: SlideAnswers) -> bool:
        """Whether all it speaks of is there, and in this folder."""
        paths = [answer.scores for answer in record.answers]
        for answer in record.answers:
            paths += [*answer.pictures.values(), *answer.class_pictures.values()]
        paths += [record.thumbnail] if record.thumbnail else []
        root = self.out.resolve()
        places = [(root / path).resolve() for path in paths]
        return all(root in place.parents and place.is_file() for place in places)


def _slide_answers(found: dict[str, Any]) -> SlideAnswers:
    answers = tuple(
        ModelAnswer(
            **answer
            | {
                "probabilities": tuple(map(float, answer["probabilities"])),
                "parts": tuple(tuple(map(float, part)) for part in answer["parts"]),
                "spread": tuple(map(float, answer["spread"])) if answer["spread"] else None,
                # earlier versions did not draw the predicted class: drawn again
                "pictures": dict(answer["pictures"]) if "score_class" in answer else {},
                "class_pictures": dict(answer["class_pictures"]),
            }
        )
        for answer in found["answers"]
    )
    listed = ("classes", "mismatches", "warnings")
    pairs = {name: tuple(found[name]) if found[name] else None for name in _PAIRS}
    lists = {name: tuple(found[name]) for name in listed}
    return SlideAnswers(
        **found | lists | pairs | {"bag": BagFile(*found["bag"]), "answers": answers}
    )


_PAIRS = ("size", "bounds_origin")


def _hash(content: Mapping[str, Any]) -> str:
    """SHA-256 of a record, so that one which was changed is made again."""
    text = json.dumps(json.loads(_json(content)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is no finite number")


def _has_right_kinds(record: SlideAnswers) -> bool:
    """Whether a record that was read back can be compared, drawn and written like a new one."""
    answers = record.answers
    texts = [record.item, *record.classes, *record.mismatches, *record.warnings]
    texts += [text for answer in answers for text in (answer.model, answer.hash, answer.scores)]
    known = [record.encoder, record.slide, record.thumbnail, *(a.score_class for a in answers)]
    texts += [text for text in known if text is not None]
    numbers = [number for number in (record.patch_um, record.mpp) if number is not None]
    numbers += [record.instances, *(answer.seconds for answer in answers)]
    pairs = [pair for pair in (record.size, record.bounds_origin) if pair is not None]
    count = len(record.classes)
    return (
        all(isinstance(text, str) for text in texts)
        and all(isinstance(number, int | float) for number in numbers)
        and all(len(pair) == 2 and all(isinstance(side, int) for side in pair) for pair in pairs)
        and all(len(values) == count for a in answers for values in (a.probabilities, *a.parts))
        and all(a.spread is None or len(a.spread) == count for a in answers)
    )


class Failure(NamedTuple):
    """An item without an answer, and why."""

    item: str
    reason: str


def write_tables(
    folder: PredictionFolder,
    classes: Sequence[str],
    models: Sequence[Model],
    records: Sequence[SlideAnswers],
    failures: Sequence[Failure],
) -> None:
    """Write predictions.csv, predictions.json and results.json."""
    whole = {
        "schema_version": SCHEMA_VERSION,
        "sacmil_version": __version__,
        "classes": list(classes),
        "models": [asdict(model) for model in models],
        "slides": [_told(record, classes, models) for record in records],
        "failed": [failure._asdict() for failure in failures],
    }
    with whole_file(folder.out / WHOLE) as partial:
        partial.write_text(_json(whole), encoding="utf-8")
    _write_csv(folder.out / PREDICTIONS, classes, models, records)
    slides = tuple(_slide_result(record, models) for record in records)
    write_results(folder.out, Results(tuple(classes), tuple(models), slides))


def _told(
    record: SlideAnswers, classes: Sequence[str], models: Sequence[Model]
) -> Mapping[str, Any]:
    answers = [
        {"predicted": answer.winner(classes), **asdict(answer)} for answer in record.by(models)
    ]
    return asdict(record) | {"bag": record.bag.path, "answers": answers}


def _write_csv(
    path: Path,
    classes: Sequence[str],
    models: Sequence[Model],
    records: Sequence[SlideAnswers],
) -> None:
    names = [f"{kind}_{name}" for kind in ("p", "spread") for name in classes]
    header = ["slide_id", "model", "predicted", *names, "model_hash", "encoder", "seconds"]
    with whole_file(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(header)
        for record in records:
            writer.writerows(map(escape_cells, _rows(record, classes, models)))


def _rows(
    record: SlideAnswers, classes: Sequence[str], models: Sequence[Model]
) -> Iterator[list[str]]:
    for answer in record.by(models):
        spread = map(repr, answer.spread) if answer.spread else [""] * len(classes)
        given = [record.slide_id, answer.model, answer.winner(classes)]
        rest = [answer.hash, record.encoder or "", f"{answer.seconds:.3f}"]
        yield [*given, *map(repr, answer.probabilities), *spread, *rest]


def _slide_result(record: SlideAnswers, models: Sequence[Model]) -> SlideResult:
    return SlideResult(
        record.slide_id,
        tuple(
            Answer(a.model, a.probabilities, a.spread, a.scores, _heatmaps(a))
            for a in record.by(models)
        ),
        slide=record.slide,
        thumbnail=record.thumbnail,
        mpp=record.mpp,
        size=record.size,
    )


def _heatmaps(answer: ModelAnswer) -> dict[str, str]:
    """By class; the model's own score last, for a class may be called so too."""
    own = {"score": answer.pictures["overlay"]} if "overlay" in answer.pictures else {}
    return answer.class_pictures | own


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
