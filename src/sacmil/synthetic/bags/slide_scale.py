"""Tasks at the scale of a slide: what decides is how two lesions far apart stand to each other.

Every lesion of a slide has exactly the same number of tiles, and lies inside the tissue. So neither
the cells of a slide nor the surroundings of a tile say anything about the class.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.special import logsumexp

from sacmil.synthetic.bags.statistics import average_neighborhood
from sacmil.synthetic.bags.tasks import (
    TASK_LIMITS,
    CellKinds,
    Floats,
    Limits,
    Positions,
    Random,
    Span,
    SyntheticTask,
    draw_count,
    scatter_cells,
)

Indices = NDArray[np.int64]
Pairs = NDArray[np.bool_]
"""(centers, centers), whether a first and a second lesion may have these centers."""

TRIES = 200
"""First centers that are tried before a distance counts as impossible on a slide."""
ORACLE_CENTERS = 400
"""Most likely centers of a lesion that the oracle pairs with each other."""


@dataclass(frozen=True, kw_only=True)
class SlideScaleTask(SyntheticTask):
    """Two lesions of equal size, and single tumour cells anywhere else.

    Distances are those of the centers, as a share of the slide's size: of the square root of its
    number of tiles.
    """

    limits: ClassVar[Mapping[str, Limits]] = TASK_LIMITS | {
        "lesion_share": Limits(
            0, 0.1, "lowest and highest share, above 0 and up to 0.1", excluded=(0,)
        ),
        "distance": Limits(0, inf, "lowest and highest distance, 0 or more"),
        "distances": Limits(0, inf, "lowest and highest distance for each of two classes"),
        "stray": Limits(0, 3, "0 to 3"),
    }
    lesion_share: Span = (0.03, 0.03)
    """Tiles of one lesion among all."""
    stray: float = 0.5
    """Single tumour cells elsewhere, as a share of those in lesions."""

    @property
    def tumor_kinds(self) -> tuple[int, ...]:
        """Indices of the kinds that are tumour."""
        return tuple(range(self.zones, len(self.kinds)))

    @abstractmethod
    def place_lesions(
        self, positions: Positions, tiles: int, label: int, random: Random
    ) -> list[Indices]:
        """Return the tiles of the lesions, for each kind of tumour."""

    @abstractmethod
    def count_lesions(self) -> int:
        """Return the most lesions of one kind; as many cells of each kind are on every slide."""

    @abstractmethod
    def compare_classes(self, apart: Floats, evidence: Floats) -> Floats:
        """Return how likely each class is.

        Args:
            apart: (2, centers, centers), x and y from the first center to the second, as a share
                of the slide's size.
            evidence: (kinds of tumour, centers), the log likelihood of a lesion there.
        """

    def draw_other_counts(self, n: int, label: int, random: Random) -> list[int]:
        """Draw counts that do not depend on the label; every kind of tumour has as many cells."""
        tiles = draw_count(n, self.lesion_share, random)
        cells = self.count_lesions() * tiles
        return [cells + round(self.stray * cells)] * len(self.other_kinds)

    def place_other_cells(
        self, kinds: CellKinds, positions: Positions, counts: list[int], label: int, random: Random
    ) -> None:
        """Place the lesions, then single cells."""
        lesions = self.place_lesions(positions, self._count_tiles(counts[0]), label, random)
        for kind, inside in enumerate(lesions, start=self.zones):
            kinds[inside] = kind
        for kind, (count, inside) in enumerate(zip(counts, lesions, strict=True), start=self.zones):
            scatter_cells(kinds, count - len(inside), kind, random)

    def score_classes(self, positions: Positions, probabilities: Floats) -> Floats:
        """Score by the likelihood of two lesions at all pairs of likely centers."""
        size = np.sqrt(len(positions))
        tiles = self._count_tiles(round(float(probabilities[:, self.zones].sum())))
        found = [self._weigh_centers(positions, p, tiles) for p in probabilities.T[self.zones :]]
        evidence = np.array(found)
        likely = np.argsort(-evidence.max(0), kind="stable")[:ORACLE_CENTERS]
        centers = positions[likely].T
        apart = (centers[:, None, :] - centers[:, :, None]) / size
        return self.compare_classes(apart, evidence[:, likely])

    def _count_tiles(self, cells: int) -> int:
        """Return the tiles of a lesion from all cells of a kind."""
        return max(1, round(cells / (1 + self.stray) / self.count_lesions()))

    def _weigh_centers(self, positions: Positions, tumour: Floats, tiles: int) -> Floats:
        """Return (N,) the log likelihood of a lesion about each position."""
        tumour = np.clip(tumour, 1e-6, 1 - 1e-6)
        common = np.clip(tumour.mean(), 1e-6, 0.5)
        gain = np.log(tumour / common)
        mean, _ = average_neighborhood(positions, gain, np.sqrt(tiles / np.pi) / 1.5)
        return mean * tiles


@dataclass(frozen=True, kw_only=True)
class NearOrFar(SlideScaleTask):
    """Task 5: are the two lesions near each other or far apart?"""

    name: ClassVar[str] = "near_or_far"
    classes: tuple[str, ...] = ("near", "far")
    distances: tuple[Span, Span] = ((0.28, 0.40), (0.64, 0.96))
    """Between the lesions, for each class."""

    def count_lesions(self) -> int:
        """Both are of the one kind."""
        return 2

    def place_lesions(
        self, positions: Positions, tiles: int, label: int, random: Random
    ) -> list[Indices]:
        """Place two lesions; the first could have its partner near or far."""
        return [np.concatenate(draw_lesions(positions, tiles, self.distances, label, random))]

    def compare_classes(self, apart: Floats, evidence: Floats) -> Floats:
        """Compare pairs at each of the distances."""
        distance, both = np.hypot(*apart), evidence[0][:, None] + evidence[0]
        return np.array([sum_over_pairs(both, is_within(distance, s)) for s in self.distances])


@dataclass(frozen=True, kw_only=True)
class SameOrDifferent(SlideScaleTask):
    """Task 6: are two lesions far apart of the same kind? Of both kinds there are as many cells."""

    name: ClassVar[str] = "same_or_different"
    other_kinds: ClassVar[tuple[str, ...]] = ("tumour a", "tumour b")
    classes: tuple[str, ...] = ("same", "different")
    distance: Span = (0.64, 0.96)
    """Between the lesions."""

    def count_lesions(self) -> int:
        """Both may be of one kind."""
        return 2

    def place_lesions(
        self, positions: Positions, tiles: int, label: int, random: Random
    ) -> list[Indices]:
        """Place two lesions, and give them their kinds; cells that are left stand alone."""
        pair = draw_lesions(positions, tiles, [self.distance], 0, random)
        kind = int(random.integers(2))
        own = [pair[0], pair[1]] if not label else [pair[0]]
        other = [] if not label else [pair[1]]
        nothing = np.empty(0, dtype=np.int64)
        lesions = [np.concatenate([nothing, *own]), np.concatenate([nothing, *other])]
        return lesions[::-1] if kind else lesions

    def compare_classes(self, apart: Floats, evidence: Floats) -> Floats:
        """Compare pairs of one kind and of two."""
        allowed = is_within(np.hypot(*apart), self.distance)
        a, b = evidence
        same = [sum_over_pairs(own[:, None] + own, allowed) for own in (a, b)]
        return np.array([logsumexp(same) - np.log(2), sum_over_pairs(a[:, None] + b, allowed)])


@dataclass(frozen=True, kw_only=True)
class WhichSide(SlideScaleTask):
    """Task 7: on which side of one lesion is the other?"""

    name: ClassVar[str] = "which_side"
    other_kinds: ClassVar[tuple[str, ...]] = ("tumour a", "tumour b")
    classes: tuple[str, ...] = ("a left of b", "b left of a")
    distance: Span = (0.50, 0.96)
    """Between the lesions, more across than down."""

    def count_lesions(self) -> int:
        """There is one of each kind."""
        return 1

    def place_lesions(
        self, positions: Positions, tiles: int, label: int, random: Random
    ) -> list[Indices]:
        """Place two lesions; the label decides which is which."""
        first, second = draw_lesions(positions, tiles, [self.distance], 0, random, is_sideways=True)
        is_first_left = positions[first, 0].mean() <= positions[second, 0].mean()
        return [first, second] if is_first_left == (not label) else [second, first]

    def compare_classes(self, apart: Floats, evidence: Floats) -> Floats:
        """Compare pairs with the second lesion on the right and on the left."""
        across, down = apart
        allowed = is_within(np.hypot(*apart), self.distance) & (abs(across) >= abs(down))
        both = evidence[0][:, None] + evidence[1]
        return np.array([sum_over_pairs(both, allowed & (s * across > 0)) for s in (1, -1)])


def is_within(distance: Floats, span: Span) -> Pairs:
    """Whether distances are within a span; some more is allowed, as centers are estimated."""
    return (distance >= 0.9 * span[0]) & (distance <= 1.1 * span[1])


def sum_over_pairs(evidence: Floats, allowed: Pairs) -> float:
    """Return the log of the mean likelihood over pairs of centers that are allowed."""
    if not allowed.any():
        return -1e6
    return float(logsumexp(evidence[allowed]) - np.log(allowed.sum()))


def draw_lesions(
    positions: Positions,
    tiles: int,
    spans: list[Span] | tuple[Span, ...],
    label: int,
    random: Random,
    *,
    is_sideways: bool = False,
) -> tuple[Indices, Indices]:
    """Draw two lesions, discs of exactly ``tiles`` tiles each.

    The first has possible partners at every distance of ``spans``: where it is says nothing about
    the class. If a slide has no such place, the pair is used whose distance is nearest.

    Args:
        positions: of the tissue.
        tiles: of a lesion.
        spans: distances for each class, as a share of the slide's size.
        label: the class of the pair.
        random: draws the centers.
        is_sideways: whether the lesions must be further apart across than down.
    """
    inside = _find_places_inside(positions, tiles)
    places, size = positions[inside].astype(float), np.sqrt(len(positions))

    def list_partners(first: int, span: Span) -> Indices:
        apart = np.abs(places - places[first])
        distance = np.hypot(*apart.T)
        allowed = (distance >= span[0] * size) & (distance <= span[1] * size)
        return np.flatnonzero(allowed & (apart[:, 0] >= apart[:, 1] if is_sideways else True))

    for first in random.permutation(len(inside))[:TRIES]:
        partners = [list_partners(int(first), span) for span in spans]
        if all(map(len, partners)):
            second = int(random.choice(partners[label]))
            break
    else:
        first = int(random.integers(len(inside)))
        distance = np.hypot(*(places - places[first]).T) / size
        second = int(np.argmin(abs(distance - np.mean(spans[label]))))
    return _grow_lesions(positions, tiles, positions[inside[first]], positions[inside[second]])


def _find_places_inside(positions: Positions, tiles: int) -> Indices:
    """Return positions with tissue as far around them as a lesion reaches, or the best ones."""
    distance, _ = cKDTree(positions).query(positions, k=[min(tiles, len(positions))])
    reach = np.sqrt(tiles / np.pi) + 1
    inside = np.flatnonzero(distance[:, 0] <= reach)
    if len(inside) < 2:
        inside = np.argsort(distance[:, 0], kind="stable")[: max(2, len(positions) // 4)]
    return inside


def _grow_lesions(
    positions: Positions, tiles: int, first: Positions, second: Positions
) -> tuple[Indices, Indices]:
    """Return the tiles nearest to each of two centers; none is in both."""
    to_first, to_second = (np.hypot(*(positions - center).T) for center in (first, second))
    one = np.argsort(to_first, kind="stable")[:tiles]
    to_second[one] = inf
    return one, np.argsort(to_second, kind="stable")[:tiles]
