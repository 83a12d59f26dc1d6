"""Compute the exact share of each tile that polygons cover.

A tile that no edge passes through is inside or outside like its centre. In the others, every height
where an edge begins, ends, or crosses another cuts the tile into bands. Within a band edges are
straight and do not cross, so the covered area consists of trapezoids: the length covered at half
height times the height. A point is inside a polygon whose outline winds around it, so an outline
that crosses itself, as hand-drawn ones do, has no holes. A point is covered if it is inside any
positive polygon and inside no negative one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class _Edges(NamedTuple):
    """Edges from (x0, y0) up to (x1, y1), y0 <= y1."""

    x0: Floats
    y0: Floats
    x1: Floats
    y1: Floats
    direction: Integers
    """+1 if the outline runs up along the edge, −1 if down."""
    polygon: Integers

    def select(self, rows: Mask | Integers) -> _Edges:
        x0, y0, x1, y1 = (values[rows] for values in self[:4])
        return _Edges(x0, y0, x1, y1, self.direction[rows], self.polygon[rows])

    def x_at(self, y: Floats) -> Floats:
        """Return x at height y for each edge; never beyond its ends, despite rounding."""
        share = np.clip((y - self.y0) / (self.y1 - self.y0), 0, 1)
        return self.x0 + share * (self.x1 - self.x0)


def compute_covered_share(
    coords: npt.ArrayLike,
    patch_size: float,
    positive: Sequence[Floats],
    negative: Sequence[Floats] = (),
) -> Floats:
    """Return (N,) the share of each tile inside positive polygons and outside negative ones.

    Args:
        coords: (N, 2) upper left corners.
        patch_size: side of a tile, in the units of coords.
        positive: polygons, each (vertices, 2).
        negative: likewise; they are subtracted.
    """
    corners = np.asarray(coords, dtype=np.float64).reshape(-1, 2)
    polygons = [np.asarray(polygon, dtype=np.float64) for polygon in (*positive, *negative)]
    if not len(corners) or not positive:
        return np.zeros(len(corners))
    edges, level = _make_edges(polygons)
    sign = np.array([1] * len(positive) + [-1] * len(negative))
    share = _is_center_covered(corners + patch_size / 2, edges, sign).astype(np.float64)
    touched = np.flatnonzero(_find_touched_tiles(corners, patch_size, polygons))
    for y in np.unique(corners[touched, 1]):
        row = edges.select((edges.y0 < y + patch_size) & (edges.y1 > y))
        flat = level.select((level.y0 > y) & (level.y0 < y + patch_size))
        for tile in touched[corners[touched, 1] == y]:
            left, right = corners[tile, 0], corners[tile, 0] + patch_size
            near = row.select(np.minimum(row.x0, row.x1) < right)
            through = (np.minimum(flat.x0, flat.x1) < right) & (np.maximum(flat.x0, flat.x1) > left)
            area = _compute_covered_area(near, flat.y0[through], corners[tile], patch_size, sign)
            share[tile] = area / patch_size**2
    return np.clip(share, 0, 1)


def _make_edges(polygons: Sequence[Floats]) -> tuple[_Edges, _Edges]:
    """Return the rising edges and the level ones, at whose heights bands begin and end."""
    start = np.concatenate(polygons)
    end = np.concatenate([np.roll(polygon, -1, axis=0) for polygon in polygons])
    polygon = np.repeat(np.arange(len(polygons)), [len(points) for points in polygons])
    down = (start[:, 1] > end[:, 1])[:, None]
    low, high = np.where(down, end, start), np.where(down, start, end)
    turn = np.where(down[:, 0], -1, 1)
    edges = _Edges(low[:, 0], low[:, 1], high[:, 0], high[:, 1], turn, polygon)
    rising = edges.y1 > edges.y0
    return edges.select(rising), edges.select(~rising)


def _is_center_covered(points: Floats, edges: _Edges, sign: Integers) -> Mask:
    """Whether points are covered, by the winding number of each outline."""
    order = np.argsort(points[:, 1], kind="stable")
    inside: dict[int, Mask] = {side: np.zeros(len(points), dtype=bool) for side in (1, -1)}
    for number, side in enumerate(sign.tolist()):
        own = edges.select(edges.polygon == number)
        inside[side] |= _count_windings(points, order, own) != 0
    return inside[1] & ~inside[-1]


def _count_windings(points: Floats, order: Integers, edges: _Edges) -> Integers:
    """Return the winding number of one outline: edges left of each point, up minus down."""
    heights = points[order, 1]
    first = np.searchsorted(heights, edges.y0, side="left")
    count = np.searchsorted(heights, edges.y1, side="left") - first
    edge = np.repeat(np.arange(len(count)), count)
    step = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count)
    point = order[np.repeat(first, count) + step]
    left = edges.select(edge).x_at(points[point, 1]) <= points[point, 0]
    turns = np.bincount(point[left], weights=edges.direction[edge[left]], minlength=len(points))
    return turns.astype(np.int64)


def _find_touched_tiles(corners: Floats, size: float, polygons: Sequence[Floats]) -> Mask:
    """Find tiles that an edge may pass through, by a grid of cells the size of a tile."""
    origin = corners.min(0)
    first = np.floor((corners - origin) / size).astype(np.int64)
    last = np.ceil((corners - origin) / size + 1).astype(np.int64) - 1
    cells = np.zeros(last.max(0) + 1, dtype=bool)
    for polygon in polygons:
        _mark_cells(cells, (polygon - origin) / size)
    touched = np.zeros(len(corners), dtype=bool)
    for x in (first[:, 0], last[:, 0]):
        for y in (first[:, 1], last[:, 1]):
            touched |= cells[x, y]
    return touched


def _mark_cells(cells: Mask, polygon: Floats) -> None:
    """Mark the cells around each edge, with long edges cut into segments of at most a cell."""
    start, end = polygon, np.roll(polygon, -1, axis=0)
    segments = np.maximum(1, np.ceil(np.abs(end - start).max(1))).astype(np.int64)
    edge = np.repeat(np.arange(len(segments)), segments)
    step = np.arange(len(edge)) - np.repeat(np.cumsum(segments) - segments, segments)
    move = (end - start)[edge] / segments[edge, None]
    ends = np.stack([start[edge] + step[:, None] * move, start[edge] + (step + 1)[:, None] * move])
    # slightly wider, because segments meet at rounded points
    low = np.floor(ends.min(0) - 1e-6).astype(np.int64)
    high = np.floor(ends.max(0) + 1e-6).astype(np.int64)
    for x in range(3):
        for y in range(3):
            cell = np.minimum(low + [x, y], high)
            known = ((cell >= 0) & (cell < cells.shape)).all(1)
            cells[tuple(cell[known].T)] = True


def _compute_covered_area(
    row: _Edges, cuts: Floats, corner: Floats, size: float, sign: Integers
) -> float:
    """Return the covered area of one tile, from the edges and level heights of its row."""
    left, top = corner.tolist()
    beside = _clip_edges(row, np.maximum(row.y0, top), np.minimum(row.y1, top + size))
    before, rest = _split_edges(beside, left)
    inside, _ = _split_edges(rest, left + size)
    heights = np.unique(np.concatenate([[top, top + size], cuts, inside.y0, inside.y1]))
    bands = _make_bands(inside, heights, left + size)
    crossings = list(_find_crossings(bands, heights))
    if crossings:
        heights = np.unique(np.concatenate([heights, *crossings]))
        bands = _make_bands(inside, heights, left + size)
    length = _compute_covered_length(before, bands, (heights[1:] + heights[:-1]) / 2, left, sign)
    return float(length @ np.diff(heights))


def _clip_edges(edges: _Edges, low: Floats, high: Floats) -> _Edges:
    """Clip each edge to between two heights; edges outside are dropped."""
    clipped = edges._replace(x0=edges.x_at(low), y0=low, x1=edges.x_at(high), y1=high)
    return clipped.select(high > low)


def _split_edges(edges: _Edges, x: float) -> tuple[_Edges, _Edges]:
    """Split edges at a vertical line into those left and right of it."""
    run = edges.x1 - edges.x0
    with np.errstate(divide="ignore", invalid="ignore"):
        share = np.where(run == 0, edges.x0 <= x, (x - edges.x0) / run)
    cut = edges.y0 + np.clip(share, 0, 1) * (edges.y1 - edges.y0)
    rising = run >= 0
    left = _clip_edges(edges, np.where(rising, edges.y0, cut), np.where(rising, cut, edges.y1))
    right = _clip_edges(edges, np.where(rising, cut, edges.y0), np.where(rising, edges.y1, cut))
    return left, right


class _Bands(NamedTuple):
    """Edges that pass through each band, from left to right; (bands, most edges of a band).

    Bands of fewer edges are padded with edges along the right border, which bound nothing.
    """

    low: Floats
    """x where an edge enters the band."""
    middle: Floats
    high: Floats
    direction: Integers
    polygon: Integers
    right: float


def _make_bands(edges: _Edges, heights: Floats, right: float) -> _Bands:
    low, high = heights[:-1, None], heights[1:, None]
    active = (edges.y0 <= low) & (edges.y1 >= high)  # (bands, edges)
    most = int(active.sum(1).max(initial=0))
    rows = np.argsort(~active, axis=1, kind="stable")[:, :most]
    real = np.take_along_axis(active, rows, axis=1)
    selected = edges.select(rows)
    x = np.stack([np.where(real, selected.x_at(y), right) for y in (low, (low + high) / 2, high)])
    order = x[1].argsort(axis=1)
    x = np.take_along_axis(x, order[None], axis=2)
    turn = np.take_along_axis(selected.direction * real, order, axis=1)
    polygon = np.take_along_axis(selected.polygon, order, axis=1)
    return _Bands(x[0], x[1], x[2], turn, polygon, right)


def _find_crossings(bands: _Bands, heights: Floats) -> Iterator[Floats]:
    """Yield the heights within bands where edges cross."""
    crossed = (np.diff(bands.low, axis=1) < 0) | (np.diff(bands.high, axis=1) < 0)
    for band in np.flatnonzero(crossed.any(1)):
        low, high = (x[band][:, None] - x[band] for x in (bands.low, bands.high))
        pairs = low * high < 0  # one is left of the other below, and right of it above
        share = low[pairs] / (low[pairs] - high[pairs])
        yield heights[band] + share * (heights[band + 1] - heights[band])


def _compute_covered_length(
    before: _Edges, bands: _Bands, heights: Floats, left: float, sign: Integers
) -> Floats:
    """Return the covered length of each band's middle line, from the left border to the right."""
    border = np.full((len(heights), 1), left)
    marks = np.concatenate([border, bands.middle, np.full_like(border, bands.right)], axis=1)
    gaps = np.diff(marks, axis=1)
    inside_of = {side: np.zeros(gaps.shape, dtype=bool) for side in (1, -1)}
    for polygon in np.union1d(before.polygon, bands.polygon):
        steps = np.where(bands.polygon == polygon, bands.direction, 0)
        start = _count_turns_before(before.select(before.polygon == polygon), heights)
        winding = np.cumsum(np.concatenate([start[:, None], steps], axis=1), axis=1)
        inside_of[int(sign[polygon])] |= winding != 0
    length: Floats = (gaps * (inside_of[1] & ~inside_of[-1])).sum(1)
    return length


def _count_turns_before(edges: _Edges, heights: Floats) -> Integers:
    """Return the winding number of an outline at the left border, for each of rising heights."""
    change = np.zeros(len(heights) + 1, dtype=np.int64)
    np.add.at(change, np.searchsorted(heights, edges.y0), edges.direction)
    np.add.at(change, np.searchsorted(heights, edges.y1), -edges.direction)
    turns: Integers = np.cumsum(change)[:-1]
    return turns
