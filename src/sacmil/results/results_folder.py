"""A results folder: predictions of models, for the viewer, reports and other tools.

::

    results.json                    the Results below; every path in it relative to the folder
    scores/<model>/<slide>.npz      coords, patch_size, scores, class_scores
    heatmaps/<model>/<slide>….png
    thumbnails/<slide>.jpg
    truth/<slide>.geojson

The slide itself may be anywhere: its path is the only one that may point outside the folder.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from sacmil.atomic import atomic_write, write_file
from sacmil.errors import FormatError, RunError, explain_validation_error
from sacmil.limits import check_zip_size
from sacmil.results.prediction import Prediction
from sacmil.results.task_card import TaskCard

RESULTS_FILE = "results.json"
SCHEMA_VERSION = 1
_NO_OTHER_KEYS = {"extra": "forbid"}
"""Setting of pydantic, which checks the types of what is read."""


@dataclass(frozen=True)
class ModelInfo:
    """A model or an ensemble that made predictions."""

    __pydantic_config__ = _NO_OTHER_KEYS

    name: str
    hash: str
    """SHA-256 of its weights, and of its calibration if used; of an ensemble, of its members'."""
    members: int = 1


@dataclass(frozen=True)
class StoredPrediction:
    """A Prediction in files: its numbers, and the paths of its scores and pictures."""

    __pydantic_config__ = _NO_OTHER_KEYS

    model: str
    values: tuple[float, ...]
    """By class, summing to one; of other tasks by prediction column."""
    spread: tuple[float, ...] | None = None
    """Standard deviation over the members of an ensemble, of each value."""
    scores: str | None = None
    """Path of the npz, relative to the folder, as are those of pictures."""
    heatmaps: dict[str, str] = field(default_factory=dict)
    """Paths of images by class; the key of the model's own score is "score"."""
    members: tuple[tuple[float, ...], ...] = ()
    """The values of each member; in results.json only if a prediction is a curve."""
    # The rest is only in the records of sacmil predict, not in results.json.
    hash: str = ""
    """SHA-256 of the model's weights."""
    seconds: float = 0.0
    pictures: dict[str, str] = field(default_factory=dict)
    """Paths by kind, as draw_heatmap names them."""
    class_pictures: dict[str, str] = field(default_factory=dict)
    """Overlays by class, where the model scores tiles for each."""
    score_class: str | None = None
    """The class the pictures are about; None where one score is for all classes."""
    normalization: str | None = None
    """Of the scores in the pictures, by which their colors are explained."""
    thresholds: tuple[float, ...] | None = None
    """As in Prediction, in both files; None where nothing is calibrated."""

    @classmethod
    def from_prediction(cls, prediction: Prediction, model: ModelInfo, **files: Any) -> Self:
        """Return the stored form of a prediction.

        Args:
            prediction: of a model or an ensemble.
            model: that made it.
            files: the other fields.
        """
        members = prediction.values[None] if prediction.members is None else prediction.members
        spread = prediction.spread
        return cls(
            model=model.name,
            hash=model.hash,
            values=tuple(prediction.values.tolist()),
            members=tuple(tuple(row) for row in members.tolist()),
            spread=None if spread is None else tuple(spread.tolist()),
            thresholds=prediction.thresholds or None,
            **files,
        )


_RESULTS_KEYS = ("model", "values", "spread", "scores", "heatmaps")
"""Fields of a prediction in results.json; values of classes are called probabilities there."""
_OPTIONAL_KEYS = ("thresholds", "members")
CLASS_VALUES = "probabilities"
"""Name of the values in files, where they are the probabilities of classes."""


@dataclass(frozen=True)
class SlideResult:
    """One slide with its metadata and predictions."""

    __pydantic_config__ = _NO_OTHER_KEYS

    slide_id: str
    answers: tuple[StoredPrediction, ...] = ()
    label: str | None = None
    slide: str | None = None
    """Path of the slide: absolute, or relative to the folder."""
    thumbnail: str | None = None
    truth: str | None = None
    """Path of outlines as GeoJSON."""
    mpp: float | None = None
    size: tuple[int, int] | None = None
    """Width and height of level 0."""


@dataclass(frozen=True)
class Results:
    """The content of results.json."""

    __pydantic_config__ = _NO_OTHER_KEYS

    classes: tuple[str, ...]
    """Names of the values: classes, or those of other tasks."""
    models: tuple[ModelInfo, ...]
    slides: tuple[SlideResult, ...]
    task: TaskCard | None = None
    """What is predicted; None means classes."""


def write_results(folder: str | Path, results: Results) -> None:
    """Write results.json."""
    content = {"schema_version": SCHEMA_VERSION, **asdict(results)}
    name = CLASS_VALUES if content["task"] is None else "values"
    if content["task"] is None:
        del content["task"]
    for slide in content["slides"]:
        slide["answers"] = [
            {
                **{name if key == "values" else key: one[key] for key in _RESULTS_KEYS},
                **{key: one[key] for key in _OPTIONAL_KEYS if one[key]},
            }
            for one in slide["answers"]
        ]
    text = json.dumps(content, indent=1, ensure_ascii=False) + "\n"
    write_file(Path(folder) / RESULTS_FILE, text)


def read_results(folder: str | Path) -> Results:
    """Read and check results.json; a path that points outside the folder is rejected."""
    from pydantic import ValidationError

    file = Path(folder) / RESULTS_FILE
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(
            f"{folder}: there is no {RESULTS_FILE}; expected an output folder of sacmil predict"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file}: cannot be read as JSON ({error})") from error
    try:
        return parse_results(found)
    except ValidationError as error:
        reason = explain_validation_error(error)
    except ValueError as error:
        reason = str(error)
    raise RunError(f"{file}: is not a valid file of sacmil predict ({reason}); run it again")


def parse_results(content: Any) -> Results:
    """Return the results in the content of results.json; ValueError if it is invalid."""
    from pydantic import TypeAdapter

    found = dict(content) if isinstance(content, dict) else {}
    version = found.pop("schema_version", None)
    if version != SCHEMA_VERSION:
        raise ValueError(f"its schema version is {version!r}; expected {SCHEMA_VERSION}")
    results = TypeAdapter(Results).validate_python(rename_class_values(found))
    if len({slide.slide_id for slide in results.slides}) < len(results.slides):
        raise ValueError("a slide is listed twice")
    for slide in results.slides:
        _check_slide(slide)
        for prediction in slide.answers:
            _check_prediction(slide.slide_id, prediction, results)
    return results


def rename_class_values(found: dict[str, Any]) -> dict[str, Any]:
    """Return the content with the values of classes under the name they have in memory."""
    slides = found.get("slides")
    if found.get("task") is not None or not isinstance(slides, list | tuple):
        return found
    return {**found, "slides": [_rename_in_slide(slide) for slide in slides]}


def _rename_in_slide(slide: Any) -> Any:
    answers = slide.get("answers") if isinstance(slide, dict) else None
    if not isinstance(answers, list | tuple):
        return slide
    return {**slide, "answers": [_rename_in_answer(one) for one in answers]}


def _rename_in_answer(answer: Any) -> Any:
    if not isinstance(answer, dict) or CLASS_VALUES not in answer:
        return answer
    return {"values" if key == CLASS_VALUES else key: value for key, value in answer.items()}


def _check_slide(slide: SlideResult) -> None:
    if slide.size is not None and min(slide.size) < 1:
        raise ValueError(f"{slide.slide_id} has a size of {slide.size}")
    if slide.mpp is not None and not 0 < slide.mpp < math.inf:
        raise ValueError(f"{slide.slide_id} has {slide.mpp!r} microns per pixel")
    _check_paths(slide.thumbnail, slide.truth)


def _check_prediction(slide_id: str, prediction: StoredPrediction, results: Results) -> None:
    if prediction.model not in {model.name for model in results.models}:
        raise ValueError(
            f"{slide_id} has a prediction of {prediction.model!r}, which is not among the models"
        )
    given, spread, count = prediction.values, prediction.spread, len(results.classes)
    if results.task is not None:
        if len(given) != count or not all(map(math.isfinite, given)):
            raise ValueError(f"{slide_id} has the values {given}; expected {count} numbers")
    # not "any(p < 0)": NaN must not pass
    elif len(given) != count or not all(p >= 0 for p in given) or not abs(sum(given) - 1) < 1e-3:
        raise ValueError(f"{slide_id} has probabilities {given} for {count} classes")
    if any(len(row) != count or not all(map(math.isfinite, row)) for row in prediction.members):
        raise ValueError(f"{slide_id} has members without {count} numbers each")
    if spread is not None and (len(spread) != count or not all(0 <= s < math.inf for s in spread)):
        raise ValueError(f"{slide_id} has a spread of {spread} for {count} classes")
    thresholds = prediction.thresholds
    expected = int(count == 2) if results.task is None else count
    if thresholds and not (len(thresholds) == expected and all(map(math.isfinite, thresholds))):
        raise ValueError(f"{slide_id} has the thresholds {thresholds}; expected {expected}")
    _check_paths(prediction.scores, *prediction.heatmaps.values())


def _check_paths(*paths: str | None) -> None:
    for path in paths:
        if path is not None and not _is_inside_folder(path):
            raise ValueError(f"{path!r} points outside the folder")


def _is_inside_folder(path: str) -> bool:
    pure = PurePosixPath(path)
    has_unsafe_letters = any(letter in path for letter in "\\:\0")
    is_relative = not pure.is_absolute() and ".." not in pure.parts
    return bool(pure.parts) and is_relative and not has_unsafe_letters


@dataclass(frozen=True, eq=False)
class InstanceScores:
    """Coordinates of instances and their scores from one model."""

    coords: npt.NDArray[np.number]
    """(N, 2), level-0 pixels, upper left corners."""
    patch_size: float
    """In level-0 pixels."""
    scores: npt.NDArray[np.float32]
    """(N,)"""
    class_scores: npt.NDArray[np.float32] | None = None
    """(N, C)"""
    score_class: int | None = None
    """The class of ``scores``; None if one score is for all classes, or in files of earlier
    versions, which do not store it."""

    @classmethod
    def from_prediction(
        cls, prediction: Prediction, coords: npt.NDArray[np.number], patch_size: float
    ) -> Self:
        """Return the scores of a prediction with the positions of the bag's instances."""
        scores, score_class = prediction.scores, prediction.score_class
        return cls(coords, patch_size, scores, prediction.class_scores, score_class)


def write_scores(path: str | Path, scores: InstanceScores) -> None:
    """Write the npz of one slide and model."""
    arrays: dict[str, Any] = {
        "coords": scores.coords,
        "patch_size": np.float64(scores.patch_size),
        "scores": scores.scores.astype(np.float32),
    }
    if scores.class_scores is not None:
        arrays["class_scores"] = scores.class_scores.astype(np.float32)
    if scores.score_class is not None:
        arrays["score_class"] = np.int64(scores.score_class)
    with atomic_write(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **arrays)


def read_scores(path: str | Path) -> InstanceScores:
    """Read the npz of one slide and model, without unpickling; reject one that is too large."""
    try:
        check_zip_size(Path(path))
        # opened here because numpy does not close a damaged file
        with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            # numpy returns a member that is no array as bytes
            arrays = {name: np.asarray(file[name]) for name in file.files}
            found = InstanceScores(
                arrays["coords"],
                float(arrays["patch_size"]),
                arrays["scores"],
                arrays.get("class_scores"),
                int(arrays["score_class"]) if "score_class" in arrays else None,
            )
    except FormatError as error:
        raise RunError(str(error)) from error
    except MemoryError as error:
        raise RunError(
            f"{path}: declares more numbers than memory holds; expected scores and coordinates: "
            "run sacmil predict again"
        ) from error
    # numpy and zlib can raise almost any error for a damaged file.
    except Exception as error:
        raise RunError(
            f"{path}: cannot be read as scores ({type(error).__name__}: {error})"
        ) from error
    _check_scores(path, found)
    return found


def _check_scores(path: str | Path, found: InstanceScores) -> None:
    by_class = found.class_scores
    arrays = [found.coords, found.scores, *([] if by_class is None else [by_class])]
    if found.scores.ndim != 1 or found.coords.shape != (len(found.scores), 2):
        raise RunError(
            f"{path}: has scores {found.scores.shape} and coords {found.coords.shape}; expected "
            "(N,) and (N, 2)"
        )
    if by_class is not None and (by_class.ndim != 2 or len(by_class) != len(found.scores)):
        raise RunError(f"{path}: has class scores {by_class.shape}; expected (N, C)")
    if not all(a.dtype.kind in "iuf" and np.isfinite(a).all() for a in arrays):
        raise RunError(
            f"{path}: holds values that are not finite numbers; expected scores and coordinates"
        )
    if found.score_class is not None and found.score_class < 0:
        raise RunError(f"{path}: has scores of class {found.score_class}; expected 0, 1, …")
    if not 0 < found.patch_size < math.inf:
        raise RunError(f"{path}: has a patch size of {found.patch_size}; expected one above zero")
