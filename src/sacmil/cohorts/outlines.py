"""Tumour annotations as polygons: read from NCRF's JSON or ASAP's XML, and the tiles they cover.

A point is inside a polygon whose outline winds around it, so an outline that crosses itself, as
hand-drawn ones do, has no holes. A point is covered if it is inside any positive polygon and inside
no negative one.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Collection, Iterable, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt

from sacmil.errors import CohortError

if TYPE_CHECKING:
    from shapely.geometry.base import BaseGeometry

Floats = npt.NDArray[np.float64]
Polygon = Floats
"""(vertices, 2): x, y in level-0 pixels; the last vertex is joined to the first."""

EXCLUSIONS = ("_2", "Exclusion", "Exclusions", "normal")
"""Groups of ASAP that are not tumour: of CAMELYON16, its first release, and CAMELYON17."""
_AREA_TYPES = frozenset({"polygon", "spline", "rectangle"})
"""ASAP's types of annotation that enclose something; dots and point sets do not."""


class Outlines(NamedTuple):
    """Polygons of tumour, and polygons to exclude from it."""

    positive: tuple[Polygon, ...]
    negative: tuple[Polygon, ...] = ()


def make_outlines(positive: Iterable[Any], negative: Iterable[Any] = ()) -> Outlines:
    """Make outlines of lists of points; those of fewer than three points are dropped."""
    return Outlines(_make_polygons(positive), _make_polygons(negative))


def _make_polygons(found: Iterable[Any]) -> tuple[Polygon, ...]:
    polygons = [np.asarray(points, dtype=np.float64) for points in found]
    for polygon in polygons:
        is_valid = polygon.ndim == 2 and polygon.shape[1] == 2 and np.isfinite(polygon).all()
        if len(polygon) >= 3 and not is_valid:
            raise ValueError(f"a polygon has shape {polygon.shape}; expected finite points [x, y]")
    return tuple(polygon for polygon in polygons if len(polygon) >= 3)


# --- files ----------------------------------------------------------------------------------------


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


def _parse_outlines(found: Any) -> Outlines:
    polygons = found["positive"], found.get("negative", ())
    return make_outlines(*(map(_get_points, listed) for listed in polygons))


def _get_points(polygon: Any) -> Any:
    return polygon["vertices"] if isinstance(polygon, dict) else polygon


def read_asap(path: str | Path, *, exclusions: Collection[str] = EXCLUSIONS) -> Outlines:
    """Read the outlines of one slide, from a file of ASAP, the annotation tool of CAMELYON16.

    Args:
        path: ASAP's XML.
        exclusions: groups that are subtracted from the others; case is ignored.
    """
    path = Path(path)
    excluded = {group.lower() for group in exclusions}
    try:
        areas = _parse_asap(path.read_bytes())
        return make_outlines(
            [points for group, points in areas if group not in excluded],
            [points for group, points in areas if group in excluded],
        )
    except FileNotFoundError:
        raise CohortError(path, ["there is no such file; check the path"]) from None
    except (OSError, ElementTree.ParseError, ValueError) as error:
        raise CohortError(path, [f"cannot be read as ASAP's XML ({error})"]) from error


def _parse_asap(raw: bytes) -> list[tuple[str, list[Any]]]:
    """Return the group and the points of each annotation that encloses an area."""
    parser = ElementTree.XMLParser(target=_AsapBuilder())
    root = ElementTree.fromstring(raw, parser)
    if root.tag != "ASAP_Annotations":
        raise ValueError(f"its root is {root.tag!r}; expected 'ASAP_Annotations'")
    annotations: list[tuple[ElementTree.Element, list[tuple[float, ...]]]] = []
    for element in root.iter():
        if element.tag == "Annotation":
            annotations.append((element, []))
        elif element.tag == "Coordinate":
            try:
                points = annotations[-1][1]
                points.append(_parse_point(element.attrib, len(points)))
            except (IndexError, KeyError) as error:
                raise ValueError("a Coordinate without X, Y or outside an Annotation") from error
    return [
        (
            element.get("PartOfGroup", "").lower(),
            [point[1:] for point in sorted(points, key=itemgetter(0))],
        )
        for element, points in annotations
        if element.get("Type", "Polygon").lower() in _AREA_TYPES
    ]


def _parse_point(attributes: dict[str, str], number: int) -> tuple[float, ...]:
    """Return order, x and y; ASAP writes them with the decimal mark of the user's locale."""
    texts = attributes.get("Order", str(number)), attributes["X"], attributes["Y"]
    return tuple(float(text.replace(",", ".")) for text in texts)


class _AsapBuilder(ElementTree.TreeBuilder):
    """Builds elements; entities are declared within a document type, which is rejected."""

    def doctype(self, *_: object) -> None:
        raise ValueError("it declares a document type or entities, which ASAP never does")


# --- tiles ----------------------------------------------------------------------------------------


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


def compute_covered_share(
    coords: npt.ArrayLike,
    patch_size: float,
    positive: Sequence[Polygon],
    negative: Sequence[Polygon] = (),
) -> Floats:
    """Return (N,) the share of each tile inside positive polygons and outside negative ones.

    Args:
        coords: (N, 2) upper left corners.
        patch_size: side of a tile, in the units of coords.
        positive: polygons, each (vertices, 2).
        negative: likewise; they are subtracted.
    """
    import shapely

    corners = np.asarray(coords, dtype=np.float64).reshape(-1, 2)
    area = _merge_polygons(positive).difference(_merge_polygons(negative))
    shapely.prepare(area)
    x, y = corners.T
    tiles = shapely.box(x, y, x + patch_size, y + patch_size)
    share: Floats = shapely.contains_properly(area, tiles).astype(np.float64)
    cut = np.flatnonzero(shapely.intersects(area, tiles) & (share == 0))
    # The area is first cut into rows of tiles: each has few of its edges, so tiles are cut faster.
    tops, row = np.unique(y[cut], return_inverse=True)
    left, right = (np.full_like(tops, area.bounds[side]) for side in (0, 2))
    rows = shapely.intersection(area, shapely.box(left, tops, right, tops + patch_size))
    share[cut] = shapely.area(shapely.intersection(tiles[cut], rows[row])) / patch_size**2
    return share


def _merge_polygons(polygons: Sequence[Polygon]) -> BaseGeometry:
    import shapely

    outlines = [shapely.Polygon(polygon) for polygon in polygons]
    # linework, the other method, makes holes where an outline winds around a point twice
    return shapely.union_all(shapely.make_valid(outlines, method="structure", keep_collapsed=False))
