"""Writes tiles and their scores for QuPath: squares with measurements, streamed and gzipped.

QuPath needs coordinates in level-0 pixels, counted from where it crops the slide. It needs
``objectType`` inside ``properties``: outside, a tile would become a heavy annotation. Colours are
[r, g, b], and ``id`` is a UUID.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sacmil.atomic import atomic_write
from sacmil.errors import RunError
from sacmil.heatmap.colors import apply_color_scale
from sacmil.heatmap.normalization import Floats, Normalization, to_scale_positions
from sacmil.results import InstanceScores

_CHUNK_TILES = 5_000
_COMPRESSION_LEVEL = 3  # twice as fast as 6 for a few per cent more bytes


def write_geojson(
    path: str | Path,
    scores: InstanceScores,
    values: Floats,
    *,
    normalization: Normalization,
    measurements: Mapping[str, npt.ArrayLike] | None = None,
    bounds_origin: tuple[int, int] | None = None,
    slide_id: str = "",
) -> None:
    """Write one tile object per tile; in QuPath, open the file by File > Import objects.

    Args:
        path: of the file; gzipped if it ends in .gz.
        scores: positions and scores of the tiles.
        values: (N,), the normalised scores, which give the colours.
        normalization: the normalisation.
        measurements: (N,) by name; None writes the score and its normalised value.
        bounds_origin: upper left corner of the scanned area, which is QuPath's origin.
        slide_id: part of the ids of tiles, so that they differ between slides.
    """
    if measurements is None:
        measurements = make_default_measurements(scores, values, normalization)
    columns = {name: np.asarray(column, np.float64) for name, column in measurements.items()}
    for name, column in columns.items():
        if column.shape != (len(scores.coords),) or not np.isfinite(column).all():
            raise RunError(f"{name}: has shape {column.shape}; expected a finite number per tile")
    colors = apply_color_scale(to_scale_positions(values, normalization)[0])
    corners = scores.coords - np.asarray(bounds_origin or (0, 0))
    with atomic_write(path) as partial, partial.open("wb") as file:
        if str(path).endswith(".gz"):
            with gzip.GzipFile("", "wb", _COMPRESSION_LEVEL, file, mtime=0) as packed:
                packed.writelines(
                    _iter_document(scores.patch_size, corners, colors, columns, slide_id)
                )
        else:
            file.writelines(_iter_document(scores.patch_size, corners, colors, columns, slide_id))


def make_default_measurements(
    scores: InstanceScores, values: Floats, normalization: str
) -> dict[str, Floats]:
    """Return the score, and its normalised value unless the normalisation is raw."""
    raw = {"score": np.asarray(scores.scores, np.float64)}
    return raw if normalization == "raw" else {**raw, f"score ({normalization})": values}


def _iter_document(
    side: float,
    corners: npt.NDArray[np.number],
    colors: npt.NDArray[np.uint8],
    columns: Mapping[str, Floats],
    slide_id: str,
) -> Iterator[bytes]:
    yield b'{"type":"FeatureCollection","features":[\n'
    template = _make_template(list(columns))
    for start in range(0, len(corners), _CHUNK_TILES):
        chunk = slice(start, start + _CHUNK_TILES)
        ids = _make_ids(slide_id, start, len(corners[chunk]))
        numbers = _iter_numbers(
            side, corners[chunk], colors[chunk], [c[chunk] for c in columns.values()]
        )
        texts = [template % (name, *row) for name, row in zip(ids, numbers, strict=True)]
        yield (",\n" if start else "").encode() + ",\n".join(texts).encode()
    yield b"\n]}\n"


def _make_template(names: list[str]) -> str:
    """Return the text of a feature, with %s in place of numbers."""
    point = "[%s,%s]"
    ring = ",".join([point] * 5)
    measured = ",".join(json.dumps(name).replace("%", "%%") + ":%s" for name in names)
    return (
        '{"type":"Feature","id":"%s","geometry":{"type":"Polygon","coordinates":[['
        + ring
        + ']]},"properties":{"objectType":"tile","isLocked":true,"color":[%s,%s,%s],'
        + '"measurements":{'
        + measured
        + "}}}"
    )


def _iter_numbers(
    side: float,
    corners: npt.NDArray[np.number],
    colors: npt.NDArray[np.uint8],
    columns: list[Floats],
) -> Iterator[tuple[object, ...]]:
    x, y = corners.T
    is_whole = float(side).is_integer() and np.issubdtype(corners.dtype, np.integer)
    right, bottom = (start + (int(side) if is_whole else side) for start in (x, y))
    ring = (x, y, right, y, right, bottom, x, bottom, x, y)
    # float32 has no more than nine digits
    measured = [[float(f"{value:.9g}") for value in column.tolist()] for column in columns]
    return zip(*(p.tolist() for p in ring), *colors.T.tolist(), *measured, strict=True)


def _make_ids(slide_id: str, start: int, count: int) -> list[str]:
    """Return UUIDs (version 8, custom), the same each time."""
    seed = hashlib.sha256(f"{slide_id}\0".encode("utf-8", "surrogatepass")).hexdigest()
    front = f"{seed[:8]}-{seed[8:12]}-8{seed[13:16]}-8{seed[17:20]}"
    return [f"{front}-{number:012x}" for number in range(start, start + count)]
