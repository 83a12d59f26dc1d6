"""Writes tissue as GeoJSON that QuPath can edit, and reads it back.

Each connected area is one annotation of the class Tissue: a polygon with holes in level-0 pixels
from QuPath's origin. If the format has one, that is the corner of the scanned area. When read,
every area is tissue, except those of a class that QuPath ignores: these are cut out. Such a class
begins with "Ignore" or "Exclude" or ends with "*".
"""

from __future__ import annotations

import hashlib
import json
import math
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from sacmil.errors import FormatError, MissingExtraError, NoTissueError
from sacmil.slides.pixels import scaled_shape
from sacmil.slides.tissue import Mask, Tissue

Ring = npt.NDArray[np.float64]
"""(P, 2), x then y; closed or not."""
Polygon = list[Ring]
"""The outer ring, then its holes."""

_NAMESPACE = uuid.UUID("6f1de1f8-52cf-5c9c-9d0a-5ac311000001")
_COLOR = [0, 160, 60]
_MAX_BYTES = 1_000_000
_TOLERANCES = (0.4, 0.8, 1.6, 3.2, 6.4)  # how far a border may move, in pixels of the mask
_MAX_COORDINATE = 1e9  # pixels; no slide is that large
_CHUNK_CROSSINGS = 4_000_000  # in memory at a time
_CHILDREN = {
    "FeatureCollection": "features",
    "GeometryCollection": "geometries",
    "Polygon": "coordinates",
    "MultiPolygon": "coordinates",
}
_AREALESS_TYPES = ("Point", "MultiPoint", "LineString", "MultiLineString")
_FIX_HINT = "export the annotations from QuPath as GeoJSON, or delete the file to find tissue again"


def to_geojson(tissue: Tissue, bounds_origin: tuple[int, int] | None = None) -> str:
    """Return the outline as the text of a FeatureCollection; equal masks give equal text.

    Args:
        tissue: the tissue to outline.
        bounds_origin: the slide's, if it has one: QuPath counts from there.
    """
    polygons = _trace_polygons(tissue)
    text = ""
    for tolerance in _TOLERANCES:
        step = tolerance * tissue.downsample
        features = [_make_feature(polygon, step, tissue, bounds_origin) for polygon in polygons]
        present = [feature for feature in features if feature]
        text = json.dumps({"type": "FeatureCollection", "features": present}, separators=(",", ":"))
        if len(text) <= _MAX_BYTES:
            break
    return text


def add_tissue_mode(text: str, mode: str) -> str:
    """Add how an outline was found, detect or all; the note is ignored after an edit."""
    outline = json.loads(text)
    outline["sacmil"] = {"tissue": mode, "hash": _hash_features(outline["features"])}
    return json.dumps(outline, separators=(",", ":"))


def read_tissue_mode(text: str | bytes) -> str | None:
    """Return how an outline was found; None if it was drawn or edited by hand, or is unknown."""
    try:
        outline = json.loads(text)
        found = outline["sacmil"]
        is_unedited = found["hash"] == _hash_features(outline["features"])
        return str(found["tissue"]) if is_unedited else None
    except (ValueError, TypeError, LookupError, RecursionError):  # written by another program
        return None


def _hash_features(features: object) -> str:
    return hashlib.sha256(json.dumps(features, sort_keys=True).encode()).hexdigest()[:16]


def from_geojson(
    text: str | bytes,
    slide_size: tuple[int, int],
    bounds_origin: tuple[int, int] | None,
    downsample: float,
    *,
    source: str | Path = "the outline",
) -> Tissue:
    """Return the mask of an outline, as written here or edited in QuPath.

    Args:
        text: a FeatureCollection, a list of features, a feature or a bare geometry.
        slide_size: width and height of level 0.
        bounds_origin: the slide's, if it has one.
        downsample: level-0 pixels per pixel of the mask, see ``tissue.mask_downsample``.
        source: the file, for messages.
    """
    shape = scaled_shape(slide_size, downsample)
    mask, cut = np.zeros(shape, bool), np.zeros(shape, bool)
    origin = np.array(bounds_origin or (0, 0), np.float64)
    try:
        polygons = _parse_polygons(text)
    except FormatError as error:
        raise FormatError(f"{source}: {error}; {_FIX_HINT}") from error
    for polygon, is_cut in polygons:
        rings = [_to_mask_pixels(ring + origin, slide_size, downsample) for ring in polygon]
        _fill_polygon(cut if is_cut else mask, rings)
    mask &= ~cut
    if not mask.any():
        raise NoTissueError(
            f"{source}: encloses no tissue on the slide ({slide_size[0]} x {slide_size[1]} "
            f"level-0 pixels); {_FIX_HINT}"
        )
    return Tissue(mask, downsample, slide_size)


# Tracing ---------------------------------------------------------------------------------------


def _trace_polygons(tissue: Tissue) -> list[Polygon]:
    """Return the borders of the mask in level-0 pixels."""
    try:
        from contourpy import FillType, contour_generator
    except ImportError as error:
        raise MissingExtraError("slides", "outlining tissue") from error
    # padded with glass, so that tissue at the slide's edge has a border there too
    padded = np.pad(tissue.mask, 1).astype(np.float32)
    generator = contour_generator(z=padded, fill_type=FillType.OuterOffset)
    points, offsets = cast("tuple[list[Ring], list[npt.NDArray[Any]]]", generator.filled(0.5, 2.0))
    # pixel i of the padded mask has its center at i - 0.5 in pixels of the mask
    return [
        np.split((corners - 0.5) * tissue.downsample, ends[1:-1])
        for corners, ends in zip(points, offsets, strict=True)
    ]


def _make_feature(
    polygon: Polygon, step: float, tissue: Tissue, bounds_origin: tuple[int, int] | None
) -> dict[str, Any] | None:
    simple = [_simplify_ring(ring, step).clip(0, tissue.slide_size) for ring in polygon]
    rings = [_round_ring(ring - (bounds_origin or (0, 0))) for ring in simple]
    if not rings[0]:
        return None
    coordinates = [ring for ring in rings if ring]
    return {
        "type": "Feature",
        "id": str(uuid.uuid5(_NAMESPACE, json.dumps(coordinates))),
        "geometry": {"type": "Polygon", "coordinates": coordinates},
        "properties": {
            "objectType": "annotation",
            "classification": {"name": "Tissue", "color": _COLOR},
            "isLocked": False,
        },
    }


def _round_ring(ring: Ring) -> list[list[int]]:
    """Return the closed ring in whole pixels; empty if it has no area left."""
    corners = np.rint(ring).astype(np.int64)
    differs = np.any(corners[1:] != corners[:-1], axis=1)
    corners = corners[np.concatenate([[True], differs])]
    (x, y), (next_x, next_y) = corners[:-1].T, corners[1:].T
    doubled_area = (x * next_y - next_x * y).sum()
    return corners.tolist() if len(corners) >= 4 and doubled_area else []


def _simplify_ring(ring: Ring, tolerance: float) -> Ring:
    """Return a closed ring with fewer corners; removed ones are within the tolerance.

    By the algorithm of Douglas and Peucker, started from the first corner and the one farthest
    from it.
    """
    far = int(((ring - ring[0]) ** 2).sum(axis=1).argmax())
    keep = np.zeros(len(ring), bool)
    keep[[0, far, -1]] = True
    spans = [(0, far), (far, len(ring) - 1)]
    while spans:
        start, end = spans.pop()
        if end - start < 2:
            continue
        distances = _line_distances(ring[start + 1 : end], ring[start], ring[end])
        worst = int(distances.argmax())
        if distances[worst] > tolerance:
            middle = start + 1 + worst
            keep[middle] = True
            spans += [(start, middle), (middle, end)]
    return ring[keep]


def _line_distances(points: Ring, start: Ring, end: Ring) -> npt.NDArray[np.float64]:
    """Return the distance of each point to the line through two others."""
    across, along = (end - start).tolist()
    length = math.hypot(across, along)
    offsets = points - start
    if length == 0:
        return np.hypot(offsets[:, 0], offsets[:, 1])
    return np.asarray(np.abs(offsets[:, 1] * across - offsets[:, 0] * along) / length)


# Reading ---------------------------------------------------------------------------------------


def _parse_polygons(text: str | bytes) -> list[tuple[Polygon, bool]]:
    """Return every polygon of a document, and whether to cut it out."""
    try:
        return list(_iter_polygons(json.loads(text)))
    except RecursionError as error:
        raise FormatError("is nested too deeply for GeoJSON") from error
    except ValueError as error:  # also for bytes that are not text
        raise FormatError(f"is not JSON ({error})") from error


def _iter_polygons(node: Any) -> Iterator[tuple[Polygon, bool]]:
    if isinstance(node, list):
        for item in node:
            yield from _iter_polygons(item)
        return
    kind = str(node.get("type")) if isinstance(node, dict) else ""
    if kind == "Feature":
        is_cut = _is_ignored(node.get("properties"))
        for polygon, _ in _iter_polygons(node.get("geometry") or []):
            yield polygon, is_cut
    elif kind in _CHILDREN:
        children = node.get(_CHILDREN[kind])
        if not isinstance(children, list):
            raise FormatError(
                f"{_CHILDREN[kind]!r} of a {kind} is {_describe_value(children)}; expected a list"
            )
        if kind == "MultiPolygon":
            yield from ((_parse_polygon(rings), False) for rings in children)
        elif kind == "Polygon":
            yield _parse_polygon(children), False
        else:
            yield from _iter_polygons(children)
    elif kind not in _AREALESS_TYPES:
        raise FormatError(f"holds {_describe_value(node)}; expected a GeoJSON feature or geometry")


def _parse_polygon(rings: Any) -> Polygon:
    if not isinstance(rings, list) or not rings:
        raise FormatError(f"a polygon is {_describe_value(rings)}; expected a list of rings")
    return [_parse_ring(ring) for ring in rings]


def _parse_ring(values: Any) -> Ring:
    try:
        ring = np.asarray(values)
    except ValueError:  # corners of different lengths
        ring = np.empty(0, object)
    is_numbers = ring.dtype.kind in "iuf" and ring.ndim == 2 and ring.shape[1] in (2, 3)
    if not is_numbers or len(ring) < 3:
        raise FormatError(
            f"a ring is {_describe_value(values)}; expected at least three corners [x, y] in "
            "level-0 pixels"
        )
    corners = ring[:, :2].astype(np.float64)
    if not (np.abs(corners) < _MAX_COORDINATE).all():  # also false for NaN
        raise FormatError(
            f"a corner lies at NaN, infinity or beyond {_MAX_COORDINATE:.0e}; expected level-0 "
            "pixels"
        )
    return corners


def _is_ignored(properties: Any) -> bool:
    """Return whether QuPath ignores a feature's class."""
    classification = properties.get("classification") if isinstance(properties, dict) else None
    if isinstance(classification, dict):
        names = classification.get("names")
        classification = classification.get("name") or (
            names[0] if isinstance(names, list) and names else ""
        )
    name = str(classification or "").strip().lower()
    return name.startswith(("ignore", "exclude")) or name.endswith("*")


def _describe_value(value: Any) -> str:
    """Describe a value in a few words, for a message."""
    if isinstance(value, dict):
        kind = value.get("type")
        return f"an object of type {str(kind)[:40]!r}" if kind else "an object without a type"
    return f"{str(value)[:40]!r}"


# Filling ---------------------------------------------------------------------------------------


def _to_mask_pixels(ring: Ring, slide_size: tuple[int, int], downsample: float) -> Ring:
    """Convert a ring to pixels of the mask.

    The last pixels of the mask may have their centers beyond the slide. So a border along the
    slide's edge moves to the mask's edge. Corners farther out keep their positions.
    """
    height, width = scaled_shape(slide_size, downsample)
    positions = ring / downsample
    at_edge = (ring >= np.array(slide_size) - 0.5) & (positions <= (width, height))
    return np.where(at_edge, (width, height), positions)


def _fill_polygon(mask: Mask, rings: Polygon) -> None:
    """Set the pixels of the mask with centers inside the rings, which are in pixels of the mask.

    A center is inside if a line to its left crosses the rings an odd number of times.
    """
    corners, shape = np.concatenate(rings), mask.shape[::-1]
    left, top = np.clip(np.floor(corners.min(axis=0)), 0, shape).astype(int)
    right, bottom = np.clip(np.ceil(corners.max(axis=0)), 0, shape).astype(int)
    region = mask[top:bottom, left:right]
    rows, columns = region.shape
    if region.size == 0:
        return
    flips = np.zeros((rows, columns + 1), np.uint8)
    for ring in rings:
        closed = np.concatenate([ring, ring[:1]]) - (left, top) - 0.5  # centers on whole numbers
        for row, column in _iter_crossings(closed, rows, columns):
            np.add.at(flips, (row, column), 1)  # an overflow keeps what matters: odd or even
    region |= np.bitwise_xor.accumulate(flips[:, :-1] & 1, axis=1).astype(bool)


def _iter_crossings(
    ring: Ring, rows: int, columns: int
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield the crossings of a closed ring with rows: row, and first column to the right."""
    start, end = ring[:-1], ring[1:]
    upward = start[:, 1] > end[:, 1]
    upper, lower = (np.where(upward[:, None], *pair) for pair in ((end, start), (start, end)))
    first = np.clip(np.ceil(upper[:, 1]), 0, rows).astype(np.int64)
    counts = np.clip(np.ceil(lower[:, 1]), 0, rows).astype(np.int64) - first
    edges = np.flatnonzero(counts)
    num_chunks = 1 + int(counts.sum()) // _CHUNK_CROSSINGS
    for chunk in np.array_split(edges, num_chunks):
        edge = np.repeat(chunk, counts[chunk])
        before = np.repeat(counts[chunk].cumsum() - counts[chunk], counts[chunk])
        row = first[edge] + np.arange(len(edge)) - before
        slope = (lower[edge, 0] - upper[edge, 0]) / (lower[edge, 1] - upper[edge, 1])
        x = upper[edge, 0] + (row - upper[edge, 1]) * slope
        yield row, np.clip(np.ceil(x), 0, columns).astype(np.int64)
