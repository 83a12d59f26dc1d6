"""Files of tiles and their scores: GeoJSON for QuPath, tables, and safe names of files.

GeoJSON has squares with measurements, streamed and gzipped. QuPath needs coordinates in level-0
pixels, counted from where it crops the slide. It needs ``objectType`` inside ``properties``:
outside, a tile would become a heavy annotation. Colours are [r, g, b], and ``id`` is a UUID.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sacmil.atomic import atomic_write
from sacmil.csv_text import escape_cells
from sacmil.errors import RunError
from sacmil.heatmap.colors import (
    Floats,
    Normalization,
    apply_color_scale,
    get_color_scale,
    to_scale_positions,
)
from sacmil.results import InstanceScores

_CHUNK_TILES = 5_000
_COMPRESSION_LEVEL = 3  # twice as fast as 6 for a few per cent more bytes
_POINT = "[%s,%s]"
_FEATURE = (
    '{"type":"Feature","id":"%s","geometry":{"type":"Polygon","coordinates":[['
    + ",".join([_POINT] * 5)
    + ']]},"properties":{"objectType":"tile","isLocked":true,"color":[%s,%s,%s],"measurements":{'
)
"""Beginning of a feature, with %s in place of its id and numbers."""
_UNSAFE_CHARACTERS = re.compile(r"[^\w .,()+=@-]")
_MAX_BYTES = 100  # bytes; names may have 255, and more is added to them


def safe_file_name(text: str) -> str:
    """Return the text if it is safe, otherwise a similar one with a hash that keeps it unique.

    >>> safe_file_name("TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF")
    'TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF'
    >>> safe_file_name("../x")
    'x-d6b96a97'
    """
    safe = _UNSAFE_CHARACTERS.sub("_", text).strip(" ._")
    safe = safe.encode()[:_MAX_BYTES].decode(errors="ignore")
    if safe == text:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]
    return f"{safe}-{digest}" if safe else digest


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
    positions = to_scale_positions(values, normalization)[0]
    colors = apply_color_scale(positions, get_color_scale(normalization))
    corners = scores.coords - np.asarray(bounds_origin or (0, 0))
    document = _iter_document(scores.patch_size, corners, colors, columns, slide_id)
    with atomic_write(path) as partial, partial.open("wb") as file:
        is_zipped = str(path).endswith(".gz")
        packed = gzip.GzipFile("", "wb", _COMPRESSION_LEVEL, file, mtime=0) if is_zipped else None
        with packed or nullcontext(file) as opened:
            opened.writelines(document)


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
    names = [json.dumps(name).replace("%", "%%") for name in columns]
    template = _FEATURE + ",".join(f"{name}:%s" for name in names) + "}}}"
    for start in range(0, len(corners), _CHUNK_TILES):
        chunk = slice(start, start + _CHUNK_TILES)
        ids = _make_ids(slide_id, start, len(corners[chunk]))
        numbers = _iter_numbers(
            side, corners[chunk], colors[chunk], [c[chunk] for c in columns.values()]
        )
        texts = [template % (name, *row) for name, row in zip(ids, numbers, strict=True)]
        yield (",\n" if start else "").encode() + ",\n".join(texts).encode()
    yield b"\n]}\n"


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


def write_csv(
    path: str | Path,
    scores: InstanceScores,
    values: Floats,
    *,
    normalization: Normalization,
    measurements: Mapping[str, npt.ArrayLike] | None = None,
    labels: npt.NDArray[np.integer] | None = None,
) -> None:
    """Write x, y and patch_size in level-0 pixels, a column per measurement, and label.

    Args:
        path: of the file.
        scores: positions and scores of the tiles.
        values: (N,), the normalised scores.
        normalization: the normalisation.
        measurements: (N,) by name; None writes the score and its normalised value.
        labels: (N,), the true labels of tiles, if they are known.
    """
    if measurements is None:
        measurements = make_default_measurements(scores, values, normalization)
    columns = [[f"{value:.9g}" for value in np.asarray(c).tolist()] for c in measurements.values()]
    if labels is not None:
        columns.append([str(label) for label in labels.tolist()])
    header = ["x", "y", "patch_size", *measurements, *(["label"] if labels is not None else [])]
    side = f"{scores.patch_size:g}"
    with atomic_write(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(escape_cells(header))
        x, y = scores.coords.T.tolist()
        writer.writerows(zip(x, y, [side] * len(x), *columns, strict=True))
