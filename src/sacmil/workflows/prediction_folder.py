"""Files of predictions, and a record of each slide so that nothing is done twice.

::

    OUT/
    ├── predictions.csv              a row per slide and model
    ├── predictions.json             the same with details, and failures with reasons
    ├── results.json                 for the viewer: see results/results_folder.py
    ├── answers/<slide>.json         record of a slide, written once it is predicted
    ├── scores/<model>/<slide>.npz
    ├── heatmaps/<model>/<slide>….png, classes/<class>/<slide>_overlay.png
    ├── thumbnails/<slide>.jpg
    ├── reports/<slide>.html         if requested
    └── bags/                        of slides: see extraction/slide_request.py

The tables, results.json and reports hold only the items and models of the last command.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import TypeAdapter

from sacmil._version import __version__
from sacmil.atomic import atomic_write
from sacmil.csv_text import escape_cells
from sacmil.errors import RunError
from sacmil.formats._registry import list_bag_files
from sacmil.heatmap.score_files import safe_file_name
from sacmil.results import (
    PREDICTIONS_FILE,
    ModelInfo,
    Results,
    SlideResult,
    StoredPrediction,
    TaskCard,
    write_results,
)
from sacmil.results.results_folder import CLASS_VALUES
from sacmil.tasks import Task
from sacmil.workflows.inputs import holds_model

SCHEMA_VERSION = 1
PREDICTIONS_JSON = "predictions.json"
_UNREADABLE = (
    *(OSError, ValueError, TypeError, LookupError, AttributeError, OverflowError),
    RuntimeError,  # a document too deep, and a link to itself before Python 3.13
)


class BagFile(NamedTuple):
    """A file, with its size and time to detect changes."""

    path: str
    size: int
    modified_ns: int

    @classmethod
    def from_path(cls, path: Path) -> Self:
        """Return the file's current state."""
        found = path.stat()
        return cls(str(path.resolve()), found.st_size, found.st_mtime_ns)


@dataclass(frozen=True, kw_only=True)
class SlidePredictions:
    """All predictions of a slide, and the bag they are of."""

    slide_id: str
    item: str
    """The file the user gave: a slide or a bag."""
    bag: BagFile
    classes: tuple[str, ...]
    """Names of the values: classes, or those of other tasks."""
    instances: int
    encoder: str | None
    patch_um: float | None
    mpp: float | None
    size: tuple[int, int] | None
    bounds_origin: tuple[int, int] | None
    mismatches: tuple[str, ...] = ()
    """How the bag differs from the models' requirements; the user allowed it."""
    warnings: tuple[str, ...] = ()
    answers: tuple[StoredPrediction, ...] = ()
    task: TaskCard | None = None
    """What is predicted; None means classes."""
    slide: str | None = None
    """The slide pictures were drawn from, if any."""
    thumbnail: str | None = None

    def select_models(self, models: Sequence[ModelInfo]) -> tuple[StoredPrediction, ...]:
        """Return the predictions of these models, in their order; skip missing ones."""
        found = {(answer.model, answer.hash): answer for answer in self.answers}
        keys = [(model.name, model.hash) for model in models]
        return tuple(found[key] for key in keys if key in found)

    def with_answers(self, newer: Sequence[StoredPrediction]) -> Self:
        """Return the record with these predictions instead of older ones of the same models."""
        names = {answer.model for answer in newer}
        kept = tuple(answer for answer in self.answers if answer.model not in names)
        return replace(self, answers=(*kept, *newer))


@dataclass(frozen=True)
class PredictionFolder:
    """The paths of one output folder, and the records in it."""

    out: Path

    def check_is_prediction_folder(self) -> None:
        """Reject a folder of a model, a run (whose predictions.csv would be replaced) or bags."""
        has_predictions = (self.out / PREDICTIONS_JSON).exists()
        is_run = (self.out / PREDICTIONS_FILE).exists() and not has_predictions
        found = "a model or a run" if is_run or holds_model(self.out) else ""
        if not has_predictions and not found:
            others = list_bag_files(self.out, self.bags)
            found = f"bags such as {others[0].name}" if others else ""
        if found:
            raise RunError(
                f"{self.out}: holds {found}; expected a folder for predictions only, choose "
                "another `out`"
            )

    @property
    def bags(self) -> Path:
        """Folder of extracted bags."""
        return self.out / "bags"

    def scores_path(self, model: str, slide_id: str) -> str:
        """Return the path relative to the folder."""
        return f"scores/{safe_file_name(model)}/{safe_file_name(slide_id)}.npz"

    def thumbnail_path(self, slide_id: str) -> str:
        """Return the path relative to the folder."""
        return f"thumbnails/{safe_file_name(slide_id)}.jpg"

    def report_path(self, slide_id: str) -> Path:
        """Return the path of a slide's page."""
        return self.out / "reports" / f"{safe_file_name(slide_id)}.html"

    def remove_old_reports(self, *, keep: Iterable[str] = ()) -> int:
        """Remove pages of earlier commands; other files stay.

        Args:
            keep: slides whose pages stay.

        Returns:
            How many pages were removed.
        """
        current = {self.report_path(slide_id) for slide_id in keep}
        pages = [page for page in (self.out / "reports").glob("*.html") if page not in current]
        old = [page for page in pages if (self.out / "answers" / f"{page.stem}.json").is_file()]
        for page in old:
            page.unlink()
        return len(old)

    def _record_path(self, slide_id: str) -> Path:
        return self.out / "answers" / f"{safe_file_name(slide_id)}.json"

    def write_record(self, record: SlidePredictions) -> None:
        """Write the record of a slide."""
        with atomic_write(self._record_path(record.slide_id)) as partial:
            content = _to_content(record)
            content["sha256"] = _hash_record(content)
            partial.write_text(_dump_json(content), encoding="utf-8")

    def read_record(self, slide_id: str) -> SlidePredictions | None:
        """Return the record of a slide; None if there is none or it cannot be read."""
        try:
            text = self._record_path(slide_id).read_text(encoding="utf-8")
            content = json.loads(text, parse_constant=_reject_constant)
            expected = content.pop("sha256", None)  # records of earlier versions have none
            if expected not in (None, _hash_record(content)):
                return None
            record = _parse_record(content)
            is_sound = record.slide_id == slide_id and self._has_files(record)
        except _UNREADABLE:
            return None
        return record if is_sound else None

    def _has_files(self, record: SlidePredictions) -> bool:
        """Whether all files it names exist in this folder."""
        paths = [answer.scores for answer in record.answers if answer.scores is not None]
        for answer in record.answers:
            paths += [*answer.pictures.values(), *answer.class_pictures.values()]
        paths += [record.thumbnail] if record.thumbnail else []
        root = self.out.resolve()
        files = [(root / path).resolve() for path in paths]
        return all(root in file.parents and file.is_file() for file in files)


def _to_content(record: SlidePredictions) -> dict[str, Any]:
    """Return the JSON of a record; the names in files are those of earlier versions."""
    content = asdict(record)
    if record.task is None:
        del content["task"]
    for answer in content["answers"]:
        answer["parts"] = answer.pop("members")
        if record.task is None:
            answer[CLASS_VALUES] = answer.pop("values")
        for key in ("thresholds", "normalization"):
            if answer[key] is None:
                del answer[key]
        del answer["heatmaps"]  # of results.json
    return content


@functools.cache
def _get_validator() -> TypeAdapter[SlidePredictions]:
    return TypeAdapter(SlidePredictions)


def _parse_record(found: dict[str, Any]) -> SlidePredictions:
    """Return a record that can be used like a new one; raise ValueError if it cannot."""
    for answer in found["answers"]:
        answer["members"] = answer.pop("parts")
        if found.get("task") is None:
            answer["values"] = answer.pop(CLASS_VALUES)
        if "score_class" not in answer:  # earlier versions did not draw the predicted class
            answer["pictures"] = {}
    record = _get_validator().validate_json(json.dumps(found), strict=True)
    for answer in record.answers:
        rows = (answer.values, *answer.members, answer.spread or answer.values)
        if any(len(row) != len(record.classes) for row in rows):
            raise ValueError(f"expected {len(record.classes)} values")
        if answer.thresholds and len(answer.thresholds) not in (1, len(record.classes)):
            raise ValueError(f"has {len(answer.thresholds)} thresholds")
    return record


def _hash_record(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a record, so that a changed record is made again."""
    text = json.dumps(json.loads(_dump_json(content)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} is not a finite number")


class PredictionFailure(NamedTuple):
    """An item without a prediction, and the reason."""

    item: str
    reason: str


def write_tables(
    folder: PredictionFolder,
    task: Task,
    models: Sequence[ModelInfo],
    records: Sequence[SlidePredictions],
    failures: Sequence[PredictionFailure],
) -> None:
    """Write predictions.csv, predictions.json and results.json."""
    classes = task.value_names
    card = None if task.has_classes else task.card
    content_json = {
        "schema_version": SCHEMA_VERSION,
        "sacmil_version": __version__,
        **({} if card is None else {"task": asdict(card)}),
        "classes": list(classes),
        "models": [asdict(model) for model in models],
        "slides": [_to_json_record(record, task, models) for record in records],
        "failed": [failure._asdict() for failure in failures],
    }
    with atomic_write(folder.out / PREDICTIONS_JSON) as partial:
        partial.write_text(_dump_json(content_json), encoding="utf-8")
    rows = map(escape_cells, make_table(task, models, records))
    table = folder.out / PREDICTIONS_FILE
    with atomic_write(table) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows(rows)
    slides = tuple(_to_slide_result(record, task, models) for record in records)
    write_results(folder.out, Results(tuple(classes), tuple(models), slides, card))


def make_table(
    task: Task, models: Sequence[ModelInfo], records: Sequence[SlidePredictions]
) -> Iterator[list[Any]]:
    """Yield the header of predictions.csv, then a row per slide and model."""
    columns = task.prediction_columns
    spreads = task.value_names if task.are_probabilities else columns
    names = [*columns, *(f"spread_{name}" for name in spreads)]
    yield ["slide_id", "model", "predicted", *names, "model_hash", "encoder", "seconds"]
    for record in records:
        for one in record.select_models(models):
            spread = one.spread or [None] * len(one.values)
            keys = [record.slide_id, one.model, task.describe(one).predicted]
            rest = [one.hash, record.encoder or "", f"{one.seconds:.3f}"]
            yield [*keys, *one.values, *spread, *rest]


def _to_json_record(
    record: SlidePredictions, task: Task, models: Sequence[ModelInfo]
) -> Mapping[str, Any]:
    shown = record.select_models(models)
    predicted = [{"predicted": task.describe(one).predicted} for one in shown]
    content = _to_content(replace(record, answers=shown))
    answers = [known | one for known, one in zip(predicted, content["answers"], strict=True)]
    return content | {"bag": record.bag.path, "answers": answers}


def _to_slide_result(
    record: SlidePredictions, task: Task, models: Sequence[ModelInfo]
) -> SlideResult:
    return SlideResult(
        record.slide_id,
        tuple(_to_answer(one, task) for one in record.select_models(models)),
        slide=record.slide,
        thumbnail=record.thumbnail,
        mpp=record.mpp,
        size=record.size,
    )


def _to_answer(prediction: StoredPrediction, task: Task) -> StoredPrediction:
    """Return a prediction for results.json: with its members if their curves are drawn."""
    is_curve = len(prediction.members) > 1 and task.get_curve(prediction) is not None
    members = prediction.members if is_curve else ()
    return replace(prediction, heatmaps=_list_heatmaps(prediction), members=members)


def _list_heatmaps(answer: StoredPrediction) -> dict[str, str]:
    """Return heatmaps by class; the model's own is last, as a class may be named "score" too."""
    own = {"score": answer.pictures["overlay"]} if "overlay" in answer.pictures else {}
    return answer.class_pictures | own


def _dump_json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
