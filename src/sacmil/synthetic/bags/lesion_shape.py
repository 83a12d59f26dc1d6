"""Shapes of lesions: random blobs, or outlines that a pathologist drew."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sacmil.cohorts.outlines import read_outlines
from sacmil.errors import CohortError

Floats = NDArray[np.float64]
Points = Floats
"""(N, 2)."""
Shape = Callable[[Points], Floats]
"""Signed distance to the outline of a shape of area 1 about the origin; negative inside."""
Polygons = tuple[Points, ...]
"""Polygons, in any unit and at any position."""

WAVES = 5
RAGGEDNESS = 0.3
MAX_CORNERS = 96
"""Most corners of an outline; a lesion of a few hundred tiles needs no more."""


def sort_by_lesion_distance(
    positions: NDArray[np.int64], areas: Floats, random: np.random.Generator, outlines: Polygons
) -> NDArray[np.int64]:
    """Return the indices of positions from inside the lesions outwards; see below."""
    distance = compute_lesion_distances(positions, areas, random, outlines)
    return np.argsort(distance, kind="stable")


def compute_lesion_distances(
    positions: NDArray[np.int64], areas: Floats, random: np.random.Generator, outlines: Polygons
) -> Floats:
    """Return the signed distance of each position to the nearest of several lesions.

    Args:
        positions: of tissue; every lesion's centre is one of them.
        areas: of the lesions, in patches.
        random: draws centres and shapes.
        outlines: the shapes to choose from; random blobs if empty.
    """
    centers = positions[
        random.choice(len(positions), len(areas), replace=len(areas) > len(positions))
    ]
    distance = np.full(len(positions), np.inf)
    for center, area in zip(centers, areas, strict=True):
        side = np.sqrt(area)
        shape = _pick_outline(outlines, random) if outlines else _make_blob(random)
        np.minimum(distance, side * shape((positions - center) / side), out=distance)
    return distance


def read_shapes(path: str | Path) -> Polygons:
    """Read the tumour outlines of every slide of a JSON file, as shapes for lesions.

    Args:
        path: ``{slide: {"positive": [polygon, …]}}``, as for CAMELYON16; gzipped or not.
    """
    outlines = [polygon for slide in read_outlines(path).values() for polygon in slide.positive]
    shapes = tuple(polygon for polygon in outlines if _polygon_area(polygon) > 0)
    if not shapes:
        raise CohortError(path, ["no tumour outline in it has an area; expected at least one"])
    return shapes


def _make_blob(random: np.random.Generator) -> Shape:
    """Make a disc whose radius varies with the angle."""
    wave = np.arange(1, WAVES + 1)
    height = random.standard_normal(WAVES) * RAGGEDNESS / np.sqrt(wave)
    phase = random.uniform(0, 2 * np.pi, WAVES)

    def radius(angle: Floats) -> Floats:
        return np.asarray(np.exp(np.cos(np.multiply.outer(angle, wave) + phase) @ height))

    all_around = radius(np.linspace(0, 2 * np.pi, 256, endpoint=False))
    unit = np.sqrt(np.pi * np.mean(all_around**2))

    def shape(points: Points) -> Floats:
        x, y = points.T
        return np.asarray(np.hypot(x, y) - radius(np.arctan2(y, x)) / unit)

    return shape


def _pick_outline(outlines: Polygons, random: np.random.Generator) -> Shape:
    """Pick one of the outlines, rotated and perhaps mirrored."""
    polygon = outlines[random.integers(len(outlines))]
    step = -(-len(polygon) // MAX_CORNERS)
    thinned = polygon[::step] if _polygon_area(polygon[::step]) > 0 else polygon
    corners = (thinned - thinned.mean(0)) / np.sqrt(_polygon_area(thinned))
    angle = random.uniform(0, 2 * np.pi)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    turn[0] *= random.choice([-1, 1])
    return lambda points: _compute_distance(points, corners @ turn.T)


def _compute_distance(points: Points, corners: Points) -> Floats:
    """Return the signed distance to a polygon; far from it, that to the circle around it."""
    radius = np.hypot(*corners.T).max()
    distance: Floats = np.hypot(*points.T) - radius
    near = distance < radius
    distance[near] = _compute_exact_distance(points[near], corners)
    return distance


def _compute_exact_distance(points: Points, corners: Points) -> Floats:
    distance = np.full(len(points), np.inf)
    inside = np.zeros(len(points), dtype=bool)
    for start, end in zip(corners, np.roll(corners, -1, axis=0), strict=True):
        edge, offset = end - start, points - start
        along = np.clip(offset @ edge / max(edge @ edge, 1e-12), 0, 1)
        np.minimum(distance, np.hypot(*(offset - along[:, None] * edge).T), out=distance)
        crossed = (start[1] > points[:, 1]) != (end[1] > points[:, 1])
        left_of = edge[0] * offset[:, 1] - edge[1] * offset[:, 0]
        inside ^= crossed & ((left_of > 0) == (edge[1] > 0))
    return np.where(inside, -distance, distance)


def _polygon_area(polygon: Points) -> float:
    x, y = (polygon - polygon.mean(0)).T
    return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)
