"""A run: the folder that train and cross_validate write, read without torch."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import yaml

from sacmil.atomic import atomic_write
from sacmil.csv_text import escape_cells, restore_cells
from sacmil.errors import RunError, check_type, list_names, suggest_names
from sacmil.results.task_card import (
    CLASSIFICATION,
    EXPECTED_COLUMN,
    PROBABILITY_PREFIX,
    TASK_FILE,
    TaskCard,
    read_task_card,
    write_task_card,
)
from sacmil.yaml_values import read_yaml

if TYPE_CHECKING:
    import pandas

PREDICTIONS_FILE = "predictions.csv"
_COMPRESSED = ".csv.gz"
"""End of the name of a compressed table."""
_SPLITS = ("train", "val", "test")
ID_COLUMNS = ("slide_id", "patient_id", "split", "fold", "seed", "model")
"""Columns before the targets and the predictions."""
KEY_COLUMNS = (*ID_COLUMNS, "label")
"""Columns before the probabilities of classes."""
_INTEGER_COLUMNS = frozenset({"fold", "seed"})
LOCALIZATION_FILE = "localisation_by_slide.csv"
_CARD_FILE = "card.json"
_CONFIG_FILE = "config.yaml"
_PROVENANCE_FILE = "provenance.json"


@dataclass(frozen=True)
class Run:
    """A run folder of train or cross_validate.

    Args:
        folder: the run folder, or a Run.
        failures: error message by job, from the call that trained.

    Raises:
        RunError: the folder is no run.

    Example:
        >>> Run("no/such/folder")
        Traceback (most recent call last):
        sacmil.errors.RunError: no/such/folder: does not exist; expected a run folder
    """

    folder: Path
    failures: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        given: object = self.folder
        if isinstance(given, Run):
            object.__setattr__(self, "failures", self.failures or given.failures)
            given = given.folder
        check_type("folder", given, (str, os.PathLike), "the path of a run folder")
        object.__setattr__(self, "folder", Path(given))  # type: ignore[arg-type]
        if not self.folder.is_dir():
            raise RunError(f"{self.folder}: does not exist; expected a run folder")
        if not any((self.folder / name).is_file() for name in (_PROVENANCE_FILE, PREDICTIONS_FILE)):
            raise RunError(
                f"{self.folder}: is no run folder (no {_PROVENANCE_FILE} or {PREDICTIONS_FILE}); "
                "expected one that train or cross_validate wrote"
            )

    def __fspath__(self) -> str:
        """Return the folder, so that a run is accepted wherever its path is."""
        return str(self.folder)

    @cached_property
    def models(self) -> tuple[str, ...]:
        """Names of the models, in the order of the configuration."""
        values = _read_config(self.folder / _CONFIG_FILE)
        if isinstance(values.get("model"), str):  # of train: one model
            return (values["model"],)
        return tuple(values) or tuple(dict.fromkeys(self.predictions.model.tolist()))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """Requested seeds; empty if unknown."""
        try:
            found = json.loads((self.folder / _PROVENANCE_FILE).read_text(encoding="utf-8"))
            return tuple(int(seed) for seed in found.get("seeds", ()))
        except FileNotFoundError:
            return ()
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise RunError(
                f"{self.folder / _PROVENANCE_FILE}: cannot be read ({error}); restore it"
            ) from error

    @property
    def has_predictions(self) -> bool:
        """Whether a job is finished."""
        return (self.folder / PREDICTIONS_FILE).is_file()

    @cached_property
    def predictions(self) -> Predictions:
        """Predictions of all finished jobs."""
        return read_predictions(self.folder / PREDICTIONS_FILE)

    @cached_property
    def localization(self) -> list[SlideLocalization]:
        """Localisation of each test slide; empty unless bags have instance labels."""
        return read_localization(self.folder)

    def to_frame(self) -> pandas.DataFrame:
        """Return the predictions as a pandas frame, with the columns of predictions.csv."""
        import pandas

        found = self.predictions
        columns: dict[str, Any] = {name: getattr(found, name) for name in ID_COLUMNS}
        for number, name in enumerate(found.task.target_columns):
            columns[name] = found.targets[:, number]
        if levels := found.task.levels:
            columns[found.task.target_columns[0]] = [levels[label] for label in found.label]
        for number, name in enumerate(found.task.prediction_columns):
            columns[name] = found.values[:, number]
        return pandas.DataFrame(columns)

    def model_folders(self, name: str | None = None) -> list[Path]:
        """Return the model folders of finished jobs, in the order of seeds and folds.

        Args:
            name: of a model; None returns those of all models.
        """
        if name is not None and name not in self.models:
            raise RunError(
                f"{self.folder}: has no model {name!r}; {suggest_names(name, self.models)}"
            )
        if (self.folder / _CARD_FILE).is_file():
            return [self.folder]
        found = [
            card.parent
            for model in (self.models if name is None else (name,))
            for card in (self.folder / model).glob(f"seed_*/fold_*/{_CARD_FILE}")
        ]
        return sorted(found, key=natural_sort_key)


def natural_sort_key(path: Path) -> list[object]:
    """Sort fold_10 after fold_9."""
    words = re.split(r"(\d+)", str(path))
    return [int(word) if word.isdigit() else word for word in words]


def _read_config(file: Path) -> dict[str, Any]:
    try:
        values = read_yaml(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RunError(f"{file}: cannot be read ({error}); restore it") from error
    return values if isinstance(values, dict) else {}


@dataclass(frozen=True, eq=False)
class Predictions:
    """Predictions of models for labelled slides, one row each, as in predictions.csv."""

    task: TaskCard
    slide_id: npt.NDArray[np.str_]
    patient_id: npt.NDArray[np.str_]
    split: npt.NDArray[np.str_]
    """test, or val for the validation set."""
    fold: npt.NDArray[np.int64]
    """Number of the split; it continues over repeats of cross-validation."""
    seed: npt.NDArray[np.int64]
    model: npt.NDArray[np.str_]
    targets: npt.NDArray[np.float64]
    """(rows, T), one column per target column; a class or level is its index, NaN is missing."""
    values: npt.NDArray[np.float64]
    """(rows, P), one column per prediction column."""

    def __len__(self) -> int:
        return len(self.slide_id)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes or levels."""
        return self.task.levels

    @property
    def label(self) -> npt.NDArray[np.int64]:
        """(rows,), index into classes; a copy, that cannot be written to."""
        if not self.task.levels:
            raise RunError(
                f"predictions are of {self.task.description}, not of classes; use targets"
            )
        labels = self.targets[:, 0].astype(np.int64)
        labels.flags.writeable = False
        return labels

    @property
    def probabilities(self) -> npt.NDArray[np.float64]:
        """(rows, C), of classes or labels."""
        if not all(name.startswith(PROBABILITY_PREFIX) for name in self.task.prediction_columns):
            names = ", ".join(self.task.prediction_columns)
            raise RunError(f"predictions are {names}, which are not all probabilities; use values")
        return self.values

    def select(self, rows: npt.NDArray[Any]) -> Self:
        """Return some of the rows, by mask or by index."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _COLUMNS})

    @classmethod
    def from_rows(
        cls, task: TaskCard | Iterable[str], rows: Iterable[tuple[Any, ...]], values: npt.ArrayLike
    ) -> Self:
        """Make a table of one tuple per row.

        Args:
            task: or the names of the classes.
            rows: the values of ID_COLUMNS, then the target: an index, a number, or several.
            values: (rows, P), the predictions.
        """
        listed = list(rows)
        card = task if isinstance(task, TaskCard) else TaskCard.of_classes(task)
        columns = zip(*listed, strict=True) if listed else ((),) * (len(ID_COLUMNS) + 1)
        *ids, targets = columns
        typed: dict[str, Any] = {
            key: np.array(column, dtype=np.int64 if key in _INTEGER_COLUMNS else np.str_)
            for key, column in zip(ID_COLUMNS, ids, strict=True)
        }
        for name, array, width in (
            ("targets", targets, len(card.target_columns)),
            ("values", values, len(card.prediction_columns)),
        ):
            typed[name] = np.asarray(array, dtype=np.float64).reshape(len(listed), width)
        return cls(card, **typed)

    @classmethod
    def concatenate(cls, tables: Iterable[Predictions]) -> Predictions:
        """Join the rows of several tables, which must have the same classes or targets."""
        listed = list(tables)
        check_same_task(table.task for table in listed)
        joined = {name: np.concatenate([getattr(p, name) for p in listed]) for name in _COLUMNS}
        return cls(listed[0].task, **joined)


def check_same_task(cards: Iterable[TaskCard]) -> None:
    """Reject tables of predictions that cannot be joined.

    Raises:
        RunError: says what differs.
    """
    found = set(cards)
    if len(found) == 1:
        return
    if all(card.is_classification for card in found):
        names = "; ".join(sorted(", ".join(card.levels) for card in found))
        raise RunError(f"predictions of different classes cannot be joined: found {names}")
    names = "; ".join(sorted({card.description for card in found}))
    if ";" not in names and (differing := _list_differing_columns(found)):
        raise RunError(
            f"predictions of {names} cannot be joined: only some have the columns "
            f"{list_names(differing)}; expected runs with the same settings of the task, "
            "such as `horizons`"
        )
    raise RunError(f"predictions of different targets cannot be joined: found {names}")


def _list_differing_columns(cards: Iterable[TaskCard]) -> list[str]:
    """Return the columns of predictions that not all of the tables have."""
    each = [card.prediction_columns for card in cards]
    every = dict.fromkeys(chain.from_iterable(each))
    return [name for name in every if not all(name in columns for columns in each)]


_COLUMNS = tuple(field.name for field in fields(Predictions) if field.name != "task")


def write_predictions(path: str | Path, predictions: Predictions) -> None:
    """Write predictions.csv with names of classes; numbers are read back exactly.

    Targets other than classes have a task.json beside it.

    Args:
        path: of the file; if it ends in .csv.gz, the file is compressed.
        predictions: the rows.
    """
    task = predictions.task
    write_task_card(Path(path).parent, task)
    compressed = str(path).endswith(_COMPRESSED)
    with atomic_write(path) as partial, _create_table(partial, compressed=compressed) as file:
        writer = csv.writer(file, lineterminator="\n")
        columns = (*ID_COLUMNS, *task.target_columns, *task.prediction_columns)
        writer.writerow(columns if task.is_classification else escape_cells(columns))
        for row in range(len(predictions)):
            keys = [getattr(predictions, key)[row] for key in ID_COLUMNS]
            targets = _format_targets(task, predictions.targets[row].tolist())
            values = map(repr, predictions.values[row].tolist())
            writer.writerow([*escape_cells([*keys, *targets]), *values])


def _format_targets(task: TaskCard, targets: Sequence[float]) -> list[str]:
    """Return the cells of one row; a missing target is empty."""
    if task.levels:
        return [task.levels[int(targets[0])]]
    return ["" if math.isnan(value) else repr(value) for value in targets]


@contextmanager
def _create_table(path: Path, *, compressed: bool) -> Iterator[IO[str]]:
    """Open a CSV file to write to; equal rows give equal bytes, compressed or not."""
    if not compressed:
        with path.open("w", newline="", encoding="utf-8") as file:
            yield file
        return
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=0) as packed,
        io.TextIOWrapper(packed, encoding="utf-8", newline="") as file,
    ):
        yield file


def read_predictions(path: str | Path) -> Predictions:
    """Read predictions.csv, compressed (.csv.gz) or not, given the file or its run folder."""
    file = Path(path) / PREDICTIONS_FILE if Path(path).is_dir() else Path(path)
    if not file.exists():
        raise RunError(
            f"{file}: does not exist; expected a finished run folder (sacmil train, sacmil "
            f"crossval) or a file such as {PREDICTIONS_FILE}"
        )
    header, rows = _read_table(file)
    task = read_task_card(file.parent)
    if task is not None:
        return _parse_task_predictions(file, task, header, rows)
    if found := _describe_lost_task(file.parent, header):
        raise RunError(
            f"{file}: holds no predictions of classes ({found}), and {TASK_FILE} beside it is "
            "missing; restore that file"
        )
    return _parse_predictions(file, header, rows)


def _describe_lost_task(folder: Path, header: Sequence[str]) -> str:
    """Return how it is known that a table without task.json is not one of classes; else ""."""
    if header[-1:] == [EXPECTED_COLUMN] and header[-2].startswith(PROBABILITY_PREFIX):
        return f"its last column is {EXPECTED_COLUMN!r}, as of levels"
    cards = chain([folder / _CARD_FILE], folder.glob(f"*/seed_*/fold_*/{_CARD_FILE}"))
    card = next((one for one in cards if one.is_file()), None)
    kind = None if card is None else _read_kind(card)
    return "" if kind in (None, CLASSIFICATION) else f"by {card}, a model for {kind}"


def _read_kind(card: Path) -> str | None:
    """Return what a model predicts by its card; None if it does not say, or cannot be read."""
    try:
        found = json.loads(card.read_text(encoding="utf-8"))["task"]["kind"]
    except (OSError, ValueError, TypeError, LookupError, RecursionError):
        return None
    return found if isinstance(found, str) else None


def _read_table(file: Path) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of a CSV file, compressed or not."""
    opener = gzip.open if file.name.endswith(_COMPRESSED) else open
    try:
        with opener(file, "rt", newline="", encoding="utf-8-sig") as stream:
            header, *rows = [restore_cells(row) for row in csv.reader(stream)] or [[]]
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        raise RunError(f"{file}: cannot be read as a table ({error})") from error
    return header, rows


def _parse_predictions(file: Path, header: list[str], rows: list[list[str]]) -> Predictions:
    missing = [key for key in KEY_COLUMNS if key not in header]
    classes = [name[2:] for name in header if name.startswith("p_")]
    if missing or len(classes) < 2 or "" in classes:
        lacking = ", ".join(missing) or "p_<class> columns"
        hint = f" (its header is {header[0]!r}: save it with commas)" if len(header) == 1 else ""
        other = "" if {*ID_COLUMNS} & {*missing} else f"; or {TASK_FILE} beside it, of its run"
        raise RunError(
            f"{file}: lacks {lacking}{hint}; expected {', '.join(KEY_COLUMNS)}, p_<class>…{other}"
        )
    if len(set(header)) < len(header):
        repeated = sorted({name for name in header if header.count(name) > 1})
        raise RunError(f"{file}: has columns twice: {', '.join(repeated)}; expected each once")
    column = {name: index for index, name in enumerate(header)}
    keys, values = [], []
    for number, row in enumerate(rows, start=2):
        if not row:  # a blank line, as editors leave at the end
            continue
        try:
            if len(row) > len(header):
                raise ValueError(f"{len(row)} cells under {len(header)} columns")
            keys.append(_parse_keys([row[column[key]] for key in KEY_COLUMNS], classes))
            values.append(_parse_probabilities([row[column[f"p_{name}"]] for name in classes]))
        except (IndexError, ValueError, OverflowError) as error:
            raise RunError(
                f"{file}, line {number}: cannot be parsed ({error}); expected whole numbers "
                f"for fold and seed, a label among {', '.join(classes)}, and probabilities of all "
                "classes that sum to one"
            ) from error
    found = Predictions.from_rows(classes, keys, values)
    _check_consistent(file, found)
    return found


def _parse_task_predictions(
    file: Path, task: TaskCard, header: list[str], rows: list[list[str]]
) -> Predictions:
    """Parse predictions of other targets than classes."""
    expected = [*ID_COLUMNS, *task.target_columns, *task.prediction_columns]
    if header != expected:
        raise RunError(
            f"{file}: has the columns {', '.join(header)}; expected {', '.join(expected)}, by "
            f"{TASK_FILE} beside it"
        )
    width = len(ID_COLUMNS)
    keys, values = [], []
    for number, row in enumerate(rows, start=2):
        if not row:
            continue
        try:
            if len(row) != len(header):
                raise ValueError(f"{len(row)} cells under {len(header)} columns")
            cells = row[width : width + len(task.target_columns)]
            keys.append((*_parse_ids(row[:width]), _parse_targets(task, cells)))
            values.append(_parse_finite(row[width + len(cells) :]))
        except (ValueError, OverflowError) as error:
            raise RunError(
                f"{file}, line {number}: cannot be parsed ({error}); expected whole numbers for "
                "fold and seed, and numbers for targets and predictions"
            ) from error
    found = Predictions.from_rows(task, keys, values)
    _check_consistent(file, found)
    return found


def _parse_targets(task: TaskCard, cells: Sequence[str]) -> tuple[float, ...]:
    if task.levels:
        return (float(task.levels.index(cells[0])),)
    known = iter(_parse_finite([text for text in cells if text]))
    return tuple(next(known) if text else math.nan for text in cells)


def _parse_finite(texts: Sequence[str]) -> list[float]:
    values = [float(text) for text in texts]
    if not all(map(math.isfinite, values)):
        raise ValueError(f"{values} are not finite")
    return values


def _check_consistent(file: Path, predictions: Predictions) -> None:
    """Reject a slide with several patients, or with several labels for one model."""
    slides = predictions.slide_id.tolist()
    targets = [tuple(map(repr, row)) for row in predictions.targets.tolist()]
    for values, listed in (
        ("patients", (slides, predictions.patient_id.tolist())),
        ("labels", (predictions.model.tolist(), slides, targets)),
    ):
        pairs = {*zip(*listed, strict=True)}
        known = Counter(pair[:-1] for pair in pairs)
        for pair, count in known.items():
            if count > 1:
                raise RunError(f"{file}: slide {pair[-1]!r} has {count} {values}; expected one")


def _parse_keys(texts: list[str], classes: list[str]) -> tuple[Any, ...]:
    return (*_parse_ids(texts[:-1]), classes.index(texts[-1]))


def _parse_ids(texts: list[str]) -> tuple[Any, ...]:
    slide, patient, split, fold, seed, model = texts
    if not (slide and patient and model):
        raise ValueError("slide_id, patient_id or model is empty")
    if split.lower() not in _SPLITS:
        raise ValueError(f"split {split!r}, not one of {', '.join(_SPLITS)}")
    numbers = (np.int64(int(fold)), np.int64(int(seed)))
    return slide, patient, split.lower(), *numbers, model


def _parse_probabilities(texts: list[str]) -> list[float]:
    """Return one row; a single empty cell is what the others leave to one."""
    if texts.count("") == 1:
        others = [float(text) for text in texts if text]
        texts = [text or repr(1 - sum(others)) for text in texts]
    values = [float(text) for text in texts]
    if not (all(p >= 0 for p in values) and abs(sum(values) - 1) < 1e-3):
        raise ValueError(f"probabilities {values}")
    return values


class SlideLocalization(NamedTuple):
    """One model on one test slide whose instances have labels."""

    slide_id: str
    patient_id: str
    fold: int
    seed: int
    model: str
    instances: int
    """Number of instances with a known label."""
    positives: int
    """Number of instances with a label above zero."""
    auc: float
    """NaN unless the slide has positive and negative instances."""
    average_precision: float
    """NaN unless the slide has positive and negative instances."""

    @property
    def has_both_labels(self) -> bool:
        """Whether the slide has positive and negative instances."""
        return 0 < self.positives < self.instances


def write_localization(path: str | Path, rows: Iterable[SlideLocalization]) -> None:
    """Write a row per model and slide; numbers are read back exactly, NaN is an empty cell."""
    with atomic_write(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(SlideLocalization._fields)
        for row in rows:
            values = ("" if math.isnan(value) else repr(value) for value in row[-2:])
            writer.writerow([*escape_cells(row[:-2]), *values])


def read_localization(path: str | Path) -> list[SlideLocalization]:
    """Read localisation_by_slide.csv, given the file or its run folder; empty if it is missing."""
    file = Path(path) / LOCALIZATION_FILE if Path(path).is_dir() else Path(path)
    if not file.exists():
        return []
    header, rows = _read_table(file)
    if header != list(SlideLocalization._fields):
        raise RunError(
            f"{file}: has the columns {', '.join(header) or 'none'}; expected "
            f"{', '.join(SlideLocalization._fields)}"
        )
    return [_parse_row(file, number, row) for number, row in enumerate(rows, start=2) if row]


def _parse_row(file: Path, number: int, row: list[str]) -> SlideLocalization:
    try:
        slide, patient, fold, seed, model, instances, positives, *values = row
        auc, precision = (float(text or "nan") for text in values)
        keys = (slide, patient, int(fold), int(seed), model)
        found = SlideLocalization(*keys, int(instances), int(positives), auc, precision)
    except ValueError as error:
        raise RunError(
            f"{file}, line {number}: cannot be parsed ({error}); expected whole numbers for "
            "fold, seed, instances and positives, and numbers for the rest"
        ) from error
    if found.has_both_labels and not (0 <= auc <= 1 and 0 <= precision <= 1):
        raise RunError(f"{file}, line {number}: has {auc} and {precision}; expected 0 to 1")
    return found
