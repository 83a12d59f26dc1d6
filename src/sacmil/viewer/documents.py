"""What lies in the folder beside the slides, as the page takes it: thumbnails, truth, scores."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.errors import RunError, SacMILError
from sacmil.results import read_scores
from sacmil.viewer.confinement import Place
from sacmil.viewer.slide_reading import Told

_MOST_PICTURE_BYTES = 32 * 2**20
_MOST_TRUTH_BYTES = 64 * 2**20
_MOST_SCORE_BYTES = 128 * 2**20  # unpacked: a million tiles with scores of a dozen classes
_PICTURES = {b"\xff\xd8\xff": "image/jpeg", b"\x89PNG": "image/png"}


def picture(place: Place) -> bytes:
    """A picture, once it is known to be one that browsers show."""
    found = place.read(_MOST_PICTURE_BYTES)
    if not found.startswith(tuple(_PICTURES)):
        raise RunError(f"{place.path.name}: is neither a JPEG nor a PNG picture")
    return found


def picture_type(found: bytes) -> str:
    """The media type of a picture, by what is in it."""
    return next(kind for start, kind in _PICTURES.items() if found.startswith(start))


def read_truth(place: Place) -> bytes | Told:
    """``truth`` in a process of its own: parsing holds the interpreter lock for seconds."""
    return _made_or_told(place, lambda: truth(place))


def read_tile_scores(place: Place, classes: Sequence[str]) -> bytes | Told:
    """``scores`` in a process of its own, for the same reason."""
    return _made_or_told(place, lambda: scores(place, classes))


def _made_or_told(place: Place, make: Callable[[], bytes]) -> bytes | Told:
    try:
        return make()
    except SacMILError as error:
        return Told(str(error))
    except OSError as error:
        return Told(f"{place.path.name}: cannot be read ({error.strerror or error})")


def truth(place: Place) -> bytes:
    """GeoJSON, gzipped, once it is known to be JSON that browsers read."""
    raw = place.read(_MOST_TRUTH_BYTES)
    try:
        text = _unpacked(raw) if raw[:2] == b"\x1f\x8b" else raw
        found = json.loads(text, parse_constant=_refuse_constant)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise RunError(f"{place.path.name}: cannot be read as GeoJSON ({error})") from error
    if not isinstance(found, list) and not (isinstance(found, dict) and "type" in found):
        raise RunError(f"{place.path.name}: is JSON without a type; expected GeoJSON")
    try:
        return packed(found)
    except (ValueError, RecursionError) as error:  # 1e999 is read, as infinity
        raise RunError(f"{place.path.name}: holds a number that is not finite") from error


def scores(place: Place, classes: Sequence[str]) -> bytes:
    """Scores of a slide by a model as gzipped JSON, every number as exact as in the file."""
    _check_unpacked_size(place)
    found = read_scores(place.path)
    by_class = found.class_scores
    if by_class is not None and by_class.shape[1] != len(classes):
        raise RunError(
            f"{place.path.name}: has scores of {by_class.shape[1]} classes; expected "
            f"{len(classes)}, as results.json lists"
        )
    values = _numbers(found.scores)
    return packed(
        {
            "patch_size": found.patch_size,
            "x": _numbers(found.coords[:, 0]),
            "y": _numbers(found.coords[:, 1]),
            "scores": values,
            "class_scores": None
            if by_class is None
            else {name: _numbers(by_class[:, c]) for c, name in enumerate(classes)},
            "score_class": _class_name(found.score_class, classes),
            "low": min(values, default=None),
            "high": max(values, default=None),
        }
    )


def _class_name(number: int | None, classes: Sequence[str]) -> str | None:
    """The class the model's own scores are about; None where that is not known."""
    return classes[number] if number is not None and number < len(classes) else None


def packed(value: Any) -> bytes:
    """JSON, gzipped; the same bytes for the same value."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return gzip.compress(text.encode("utf-8", "replace"), compresslevel=1, mtime=0)


def _numbers(values: npt.NDArray[Any]) -> list[float]:
    """In the fewest digits that read back the same, for half of what is sent is digits."""
    if np.issubdtype(values.dtype, np.floating) and values.dtype.itemsize < 8:
        return list(map(float, values.astype(str).tolist()))
    whole = np.issubdtype(values.dtype, np.integer)
    return list(values.tolist() if whole else values.astype(np.float64).tolist())


def _unpacked(raw: bytes) -> bytes:
    with gzip.open(io.BytesIO(raw)) as file:
        found = file.read(_MOST_TRUTH_BYTES + 1)
    if len(found) > _MOST_TRUTH_BYTES:
        raise ValueError(f"it unpacks to more than {_MOST_TRUTH_BYTES:,} bytes")
    return found


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"it holds {name}, which JSON does not have")


def _check_unpacked_size(place: Place) -> None:
    """A file of kilobytes may unpack to gigabytes."""
    try:
        with zipfile.ZipFile(place.path) as file:
            size = sum(part.file_size for part in file.infolist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
        raise RunError(f"{place.path.name}: cannot be read as scores ({error})") from error
    if size > _MOST_SCORE_BYTES:
        raise RunError(
            f"{place.path.name}: unpacks to {size:,} bytes; expected at most {_MOST_SCORE_BYTES:,}"
        )
