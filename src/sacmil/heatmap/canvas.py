"""The background of scores: the region of a slide that has tiles, or white; tiles and truth on it.

The truth is an expert's outlines, or a label for every tile.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.cohorts.outlines import Outlines, make_outlines, read_asap, read_outlines
from sacmil.errors import CohortError, SlideError
from sacmil.results import InstanceScores
from sacmil.slides.pixels import make_thumbnail
from sacmil.slides.readers import Pixels, Slide, open_slide

Truth = Outlines | npt.NDArray[np.integer]
"""Outlines in level-0 pixels, or (N,) labels of the tiles, positive if above zero."""

SINGLE_SLIDE_SUFFIXES = (".xml", ".geojson", ".geojson.gz")
"""Suffixes of ASAP and QuPath files, which are of one slide each."""
SUFFIXES = (*SINGLE_SLIDE_SUFFIXES, ".json", ".json.gz")
"""All suffixes; JSON outlines may be of many slides."""
LONGER_SIDE_PX = 1100
"""Length of a picture's longer side, in pixels."""
_MARGIN = 0.03
_CHILDREN = {
    "FeatureCollection": "features",
    "Feature": "geometry",
    "GeometryCollection": "geometries",
}
_FIXED_POINT_SCALE = 2**32  # whole numbers, because their sums are exact in any order


class Viewport(NamedTuple):
    """A rectangle of the slide and the size of its picture."""

    left: float
    """In level-0 pixels, as is top."""
    top: float
    width: int
    """In pixels of the picture, as is height."""
    height: int
    downsample: float
    """Level-0 pixels per pixel of the picture."""

    def to_pixels(self, points: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Convert points, (…, 2), from level-0 pixels to pixels of the picture."""
        return np.asarray((np.asarray(points, float) - (self.left, self.top)) / self.downsample)


class Canvas(NamedTuple):
    """A background that is read once and used for all models and classes."""

    viewport: Viewport
    mpp: float | None
    """Microns per level-0 pixel."""
    slide: Slide | None = None
    pixels: Pixels | None = None
    """The slide in the viewport."""
    truth: Truth | None = None


@contextmanager
def open_canvas(
    scores: InstanceScores,
    slide: str | Path | None = None,
    *,
    mpp: float | None = None,
    slide_size: tuple[int, int] | None = None,
    truth: Truth | None = None,
) -> Iterator[Canvas]:
    """Open the background of all scores with these tile positions.

    Args:
        scores: positions of the tiles.
        slide: its file; None for white.
        mpp: microns per level-0 pixel from the bag; None takes the slide's own value.
        slide_size: width and height of level 0 from the bag; a slide of another size is rejected.
        truth: outlines in level-0 pixels, or (N,) labels.
    """
    extra_points = truth.positive if isinstance(truth, Outlines) else ()
    with nullcontext() if slide is None else open_slide(slide) as opened:
        if opened is None:
            view = fit_viewport(scores, slide_size=slide_size, extra_points=extra_points)
            yield Canvas(view, mpp, truth=truth)
        else:
            check_slide_matches(scores, opened, slide_size)
            view = fit_viewport(scores, slide_size=opened.size, extra_points=extra_points)
            yield Canvas(view, mpp or opened.mpp, opened, read_viewport(opened, view), truth)


def fit_viewport(
    scores: InstanceScores,
    *,
    slide_size: tuple[int, int] | None = None,
    extra_points: Iterable[npt.NDArray[np.float64]] = (),
    longer_side: int = LONGER_SIDE_PX,
) -> Viewport:
    """Return the viewport of all tiles and a margin; a larger one would show less detail.

    Args:
        scores: positions of the tiles.
        slide_size: width and height of level 0; the margin ends there.
        extra_points: more points, (…, 2), that must be visible.
        longer_side: length of the longer side in pixels.
    """
    points = np.concatenate([scores.coords, scores.coords + scores.patch_size, *extra_points])
    low, high = points.min(axis=0).astype(float), points.max(axis=0).astype(float)
    margin = max(_MARGIN * (high - low).max(), scores.patch_size)
    low, high = low - margin, high + margin
    if slide_size is not None:
        # tiles may extend over the edge of a slide, and must stay visible
        low = np.minimum(np.maximum(low, 0), points.min(axis=0))
        high = np.maximum(np.minimum(high, slide_size), points.max(axis=0))
    downsample = float((high - low).max()) / longer_side
    width, height = (max(1, round(length / downsample)) for length in (high - low).tolist())
    return Viewport(float(low[0]), float(low[1]), width, height, downsample)


def read_viewport(slide: Slide, viewport: Viewport) -> Pixels:
    """Read the slide in a viewport, (height, width, 3); white beyond its edge."""
    from PIL import Image

    small = make_thumbnail(slide, viewport.downsample)
    pixels = small.pixels
    start = np.array([viewport.left, viewport.top]) / small.downsample
    size = np.array([viewport.width, viewport.height]) * viewport.downsample / small.downsample
    # resize() takes fractional pixels, but none outside the picture
    before = np.ceil(np.maximum(-start, 0)).astype(int)
    over = start + size - (pixels.shape[1], pixels.shape[0])
    after = np.ceil(np.maximum(over, 0)).astype(int)
    if before.any() or after.any():
        edges = ((before[1], after[1]), (before[0], after[0]), (0, 0))
        pixels = np.pad(pixels, edges, constant_values=255)
    box = (*(start + before), *(start + before + size))
    shape = (viewport.width, viewport.height)
    return np.asarray(Image.fromarray(pixels).resize(shape, Image.Resampling.BICUBIC, box=box))


def check_slide_matches(
    scores: InstanceScores, slide: Slide, slide_size: tuple[int, int] | None
) -> None:
    """Reject a slide that the scores do not belong to."""
    if slide_size is not None and tuple(slide_size) != slide.size:
        raise SlideError(
            f"{slide.path}: is {slide.size[0]:,} x {slide.size[1]:,} pixels, the bag's slide has "
            f"{slide_size[0]:,} x {slide_size[1]:,}; expected the slide the bag was made from"
        )
    reach = (scores.coords + scores.patch_size / 2).max(axis=0)
    if (reach > slide.size).any() or (scores.coords + scores.patch_size / 2 < 0).any():
        raise SlideError(
            f"{slide.path}: tiles lie outside it (up to {reach[0]:,.0f}, {reach[1]:,.0f} of "
            f"{slide.size[0]:,} x {slide.size[1]:,}); expected the slide the bag was made from"
        )


# --- tiles and truth in pixels -------------------------------------------------------------------


def rasterize(
    scores: InstanceScores, positions: npt.NDArray[np.float64], viewport: Viewport
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Return the mean of the tiles over each pixel, (h, w), and whether it has any tile.

    Pixels without tiles have mean 0. It takes two cumulative sums, whatever the number of tiles
    and their overlap.

    Args:
        scores: positions of the tiles.
        positions: (N,), their positions on the colour scale, 0 to 1.
        viewport: the region of the slide.
    """
    corners = _find_corners(scores, viewport)
    count = _sum_rectangles(corners, np.ones(len(positions)), viewport)
    total = _sum_rectangles(corners, np.rint(positions * _FIXED_POINT_SCALE), viewport)
    covered = count > 0
    unit = count * float(_FIXED_POINT_SCALE)
    return np.divide(total, unit, out=np.zeros(count.shape), where=covered), covered


def _find_corners(scores: InstanceScores, viewport: Viewport) -> npt.NDArray[np.int64]:
    """Return left, top, right and bottom in pixels, (N, 4); a tile has at least one pixel."""
    start = np.rint(viewport.to_pixels(scores.coords))
    # no gaps: the end of a tile is rounded as the start of the next
    end = np.maximum(np.rint(viewport.to_pixels(scores.coords + scores.patch_size)), start + 1)
    limits = (viewport.width, viewport.height)
    start = np.clip(start, 0, np.subtract(limits, 1))
    return np.concatenate([start, np.clip(end, 1, limits)], axis=1).astype(np.int64)


def _sum_rectangles(
    corners: npt.NDArray[np.int64], weights: npt.NDArray[np.float64], viewport: Viewport
) -> npt.NDArray[np.int64]:
    """Return the sum of the weights of the rectangles over each pixel, (h, w)."""
    left, top, right, bottom = corners.T
    wide = viewport.width + 1
    where = np.concatenate([top * wide + left, top * wide + right])
    where = np.concatenate([where, bottom * wide + left, bottom * wide + right])
    signed = np.concatenate([weights, -weights, -weights, weights])
    edges = np.bincount(where, signed, minlength=(viewport.height + 1) * wide).astype(np.int64)
    return edges.reshape(-1, wide).cumsum(axis=0).cumsum(axis=1)[:-1, :-1]


def make_truth_mask(
    truth: Truth, scores: InstanceScores, viewport: Viewport
) -> npt.NDArray[np.bool_]:
    """Return a mask, (h, w), of where the truth is positive."""
    if isinstance(truth, Outlines):
        return _fill_outlines(truth, viewport)
    if len(truth) != len(scores.coords):
        problem = f"has {len(truth)} labels for {len(scores.coords)} tiles; expected one per tile"
        raise CohortError("truth", [problem])
    positive = truth > 0
    tiles = InstanceScores(scores.coords[positive], scores.patch_size, scores.scores[positive])
    return rasterize(tiles, np.ones(len(tiles.scores)), viewport)[1]


def _fill_outlines(outlines: Outlines, viewport: Viewport) -> npt.NDArray[np.bool_]:
    from PIL import Image, ImageDraw

    mask = Image.new("1", (viewport.width, viewport.height))
    draw = ImageDraw.Draw(mask)
    for polygons, inside in ((outlines.positive, 1), (outlines.negative, 0)):
        for polygon in polygons:
            points = viewport.to_pixels(polygon) - 0.5  # pixel positions are at their centers
            draw.polygon([(x, y) for x, y in points.tolist()], fill=inside)
    return np.array(mask, dtype=bool)


# --- files of the truth --------------------------------------------------------------------------


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
    elif found is not None:  # a feature may have no geometry
        kind = found["type"]
        if kind in _CHILDREN:
            yield from _iter_polygons(found[_CHILDREN[kind]])
        elif kind in ("Polygon", "MultiPolygon"):
            rings = found["coordinates"]
            yield from rings if kind == "MultiPolygon" else [rings]


def _move_rings(rings: Any, origin: tuple[int, int]) -> list[npt.NDArray[np.float64]]:
    return [np.asarray(ring, dtype=np.float64)[:, :2] + origin for ring in rings]
