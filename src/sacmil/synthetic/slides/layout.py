"""Where everything on a drawn slide is: the label decides where tumour nests stand, nothing else.

Nests of a *circumscribed* tumour keep together in one place, those of an *infiltrative* one are
dispersed through the stroma. Either has the same number of nests of the same sizes, of tumour
cells, glands, fat and stroma cells. Each nest and each gland stands in a field of its own, as large
as a tile: otherwise nests that are close would share tiles, and one tile would betray the label.
Who counts, or looks at tiles one by one, cannot tell the classes apart; who sees places can.
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
"""Pixels between a nest and the border of its field, at least."""


@dataclass(frozen=True, kw_only=True)
class LayoutSettings:
    """What is on a slide, whatever its label; lengths in level-0 pixels."""

    size: tuple[int, int] = (2688, 2464)
    """Width and height."""
    tissue_radius: float = 1090.0
    nest_radii: tuple[float, ...] = (86, 83, 81, 79, 77, 75, 73, 71, 69, 67)
    """One for each nest."""
    cell_spacing: float = 23.0
    """From one tumour cell to the next."""
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
        """Tumour cells of a nest."""
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
    """Place everything; tissue and fat first, which know nothing of the label.

    Args:
        label: index into CLASSES.
        random: decides about every shape and place.
        settings: what there is to place.
    """
    settings = settings or LayoutSettings()
    tissue = _make_tissue(settings, random)
    fat = _make_fat(tissue, settings, random)
    fields = _find_fields(tissue, fat, settings)
    count = len(settings.nest_radii)
    if len(fields) < count + settings.glands:
        raise ConfigError(
            f"the tissue has {len(fields)} fields for {count} nests and {settings.glands} glands; "
            "expected more tissue, or fewer of them"
        )
    chosen = (
        _choose_adjacent_fields if CLASSES[label] == "circumscribed" else _choose_dispersed_fields
    )(fields, count, random)
    free = np.delete(fields, chosen, axis=0)
    nests = tuple(
        _make_blob_in_field(field, radius, random, unevenness=0.09)
        for field, radius in zip(fields[chosen], settings.nest_radii, strict=True)
    )
    glands = tuple(
        _make_blob_in_field(field, settings.gland_radius, random, unevenness=0.07)
        for field in random.permutation(free)[: settings.glands]
    )
    return SlideLayout(
        settings=settings, label=label, tissue=tissue, fat=fat, clusters=nests, glands=glands
    )


def _make_tissue(settings: LayoutSettings, random: np.random.Generator) -> Blob:
    room = np.array(settings.size)
    for _ in range(200):
        blob = make_blob(
            room / 2,
            settings.tissue_radius,
            random,
            unevenness=0.08,
            stretch=random.uniform(1, 1.2),
        )
        low, high = blob.outline.min(axis=0), blob.outline.max(axis=0)
        if (high - low < 0.96 * room).all():
            return _move_blob(blob, room / 2 - (low + high) / 2)
    raise ConfigError(f"tissue of radius {settings.tissue_radius:g} does not fit; expected smaller")


def _move_blob(blob: Blob, offset: npt.NDArray[np.float64]) -> Blob:
    return Blob(blob.center + offset, blob.radius, blob.outline + offset)


def _make_fat(tissue: Blob, settings: LayoutSettings, random: np.random.Generator) -> Blob:
    """At the border, as fat lies around an organ."""
    inwards = tissue.center - random.choice(tissue.outline)
    far = float(np.hypot(*inwards))
    spot = tissue.center - inwards * (1 - 0.75 * settings.fat_radius / far)
    return make_blob(spot, settings.fat_radius, random, unevenness=0.12)


def _find_fields(tissue: Blob, fat: Blob, settings: LayoutSettings) -> npt.NDArray[np.float64]:
    """(N, 2), the middles of fields that lie wholly in the tissue and outside the fat."""
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
    """The fields nearest to one of them, in any order."""
    far = np.hypot(*(fields - random.choice(fields)).T)
    far += random.uniform(0, 0.5 * FIELD_SIDE, len(fields))
    return random.permutation(np.argsort(far)[:count])


def _choose_dispersed_fields(
    fields: npt.NDArray[np.float64], count: int, random: np.random.Generator
) -> npt.NDArray[np.intp]:
    """Fields one by one, each among those far from the ones before, in any order."""
    chosen = [int(random.integers(len(fields)))]
    nearest = np.hypot(*(fields - fields[chosen[0]]).T)
    while len(chosen) < count:
        loosened = nearest * random.uniform(0.7, 1, len(fields))
        chosen.append(int(loosened.argmax()))
        nearest = np.minimum(nearest, np.hypot(*(fields - fields[chosen[-1]]).T))
    return random.permutation(np.array(chosen, np.intp))


def _make_blob_in_field(
    field: npt.NDArray[np.float64], radius: float, random: np.random.Generator, *, unevenness: float
) -> Blob:
    """A blob anywhere in its field, but not across its border."""
    for _ in range(100):
        stretch = random.uniform(0.85, 1.18)
        blob = make_blob(field, radius, random, unevenness=unevenness, stretch=stretch)
        low, high = blob.outline.min(axis=0) - field, blob.outline.max(axis=0) - field
        room = FIELD_SIDE / 2 - _FIELD_MARGIN
        least, most = -room - low, room - high
        if (least <= most).all():
            return _move_blob(blob, random.uniform(least, most))
    raise ConfigError(f"a blob of radius {radius:g} does not fit a field; expected a smaller one")
