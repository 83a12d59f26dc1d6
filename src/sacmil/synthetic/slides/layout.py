"""The layout of a synthetic slide: the label determines only the positions of tumour clusters.

The clusters of a *circumscribed* tumour are adjacent, those of an *infiltrative* one are dispersed
through the stroma. Both have the same number of clusters of the same sizes, and the same numbers
of tumour cells, glands, fat and stroma cells. Each cluster and each gland is in a field of its own,
as large as a tile: otherwise close clusters would share tiles, and one tile would reveal the label.
So counts or single tiles cannot separate the classes; positions can.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sacmil.errors import ConfigError
from sacmil.synthetic.slides.blob import Blob, make_blob
from sacmil.synthetic.slides.mask import fill_polygons

CLASSES = ("circumscribed", "infiltrative")
MPP = 0.5
"""Microns per pixel of level 0."""

FIELD_SIDE = 224
"""Side of the fields in pixels: those of tiles of 224 pixels at 0.5 µm, from the upper left."""
_FIELD_MARGIN = 10.0
"""Fewest pixels between a cluster and the border of its field."""


@dataclass(frozen=True, kw_only=True)
class LayoutSettings:
    """What is on a slide, independent of its label; lengths in level-0 pixels."""

    size: tuple[int, int] = (2688, 2464)
    """Width and height."""
    tissue_radius: float = 1090.0
    cluster_radii: tuple[float, ...] = (86, 83, 81, 79, 77, 75, 73, 71, 69, 67)
    """Radius of each cluster."""
    cell_spacing: float = 23.0
    """Distance between neighbouring tumour cells."""
    glands: int = 6
    gland_radius: float = 66.0
    fat_radius: float = 260.0
    fat_cell: float = 46.0
    """Radius of a fat cell."""
    stroma_cells: int = 3000
    lymphocytes: int = 700

    def __post_init__(self) -> None:
        if 2.1 * self.tissue_radius > min(self.size):
            raise ConfigError(
                f"tissue of radius {self.tissue_radius:g} does not fit on a slide of "
                f"{self.size[0]} x {self.size[1]} pixels; expected a larger size"
            )

    def count_tumor_cells(self, radius: float) -> int:
        """Return the number of tumour cells of a cluster."""
        return round(0.78 * math.pi * radius**2 / (self.cell_spacing**2 * math.sqrt(3) / 2))


@dataclass(frozen=True, eq=False, kw_only=True)
class SlideLayout:
    """Outlines of everything on one slide, in level-0 pixels."""

    settings: LayoutSettings
    label: int
    tissue: Blob
    fat: Blob
    clusters: tuple[Blob, ...]
    glands: tuple[Blob, ...]


def make_layout(
    label: int, random: np.random.Generator, settings: LayoutSettings | None = None
) -> SlideLayout:
    """Make a layout; tissue and fat come first and do not depend on the label.

    Args:
        label: index into CLASSES.
        random: determines every shape and position.
        settings: number and size of everything.
    """
    settings = settings or LayoutSettings()
    tissue = _make_tissue(settings, random)
    fat = _make_fat(tissue, settings, random)
    fields = _find_fields(tissue, fat, settings)
    count = len(settings.cluster_radii)
    if len(fields) < count + settings.glands:
        raise ConfigError(
            f"the tissue has {len(fields)} fields for {count} clusters and {settings.glands} "
            "glands; expected a field for each: use more tissue, or fewer of them"
        )
    rows = (
        _choose_adjacent_fields if CLASSES[label] == "circumscribed" else _choose_dispersed_fields
    )(fields, count, random)
    free = np.delete(fields, rows, axis=0)
    clusters = tuple(
        _make_blob_in_field(field, radius, random, unevenness=0.09)
        for field, radius in zip(fields[rows], settings.cluster_radii, strict=True)
    )
    glands = tuple(
        _make_blob_in_field(field, settings.gland_radius, random, unevenness=0.07)
        for field in random.permutation(free)[: settings.glands]
    )
    return SlideLayout(
        settings=settings, label=label, tissue=tissue, fat=fat, clusters=clusters, glands=glands
    )


def _make_tissue(settings: LayoutSettings, random: np.random.Generator) -> Blob:
    size = np.array(settings.size)
    for _ in range(200):
        blob = make_blob(
            size / 2,
            settings.tissue_radius,
            random,
            unevenness=0.08,
            stretch=random.uniform(1, 1.2),
        )
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
