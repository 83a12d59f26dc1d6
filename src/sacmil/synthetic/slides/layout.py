"""The layout of a synthetic slide: the label determines only the positions of tumour clusters.

The clusters of a *circumscribed* tumour are adjacent, those of an *infiltrative* one are dispersed
through the stroma. How many clusters, glands and cells a slide has, and how large, is drawn from
one distribution for both. Each cluster and each gland is in a field of its own, as large as a tile:
otherwise close clusters would share tiles, and one tile would reveal the label. So counts or single
tiles cannot separate the classes; positions can.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sacmil.errors import ConfigError, require_extra

Polygon = npt.NDArray[np.float64]
"""(vertices, 2): x, y in level-0 pixels; the last vertex is joined to the first."""

CLASSES = ("circumscribed", "infiltrative")
MPP = 0.5
"""Microns per pixel of level 0."""

FIELD_SIDE = 224
"""Side of the fields in pixels: those of tiles of 224 pixels at 0.5 µm, from the upper left."""
_VERTICES = 96
"""Of an outline."""
_FIELD_MARGIN = 10.0
"""Fewest pixels between a cluster and the border of its field."""


@dataclass(frozen=True, eq=False)
class Blob:
    """A shape around its center."""

    center: npt.NDArray[np.float64]
    """(2,), x and y."""
    radius: float
    """Of the disc of the same area."""
    outline: Polygon

    def compute_window(self, margin: float, size: tuple[int, int]) -> tuple[slice, slice]:
        """Return the rows and columns of an image that contain the blob and a margin."""
        low = np.floor(self.outline.min(axis=0) - margin).astype(int)
        high = np.ceil(self.outline.max(axis=0) + margin).astype(int) + 1
        x, y = (
            slice(max(0, first), max(0, min(last, most)))
            for first, last, most in zip(low.tolist(), high.tolist(), size, strict=True)
        )
        return y, x


def make_blob(
    center: npt.ArrayLike,
    radius: float,
    random: np.random.Generator,
    *,
    unevenness: float = 0.12,
    stretch: float = 1.0,
) -> Blob:
    """Make a blob with lobes of random size and the area of a disc.

    Args:
        center: x and y.
        radius: of that disc.
        random: of the lobes.
        unevenness: deviation of the border from an ellipse, as a share of the radius.
        stretch: ratio of length to width.
    """
    angle = np.linspace(0, 2 * math.pi, _VERTICES, endpoint=False)
    waves = np.arange(2, 8)
    heights = unevenness * random.normal(size=len(waves)) / np.sqrt(waves)
    turns = random.uniform(0, 2 * math.pi, len(waves))
    distance = 1 + (heights[:, None] * np.cos(waves[:, None] * angle + turns[:, None])).sum(0)
    points = np.maximum(distance, 0.4)[:, None] * np.stack([np.cos(angle), np.sin(angle)], 1)
    points *= [math.sqrt(stretch), 1 / math.sqrt(stretch)]
    scale = radius * math.sqrt(math.pi / polygon_area(points))
    origin = np.asarray(center, np.float64)
    return Blob(origin, radius, origin + scale * points)


def polygon_area(polygon: Polygon) -> float:
    """Return the enclosed area, in squares of the polygon's unit.

    >>> polygon_area(np.array([[0.0, 0.0], [2.0, 0.0], [2.0, 3.0], [0.0, 3.0]]))
    6.0
    """
    x, y = polygon.T
    return float(abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2)


def fill_polygons(
    polygons: Iterable[Polygon],
    size: tuple[int, int],
    step: float = 1.0,
    origin: tuple[float, float] = (0.0, 0.0),
) -> npt.NDArray[np.bool_]:
    """Return a mask of the pixels inside any of the polygons.

    Args:
        polygons: in level-0 pixels.
        size: width and height of the window, in level-0 pixels.
        step: level-0 pixels per pixel.
        origin: x and y of the window's corner.
    """
    with require_extra("slides", "drawing slides"):
        from PIL import Image, ImageDraw
    mask = Image.new("1", (max(1, round(size[0] / step)), max(1, round(size[1] / step))))
    draw = ImageDraw.Draw(mask)
    for polygon in polygons:
        points = (polygon - origin) / step - 0.5  # a pixel's coordinates are those of its center
        draw.polygon([(x, y) for x, y in points.tolist()], fill=1)
    return np.array(mask, dtype=bool)


@dataclass(frozen=True, kw_only=True)
class LayoutSettings:
    """What is on slides, independent of their labels; lengths in level-0 pixels.

    A pair is a range, ends included: each slide draws its own value from it.
    """

    size: tuple[int, int] = (2072, 1960)
    """Width and height."""
    tissue_radius: float = 850.0
    clusters: tuple[int, int] = (6, 9)
    cluster_radius: tuple[float, float] = (66.0, 86.0)
    cell_spacing: float = 23.0
    """Distance between neighbouring tumour cells."""
    glands: tuple[int, int] = (1, 4)
    gland_radius: float = 66.0
    fat_radius: float = 190.0
    fat_cell: float = 46.0
    """Radius of a fat cell."""
    stroma_cells: tuple[int, int] = (1300, 2300)
    lymphocytes: tuple[int, int] = (200, 650)

    def __post_init__(self) -> None:
        if 2.1 * self.tissue_radius > min(self.size):
            raise ConfigError(
                f"tissue of radius {self.tissue_radius:g} does not fit on a slide of "
                f"{self.size[0]} x {self.size[1]} pixels; expected a larger size"
            )
        ranges = {
            "clusters": self.clusters,
            "cluster_radius": self.cluster_radius,
            "glands": self.glands,
            "stroma_cells": self.stroma_cells,
            "lymphocytes": self.lymphocytes,
        }
        for name, (least, most) in ranges.items():
            if not 0 <= least <= most or (name.startswith("cluster") and least == 0):
                raise ConfigError(
                    f"{name} is from {least:g} to {most:g}; expected the smaller number first"
                    + (", above 0" if name.startswith("cluster") else "")
                )

    def count_tumor_cells(self, radius: float) -> int:
        """Return the number of tumour cells of a cluster."""
        return round(0.78 * math.pi * radius**2 / (self.cell_spacing**2 * math.sqrt(3) / 2))


@dataclass(frozen=True, kw_only=True)
class SlideContents:
    """How much of everything one slide has."""

    cluster_radii: tuple[float, ...]
    """Radius of each cluster."""
    glands: int
    stroma_cells: int
    lymphocytes: int

    @classmethod
    def draw(cls, settings: LayoutSettings, random: np.random.Generator) -> SlideContents:
        """Draw the contents of a slide, of whatever label."""

        def draw_count(bounds: tuple[int, int]) -> int:
            return int(random.integers(*bounds, endpoint=True))

        clusters = draw_count(settings.clusters)
        return cls(
            cluster_radii=tuple(random.uniform(*settings.cluster_radius, clusters).tolist()),
            glands=draw_count(settings.glands),
            stroma_cells=draw_count(settings.stroma_cells),
            lymphocytes=draw_count(settings.lymphocytes),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class SlideLayout:
    """Outlines of everything on one slide, in level-0 pixels."""

    settings: LayoutSettings
    contents: SlideContents
    label: int
    tissue: Blob
    fat: Blob
    clusters: tuple[Blob, ...]
    glands: tuple[Blob, ...]


def make_layout(
    label: int, random: np.random.Generator, settings: LayoutSettings | None = None
) -> SlideLayout:
    """Make a layout; contents, tissue and fat come first and do not depend on the label.

    Args:
        label: index into CLASSES.
        random: determines every shape and position.
        settings: ranges of the number and size of everything.
    """
    settings = settings or LayoutSettings()
    contents = SlideContents.draw(settings, random)
    tissue = _make_tissue(settings, random)
    fat = _make_fat(tissue, settings, random)
    fields = _find_fields(tissue, fat, settings)
    count = len(contents.cluster_radii)
    if len(fields) < count + contents.glands:
        raise ConfigError(
            f"the tissue has {len(fields)} fields for {count} clusters and {contents.glands} "
            "glands; expected a field for each: use more tissue, or fewer of them"
        )
    rows = (
        _choose_adjacent_fields if CLASSES[label] == "circumscribed" else _choose_dispersed_fields
    )(fields, count, random)
    free = np.delete(fields, rows, axis=0)
    clusters = tuple(
        _make_blob_in_field(field, radius, random, unevenness=0.09)
        for field, radius in zip(fields[rows], contents.cluster_radii, strict=True)
    )
    glands = tuple(
        _make_blob_in_field(field, settings.gland_radius, random, unevenness=0.07)
        for field in random.permutation(free)[: contents.glands]
    )
    return SlideLayout(
        settings=settings,
        contents=contents,
        label=label,
        tissue=tissue,
        fat=fat,
        clusters=clusters,
        glands=glands,
    )


def _make_tissue(settings: LayoutSettings, random: np.random.Generator) -> Blob:
    size = np.array(settings.size)
    for _ in range(200):
        stretch = random.uniform(1, 1.2)
        blob = make_blob(size / 2, settings.tissue_radius, random, unevenness=0.08, stretch=stretch)
        low, high = blob.outline.min(axis=0), blob.outline.max(axis=0)
        if (high - low < 0.96 * size).all():
            return _move_blob(blob, size / 2 - (low + high) / 2)
    raise ConfigError(f"tissue of radius {settings.tissue_radius:g} does not fit; expected smaller")


def _move_blob(blob: Blob, offset: npt.NDArray[np.float64]) -> Blob:
    return Blob(blob.center + offset, blob.radius, blob.outline + offset)


def _make_fat(tissue: Blob, settings: LayoutSettings, random: np.random.Generator) -> Blob:
    """Make fat at the border, as around an organ."""
    inwards = tissue.center - random.choice(tissue.outline)
    distance = float(np.hypot(*inwards))
    center = tissue.center - inwards * (1 - 0.75 * settings.fat_radius / distance)
    return make_blob(center, settings.fat_radius, random, unevenness=0.12)


def _find_fields(tissue: Blob, fat: Blob, settings: LayoutSettings) -> npt.NDArray[np.float64]:
    """Return (N, 2) the centers of fields completely inside the tissue and outside the fat."""
    step = 8
    inside = fill_polygons([tissue.outline], settings.size, step)
    inside &= ~fill_polygons([fat.outline], settings.size, step)
    side = FIELD_SIDE // step
    rows, columns = inside.shape[0] // side, inside.shape[1] // side
    blocks = inside[: rows * side, : columns * side].reshape(rows, side, columns, side)
    row, column = np.nonzero(blocks.all(axis=(1, 3)))
    return np.asarray((np.stack([column, row], axis=1) + 0.5) * FIELD_SIDE, np.float64)


def _choose_adjacent_fields(
    fields: npt.NDArray[np.float64], count: int, random: np.random.Generator
) -> npt.NDArray[np.intp]:
    """Return the fields nearest to a random one, in random order."""
    distance = np.hypot(*(fields - random.choice(fields)).T)
    distance += random.uniform(0, 0.5 * FIELD_SIDE, len(fields))
    return random.permutation(np.argsort(distance)[:count])


def _choose_dispersed_fields(
    fields: npt.NDArray[np.float64], count: int, random: np.random.Generator
) -> npt.NDArray[np.intp]:
    """Choose fields one by one, each far from the previous ones; return them in random order."""
    rows = [int(random.integers(len(fields)))]
    nearest = np.hypot(*(fields - fields[rows[0]]).T)
    while len(rows) < count:
        jittered = nearest * random.uniform(0.7, 1, len(fields))
        rows.append(int(jittered.argmax()))
        nearest = np.minimum(nearest, np.hypot(*(fields - fields[rows[-1]]).T))
    return random.permutation(np.array(rows, np.intp))


def _make_blob_in_field(
    field: npt.NDArray[np.float64], radius: float, random: np.random.Generator, *, unevenness: float
) -> Blob:
    """Make a blob at a random position inside its field."""
    for _ in range(100):
        stretch = random.uniform(0.85, 1.18)
        blob = make_blob(field, radius, random, unevenness=unevenness, stretch=stretch)
        low, high = blob.outline.min(axis=0) - field, blob.outline.max(axis=0) - field
        half_side = FIELD_SIDE / 2 - _FIELD_MARGIN
        least, most = -half_side - low, half_side - high
        if (least <= most).all():
            return _move_blob(blob, random.uniform(least, most))
    raise ConfigError(f"a blob of radius {radius:g} does not fit a field; expected a smaller one")
