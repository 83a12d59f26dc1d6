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

from sacmil.cohorts.drawn.blob import Blob, make_blob
from sacmil.cohorts.drawn.mask import filled
from sacmil.errors import ConfigError

CLASSES = ("circumscribed", "infiltrative")
MPP = 0.5
"""Microns per pixel of level 0."""

FIELD = 224
"""Side of the fields in pixels: those of tiles of 224 pixels at 0.5 µm, from the upper left."""
_MARGIN = 10.0
"""Pixels between a nest and the border of its field, at least."""


@dataclass(frozen=True, kw_only=True)
class Amounts:
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

    def cells(self, radius: float) -> int:
        """Tumour cells of a nest."""
        return round(0.78 * math.pi * radius**2 / (self.cell_spacing**2 * math.sqrt(3) / 2))


@dataclass(frozen=True, eq=False, kw_only=True)
class Layout:
    """Outlines of everything on one slide, in level-0 pixels."""

    amounts: Amounts
    label: int
    tissue: Blob
    fat: Blob
    nests: tuple[Blob, ...]
    glands: tuple[Blob, ...]


def make_layout(label: int, random: np.random.Generator, amounts: Amounts | None = None) -> Layout:
    """Place everything; tissue and fat first, which know nothing of the label.

    Args:
        label: index into CLASSES.
        random: decides about every shape and place.
        amounts: what there is to place.
    """
    amounts = amounts or Amounts()
    tissue = _tissue(amounts, random)
    fat = _fat(tissue, amounts, random)
    fields = _fields(tissue, fat, amounts)
    count = len(amounts.nest_radii)
    if len(fields) < count + amounts.glands:
        raise ConfigError(
            f"the tissue has {len(fields)} fields for {count} nests and {amounts.glands} glands; "
            "expected more tissue, or fewer of them"
        )
    chosen = (_gathered if CLASSES[label] == "circumscribed" else _dispersed)(fields, count, random)
    free = np.delete(fields, chosen, axis=0)
    nests = tuple(
        _in_field(field, radius, random, unevenness=0.09)
        for field, radius in zip(fields[chosen], amounts.nest_radii, strict=True)
    )
    glands = tuple(
        _in_field(field, amounts.gland_radius, random, unevenness=0.07)
        for field in random.permutation(free)[: amounts.glands]
    )
    return Layout(amounts=amounts, label=label, tissue=tissue, fat=fat, nests=nests, glands=glands)


def _tissue(amounts: Amounts, random: np.random.Generator) -> Blob:
    room = np.array(amounts.size)
    for _ in range(200):
        blob = make_blob(
            room / 2, amounts.tissue_radius, random, unevenness=0.08, stretch=random.uniform(1, 1.2)
        )
        low, high = blob.outline.min(axis=0), blob.outline.max(axis=0)
        if (high - low < 0.96 * room).all():
            return _moved(blob, room / 2 - (low + high) / 2)
    raise ConfigError(f"tissue of radius {amounts.tissue_radius:g} does not fit; expected smaller")


def _moved(blob: Blob, by: npt.NDArray[np.float64]) -> Blob:
    return Blob(blob.middle + by, blob.radius, blob.outline + by)


def _fat(tissue: Blob, amounts: Amounts, random: np.random.Generator) -> Blob:
    """At the border, as fat lies around an organ."""
    inwards = tissue.middle - random.choice(tissue.outline)
    far = float(np.hypot(*inwards))
    spot = tissue.middle - inwards * (1 - 0.75 * amounts.fat_radius / far)
    return make_blob(spot, amounts.fat_radius, random, unevenness=0.12)


def _fields(tissue: Blob, fat: Blob, amounts: Amounts) -> npt.NDArray[np.float64]:
    """(N, 2), the middles of fields that lie wholly in the tissue and outside the fat."""
    step = 8
    inside = filled([tissue.outline], amounts.size, step)
    inside &= ~filled([fat.outline], amounts.size, step)
    side = FIELD // step
    rows, columns = inside.shape[0] // side, inside.shape[1] // side
    blocks = inside[: rows * side, : columns * side].reshape(rows, side, columns, side)
    row, column = np.nonzero(blocks.all(axis=(1, 3)))
    return np.asarray((np.stack([column, row], axis=1) + 0.5) * FIELD, np.float64)


def _gathered(
    fields: npt.NDArray[np.float64], count: int, random: np.random.Generator
) -> npt.NDArray[np.intp]:
    """The fields nearest to one of them, in any order."""
    far = np.hypot(*(fields - random.choice(fields)).T)
    far += random.uniform(0, 0.5 * FIELD, len(fields))
    return random.permutation(np.argsort(far)[:count])


def _dispersed(
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


def _in_field(
    field: npt.NDArray[np.float64], radius: float, random: np.random.Generator, *, unevenness: float
) -> Blob:
    """A blob anywhere in its field, but not across its border."""
    for _ in range(100):
        stretch = random.uniform(0.85, 1.18)
        blob = make_blob(field, radius, random, unevenness=unevenness, stretch=stretch)
        low, high = blob.outline.min(axis=0) - field, blob.outline.max(axis=0) - field
        room = FIELD / 2 - _MARGIN
        least, most = -room - low, room - high
        if (least <= most).all():
            return _moved(blob, random.uniform(least, most))
    raise ConfigError(f"a blob of radius {radius:g} does not fit a field; expected a smaller one")
