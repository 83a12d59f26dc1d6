"""Tumour annotations as polygons, and the tiles they cover."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.cohorts.coverage import compute_covered_share
from sacmil.errors import CohortError

Polygon = npt.NDArray[np.float64]
"""(vertices, 2): x, y in level-0 pixels; the last vertex is joined to the first."""


class Outlines(NamedTuple):
    """Polygons of tumour, and polygons to exclude from it."""

    positive: tuple[Polygon, ...]
    negative: tuple[Polygon, ...] = ()


def make_outlines(positive: Iterable[Any], negative: Iterable[Any] = ()) -> Outlines:
    """Make outlines of lists of points; those of fewer than three points are dropped."""
    return Outlines(_make_polygons(positive), _make_polygons(negative))


def read_outlines(path: str | Path) -> dict[str, Outlines]:
    """Read the outlines of many slides, in the format of NCRF.

    The format is {slide: {"positive": [polygon, …], "negative": […]}}. A polygon is a list of
    points [x, y] or {"vertices": [[x, y], …]}.

    Args:
        path: JSON, gzipped or not.
    """
    path = Path(path)
    try:
        raw = path.read_bytes()
        text = gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw
        return {str(slide): _parse_outlines(found) for slide, found in json.loads(text).items()}
    except FileNotFoundError:
        raise CohortError(path, ["there is no such file; check the path"]) from None
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise CohortError(path, [f"cannot be read as JSON outlines ({error})"]) from error
    except (AttributeError, TypeError, LookupError, OverflowError) as error:
        problem = 'is not of the form {slide: {"positive": [[[x, y], …], …], "negative": […]}}'
        raise CohortError(path, [problem]) from error


def label_tiles(
    coords: npt.ArrayLike, patch_size: float, outlines: Outlines, *, min_share: float = 0.5
) -> npt.NDArray[np.int64]:
    """Return (N,) labels: 1 for tiles of which tumour covers at least ``min_share``, else 0.

    The area is exact: overlapping polygons count once, and excluded areas do not count.

    Args:
        coords: (N, 2) upper left corners in level-0 pixels.
        patch_size: side of a tile in level-0 pixels.
        outlines: in the same pixels.
        min_share: above 0, up to 1.
    """
    if not 0 < min_share <= 1:
        raise CohortError("outlines", [f"min_share={min_share:g}; expected above 0, up to 1"])
    if not patch_size > 0:
        raise CohortError("outlines", [f"patch_size={patch_size:g}; expected pixels above 0"])
    share = compute_covered_share(coords, patch_size, outlines.positive, outlines.negative)
    return (share >= min_share - 1e-9).astype(np.int64)  # a tile wholly inside has share 1 − ε


def _parse_outlines(found: Any) -> Outlines:
    return make_outlines(
        map(_get_points, found["positive"]), map(_get_points, found.get("negative", ()))
    )


def _get_points(polygon: Any) -> Any:
    return polygon["vertices"] if isinstance(polygon, dict) else polygon


def _make_polygons(found: Iterable[Any]) -> tuple[Polygon, ...]:
    polygons = []
    for points in found:
        polygon = np.asarray(points, dtype=np.float64)
        if len(polygon) < 3:
            continue
        if polygon.ndim != 2 or polygon.shape[1] != 2 or not np.isfinite(polygon).all():
            raise ValueError(f"a polygon has shape {polygon.shape}; expected finite points [x, y]")
        polygons.append(polygon)
    return tuple(polygons)
