"""The ground truth of a slide: an expert's outlines, or a label for every tile."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.cohorts.outlines import Outlines, make_outlines, read_asap, read_outlines
from sacmil.errors import CohortError

Truth = Outlines | npt.NDArray[np.integer]
"""Outlines in level-0 pixels, or (N,) labels of the tiles, positive if above zero."""

SINGLE_SLIDE_SUFFIXES = (".xml", ".geojson", ".geojson.gz")
"""Suffixes of ASAP and QuPath files, which are of one slide each."""
SUFFIXES = (*SINGLE_SLIDE_SUFFIXES, ".json", ".json.gz")
"""All suffixes; JSON outlines may be of many slides."""


def read_truth(
    path: str | Path, slide_id: str, *, bounds_origin: tuple[int, int] | None = None
) -> Outlines | None:
    """Read the outlines of one slide; None if it has none.

    Args:
        path: ASAP's XML, GeoJSON, or JSON outlines of many slides; or a folder of such files,
            named after their slides.
        slide_id: the slide.
        bounds_origin: upper left corner of the scanned area, from which GeoJSON counts.
    """
    path = Path(path)
    if path.is_dir():
        files = [path / f"{slide_id}{suffix}" for suffix in SUFFIXES]
        # a slide's id may be any text, also ../x
        files = [file for file in files if file.parent == path and file.is_file()]
        return read_truth(files[0], slide_id, bounds_origin=bounds_origin) if files else None
    if path.suffix == ".xml":
        return read_asap(path)
    found = _read_json(path)
    if isinstance(found, list) or (isinstance(found, dict) and "type" in found):
        return _parse_geojson(path, found, bounds_origin or (0, 0))
    return read_outlines(path).get(slide_id)


def _read_json(path: Path) -> Any:
    try:
        raw = path.read_bytes()
        return json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except FileNotFoundError:
        raise CohortError(path, ["there is no such file; check the path"]) from None
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        problem = f"cannot be read as JSON or GeoJSON ({error}); ASAP's files end in .xml"
        raise CohortError(path, [problem]) from error


def _parse_geojson(path: Path, found: Any, origin: tuple[int, int]) -> Outlines:
    try:
        polygons = [_move_rings(polygon, origin) for polygon in _iter_polygons(found)]
        outer = [rings[0] for rings in polygons if rings]
        return make_outlines(outer, [hole for rings in polygons for hole in rings[1:]])
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise CohortError(path, [f"cannot be understood as GeoJSON ({error!r})"]) from error
    except (RecursionError, OverflowError) as error:
        problem = f"has too many levels or too large numbers for outlines ({error})"
        raise CohortError(path, [problem]) from error


def _iter_polygons(found: Any) -> Iterator[Any]:
    """Yield the rings of every polygon; points and lines enclose nothing."""
    if isinstance(found, list):
        for item in found:
            yield from _iter_polygons(item)
    elif found is None:  # a feature may have no geometry
        return
    elif found["type"] == "FeatureCollection":
        yield from _iter_polygons(found["features"])
    elif found["type"] == "Feature":
        yield from _iter_polygons(found["geometry"])
    elif found["type"] == "GeometryCollection":
        yield from _iter_polygons(found["geometries"])
    elif found["type"] == "MultiPolygon":
        yield from found["coordinates"]
    elif found["type"] == "Polygon":
        yield found["coordinates"]


def _move_rings(rings: Any, origin: tuple[int, int]) -> list[npt.NDArray[np.float64]]:
    return [np.asarray(ring, dtype=np.float64)[:, :2] + origin for ring in rings]
