"""A results folder: what models said of slides, for the viewer, reports and other tools.

::

    results.json                    this file's Results; every path in it relative to the folder
    scores/<model>/<slide>.npz      coords, patch_size, scores, class_scores
    heatmaps/<model>/<slide>….png
    truth/<slide>.geojson

A slide itself may lie anywhere: its path is the only one that may lead out of the folder.
"""

from __future__ import annotations

import json
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.atomic import whole_file
from sacmil.errors import RunError

RESULTS = "results.json"
SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Model:
    """A model, or an ensemble, that answered."""

    name: str
    hash: str
    """SHA-256 of its weights; of the hashes of its members, where it has several."""
    members: int = 1


@dataclass(frozen=True)
class Answer:
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
    answers: tuple[Answer, ...] = ()
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
    models: tuple[Model, ...]
    slides: tuple[SlideResult, ...]


def write_results(folder: str | Path, results: Results) -> None:
    """Write results.json."""
    whole = {"schema_version": SCHEMA_VERSION, **asdict(results)}
    with whole_file(Path(folder) / RESULTS) as partial:
        partial.write_text(json.dumps(whole, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read_results(folder: str | Path) -> Results:
    """Read and check results.json; a path that leads out of the folder is refused."""
    file = Path(folder) / RESULTS
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(
            f"{folder}: there is no {RESULTS}; expected a folder that sacmil predict wrote"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(f"{file}: cannot be read as JSON ({error})") from error
    try:
        if found["schema_version"] != SCHEMA_VERSION:
            raise ValueError(f"schema version {found['schema_version']}")
        results = Results(
            tuple(map(str, found["classes"])),
            tuple(Model(**model) for model in found["models"]),
            tuple(_slide(slide) for slide in found["slides"]),
        )
        _check_paths(results)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{file}: is not what sacmil predict writes ({error!r})") from error
    return results


def _slide(found: dict[str, Any]) -> SlideResult:
    answers = tuple(
        Answer(
            **answer
            | {
                "probabilities": tuple(map(float, answer["probabilities"])),
                "spread": tuple(answer["spread"]) if answer.get("spread") else None,
            }
        )
        for answer in found["answers"]
    )
    size = tuple(found["size"]) if found.get("size") else None
    return SlideResult(**found | {"answers": answers, "size": size})


def _check_paths(results: Results) -> None:
    for slide in results.slides:
        inner = [slide.thumbnail, slide.truth]
        for answer in slide.answers:
            inner += [answer.scores, *answer.heatmaps.values()]
        for path in inner:
            if path is not None and not _stays_inside(path):
                raise ValueError(f"{path!r} leads out of the folder")


def _stays_inside(path: str) -> bool:
    pure = PurePosixPath(path)
    return not (pure.is_absolute() or ".." in pure.parts or "\\" in path or ":" in path)


@dataclass(frozen=True, eq=False)
class Scores:
    """Where instances are and what a model gave them."""

    coords: npt.NDArray[np.number]
    """(N, 2), level-0 pixels, upper left corners."""
    patch_size: float
    """In level-0 pixels."""
    scores: npt.NDArray[np.float32]
    """(N,)"""
    class_scores: npt.NDArray[np.float32] | None = None
    """(N, C)"""


def write_scores(path: str | Path, scores: Scores) -> None:
    """Write the npz of one slide and model."""
    arrays: dict[str, Any] = {
        "coords": scores.coords,
        "patch_size": np.float64(scores.patch_size),
        "scores": scores.scores.astype(np.float32),
    }
    if scores.class_scores is not None:
        arrays["class_scores"] = scores.class_scores.astype(np.float32)
    with whole_file(path) as partial, partial.open("wb") as file:
        np.savez_compressed(file, **arrays)


def read_scores(path: str | Path) -> Scores:
    """Read such a file; nothing in it is unpickled."""
    try:
        with np.load(path, allow_pickle=False) as file:
            classes = file.get("class_scores")
            found = Scores(file["coords"], float(file["patch_size"]), file["scores"], classes)
    except (OSError, KeyError, ValueError, EOFError, zipfile.BadZipFile) as error:
        raise RunError(f"{path}: cannot be read as scores ({error})") from error
    if found.coords.shape != (len(found.scores), 2):
        raise RunError(f"{path}: {len(found.scores)} scores and coords {found.coords.shape}")
    return found
