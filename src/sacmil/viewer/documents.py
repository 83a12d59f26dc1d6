"""Thumbnails, ground truth and scores of a results folder, as the page reads them."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.errors import RunError
from sacmil.results import read_scores
from sacmil.viewer.allowed_paths import AllowedPath

_MAX_PICTURE_BYTES = 32 * 2**20
_MAX_TRUTH_BYTES = 64 * 2**20
_MAX_SCORE_BYTES = 128 * 2**20  # unpacked: a million tiles with scores of a dozen classes
_PICTURE_STARTS = (b"\xff\xd8\xff", b"\x89PNG")


def read_picture(allowed_path: AllowedPath) -> bytes:
    """Return a picture, or raise a RunError if browsers cannot show it."""
    found = allowed_path.read(_MAX_PICTURE_BYTES)
    if not found.startswith(_PICTURE_STARTS):
        raise RunError(f"{allowed_path.path.name}: is neither a JPEG nor a PNG picture")
    return found


def pack_truth(allowed_path: AllowedPath) -> bytes:
    """Return GeoJSON, gzipped, or raise a RunError if browsers cannot read it."""
    raw = allowed_path.read(_MAX_TRUTH_BYTES)
    try:
        text = _unpack_gzip(raw) if raw[:2] == b"\x1f\x8b" else raw
        found = json.loads(text, parse_constant=_reject_constant)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise RunError(f"{allowed_path.path.name}: cannot be read as GeoJSON ({error})") from error
    if not isinstance(found, list) and not (isinstance(found, dict) and "type" in found):
        raise RunError(f"{allowed_path.path.name}: is JSON without a type; expected GeoJSON")
    try:
        return pack_json(found)
    except (ValueError, RecursionError) as error:  # 1e999 is read, as infinity
        raise RunError(f"{allowed_path.path.name}: holds a number that is not finite") from error


def pack_scores(allowed_path: AllowedPath, names: Sequence[str]) -> bytes:
    """Return a model's scores of a slide as gzipped JSON, every number as exact as in the file.

    Args:
        allowed_path: of the npz.
        names: of the columns of scores by class.
    """
    _check_unpacked_size(allowed_path)
    found = read_scores(allowed_path.path)
    by_class = found.class_scores
    if by_class is not None and by_class.shape[1] != len(names):
        raise RunError(
            f"{allowed_path.path.name}: has {by_class.shape[1]} columns of scores; expected "
            f"{len(names)} ({', '.join(names)}), as in results.json"
        )
    values = _to_numbers(found.scores)
    number = found.score_class
    return pack_json(
        {
            "patch_size": found.patch_size,
            "x": _to_numbers(found.coords[:, 0]),
            "y": _to_numbers(found.coords[:, 1]),
            "scores": values,
            "class_scores": None
            if by_class is None
            else {name: _to_numbers(by_class[:, c]) for c, name in enumerate(names)},
            "score_class": names[number] if number is not None and number < len(names) else None,
            "low": min(values, default=None),
            "high": max(values, default=None),
        }
    )


def pack_json(value: Any) -> bytes:
    """Return gzipped JSON, the same bytes for the same value."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return gzip.compress(text.encode("utf-8", "replace"), compresslevel=1, mtime=0)


def _to_numbers(values: npt.NDArray[Any]) -> list[float]:
    """Return numbers with the fewest digits that read back the same, to send fewer bytes."""
    if np.issubdtype(values.dtype, np.floating) and values.dtype.itemsize < 8:
        return list(map(float, values.astype(str).tolist()))
    whole = np.issubdtype(values.dtype, np.integer)
    return list(values.tolist() if whole else values.astype(np.float64).tolist())


def _unpack_gzip(raw: bytes) -> bytes:
    with gzip.open(io.BytesIO(raw)) as file:
        found = file.read(_MAX_TRUTH_BYTES + 1)
    if len(found) > _MAX_TRUTH_BYTES:
        raise ValueError(f"it unpacks to more than {_MAX_TRUTH_BYTES:,} bytes")
    return found


def _reject_constant(name: str) -> Any:
    raise ValueError(f"it holds {name}, which JSON does not have")


def _check_unpacked_size(allowed_path: AllowedPath) -> None:
    """Reject a file that would unpack to too many bytes: kilobytes may become gigabytes."""
    try:
        with zipfile.ZipFile(allowed_path.path) as file:
            size = sum(member.file_size for member in file.infolist())
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile) as error:
        raise RunError(f"{allowed_path.path.name}: cannot be read as scores ({error})") from error
    if size > _MAX_SCORE_BYTES:
        raise RunError(
            f"{allowed_path.path.name}: unpacks to {size:,} bytes; expected at most "
            f"{_MAX_SCORE_BYTES:,}"
        )
