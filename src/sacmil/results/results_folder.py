"""A results folder: what models said of slides, for the viewer, reports and other tools.

::

    results.json                    this file's Results; every path in it relative to the folder
    scores/<model>/<slide>.npz      coords, patch_size, scores, class_scores
    heatmaps/<model>/<slide>….png
    thumbnails/<slide>.jpg
    truth/<slide>.geojson

A slide itself may lie anywhere: its path is the only one that may lead out of the folder.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.atomic import atomic_write
from sacmil.errors import FormatError, RunError
from sacmil.limits import check_zip_size

RESULTS_FILE = "results.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class ModelInfo:
    """A model, or an ensemble, that answered."""

    name: str
    hash: str
    """SHA-256 of its weights; of the hashes of its members, where it has several."""
    members: int = 1


@dataclass(frozen=True)
class StoredPrediction:
    """What one model said of one slide."""

    model: str
    probabilities: tuple[float, ...]
    """By class, summing to one."""
    spread: tuple[float, ...] | None = None
    """Standard deviation over the members of an ensemble, by class."""
    scores: str | None = None
    """Path of the npz."""
    heatmaps: dict[str, str] = field(default_factory=dict)
    """Paths of pictures by class; the model's own score is called score."""


@dataclass(frozen=True)
class SlideResult:
    """One slide, what is known of it and what was said of it."""

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
    """Everything results.json says."""

    classes: tuple[str, ...]
    models: tuple[ModelInfo, ...]
    slides: tuple[SlideResult, ...]


def write_results(folder: str | Path, results: Results) -> None:
    """Write results.json."""
    whole = {"schema_version": SCHEMA_VERSION, **asdict(results)}
    with atomic_write(Path(folder) / RESULTS_FILE) as partial:
        partial.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_results(folder: str | Path) -> Results:
    """Read and check results.json; a path that leads out of the folder is refused."""
    file = Path(folder) / RESULTS_FILE
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(
            f"{folder}: there is no {RESULTS_FILE}; expected a folder that sacmil predict wrote"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file}: cannot be read as JSON ({error})") from error
    try:
        if found["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema version {found['schema_version']}")
        results = Results(
            tuple(map(str, found["classes"])),
            tuple(ModelInfo(**model) for model in found["models"]),
            tuple(_parse_slide(slide) for slide in found["slides"]),
        )
        _check_results(results)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise RunError(
            f"{file}: is not what sacmil predict writes ({type(error).__name__}: {error}); run it "
            "again"
        ) from error
    return results


def _parse_slide(found: dict[str, Any]) -> SlideResult:
    answers = tuple(_parse_prediction(answer) for answer in found["answers"])
    size = found.get("size")
    if size is not None:
        width, height = map(int, size)
        size = (width, height)
    mpp = found.get("mpp")
    known = {"answers": answers, "size": size, "mpp": None if mpp is None else float(mpp)}
    return SlideResult(**found | known)


def _parse_prediction(found: dict[str, Any]) -> StoredPrediction:
    spread = found.get("spread")
    return StoredPrediction(
        **found
        | {
            "probabilities": tuple(map(float, found["probabilities"])),
            "spread": None if spread is None else tuple(map(float, spread)),
            "heatmaps": dict(found.get("heatmaps", {})),
        }
    )


def _check_results(results: Results) -> None:
    for model in results.models:
        if not (isinstance(model.name, str) and isinstance(model.hash, str)):
            raise TypeError(f"a model is called {model.name!r}")
        if not isinstance(model.members, int):
            raise TypeError(f"{model.name} has {model.members!r} members")
    names = {model.name for model in results.models}
    known: set[str] = set()
    for slide in results.slides:
        if not isinstance(slide.slide_id, str):
            raise TypeError(f"a slide is called {slide.slide_id!r}")
        if slide.slide_id in known:
            raise ValueError(f"{slide.slide_id} is listed twice")
        known.add(slide.slide_id)
        for text in (slide.label, slide.slide):
            if not isinstance(text, str | None):
                raise TypeError(f"{slide.slide_id} has {text!r} for a label or a path")
        if slide.size is not None and min(slide.size) < 1:
            raise ValueError(f"{slide.slide_id} has a size of {slide.size}")
        if slide.mpp is not None and not 0 < slide.mpp < math.inf:
            raise ValueError(f"{slide.slide_id} has {slide.mpp!r} microns per pixel")
        for answer in slide.answers:
            _check_prediction(slide.slide_id, answer, names, len(results.classes))
        for path in (slide.thumbnail, slide.truth):
            _check_path(path)


def _check_prediction(
    slide_id: str, prediction: StoredPrediction, models: set[str], classes: int
) -> None:
    if prediction.model not in models:
        raise ValueError(
            f"{slide_id} has an answer of {prediction.model!r}, which is no model here"
        )
    given = prediction.probabilities
    # not "any(p < 0)": NaN must not pass
    if len(given) != classes or not all(p >= 0 for p in given) or not abs(sum(given) - 1) < 1e-3:
        raise ValueError(f"{slide_id} has probabilities {given} for {classes} classes")
    if prediction.spread is not None and (
        len(prediction.spread) != classes or not all(0 <= s < math.inf for s in prediction.spread)
    ):
        raise ValueError(f"{slide_id} has a spread of {prediction.spread} for {classes} classes")
    for path in (prediction.scores, *prediction.heatmaps.values()):
        _check_path(path)


def _check_path(path: str | None) -> None:
    if path is not None and not _is_inside_folder(path):
        raise ValueError(f"{path!r} leads out of the folder")


def _is_inside_folder(path: str) -> bool:
    pure = PurePosixPath(path)
    odd = any(letter in path for letter in "\\:\0")
    return bool(pure.parts) and not (pure.is_absolute() or ".." in pure.parts or odd)


@dataclass(frozen=True, eq=False)
class InstanceScores:
    """Where instances are and what a model gave them."""

    coords: npt.NDArray[np.number]
    """(N, 2), level-0 pixels, upper left corners."""
    patch_size: float
    """In level-0 pixels."""
    scores: npt.NDArray[np.float32]
    """(N,)"""
    class_scores: npt.NDArray[np.float32] | None = None
    """(N, C)"""
    score_class: int | None = None
    """The class ``scores`` are about; None where one score serves all classes, or in files of
    earlier versions, which do not say."""


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
    """Read such a file; nothing in it is unpickled, and what unpacks to too much is rejected."""
    try:
        check_zip_size(Path(path))
        # opened here, for numpy does not close a damaged file
        with Path(path).open("rb") as stream, np.load(stream, allow_pickle=False) as file:
            # numpy gives a member that is no array as bytes
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
            f"{path}: declares more numbers than memory holds; expected scores and places: run "
            "sacmil predict again"
        ) from error
    # A damaged file makes numpy and zlib raise nearly anything.
    except Exception as error:
        raise RunError(
            f"{path}: cannot be read as scores ({type(error).__name__}: {error})"
        ) from error
    _check_scores(path, found)
    return found


def _check_scores(path: str | Path, found: InstanceScores) -> None:
    arrays = [found.coords, found.scores]
    arrays += [] if found.class_scores is None else [found.class_scores]
    if found.scores.ndim != 1 or found.coords.shape != (len(found.scores), 2):
        raise RunError(
            f"{path}: has scores {found.scores.shape} and coords {found.coords.shape}; expected "
            "(N,) and (N, 2)"
        )
    if found.class_scores is not None and (
        found.class_scores.ndim != 2 or len(found.class_scores) != len(found.scores)
    ):
        raise RunError(f"{path}: has class scores {found.class_scores.shape}; expected (N, C)")
    if not all(a.dtype.kind in "iuf" and np.isfinite(a).all() for a in arrays):
        raise RunError(f"{path}: holds what is no finite number; expected scores and places")
    if found.score_class is not None and found.score_class < 0:
        raise RunError(f"{path}: has scores of class {found.score_class}; expected 0, 1, …")
    if not 0 < found.patch_size < math.inf:
        raise RunError(f"{path}: has a patch size of {found.patch_size}; expected one above zero")
