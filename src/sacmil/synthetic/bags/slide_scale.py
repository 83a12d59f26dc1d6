"""Tasks at the scale of a slide: what decides is how two lesions far apart stand to each other.

Both lesions of a slide have exactly the same number of tiles, and lie inside the tissue. A single
lesion and its surroundings say nothing about the class.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.signal import fftconvolve
from scipy.special import logsumexp

from sacmil.errors import ConfigError
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
    make_two_class_scores,
    scatter_cells,
)

Indices = NDArray[np.int64]
Pairs = NDArray[np.bool_]
"""(centers, centers), whether a first and a second lesion may have these centers."""

MAX_CENTERS = 256
"""Random positions inside the tissue among which the centers of lesions are chosen."""
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
        "distances": Limits(0, inf, "lowest and highest distance, 0 or more, for each class"),
        "stray": Limits(0, 3, "0 to 3"),
    }
    zone_size: ClassVar[float] = 0.1
    """Largest width of a zone of healthy tissue, as a share of the slide's size. In wider zones,
    the tissue around two lesions would be more alike if they are near."""
    max_share: ClassVar[float] = 0.7
    """Largest share of a slide for tumour, so that it fits on a slide of twenty cells."""
    lesion_share: Span = (0.03, 0.03)
    """Tiles of one lesion among all."""
    stray: float = 0.5
    """Single tumour cells elsewhere, as a share of those in lesions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        largest, nearest = self.lesion_share[1], min(low for low, _ in self.list_spans())
        share = len(self.other_kinds) * self.count_lesions() * largest * (1 + self.stray)
        if round(share, 9) > self.max_share:
            raise ConfigError(
                f"lesions of {largest:g} of a slide with stray {self.stray:g} need {share:g} of "
                f"it; expected {self.max_share:g} or less: a smaller lesion_share or stray"
            )
        if nearest < (width := 2 * np.sqrt(largest / np.pi)):
            raise ConfigError(
                f"lesions of {largest:g} of a slide overlap at a distance of {nearest:g}; "
                f"expected a distance of {width:.3f} or more, or a smaller lesion_share"
            )

    @property
    def tumor_kinds(self) -> tuple[int, ...]:
        """Indices of the kinds that are tumour."""
        return tuple(range(self.zones, len(self.kinds)))

    @abstractmethod
    def list_spans(self) -> tuple[Span, ...]:
        """Return all spans of distances between the lesions."""

    @abstractmethod
    def place_lesions(
        self, positions: Positions, tiles: int, label: int, random: Random
    ) -> list[Indices]:
        """Return the tiles of the lesions, for each kind of tumour."""

    @abstractmethod
    def count_lesions(self) -> int:
        """Return the most lesions of one kind; as many cells of each kind are on every slide."""

    @abstractmethod
    def compare_classes(self, apart: Floats, evidence: Floats) -> tuple[float, float]:
        """Return the log likelihood of the first class and of the second.

        Args:
            apart: (2, centers, centers), x and y from the first center to the second, as a share
                of the slide's size.
            evidence: (kinds of tumour, centers), the log likelihood of a lesion there.
        """

    def choose_zone_width(self, n: int) -> float:
        """Return the width of a zone of healthy tissue in patches."""
        return min(super().choose_zone_width(n), max(1.0, self.zone_size * float(np.sqrt(n))))

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
        first, second = self.compare_classes(apart, evidence[:, likely])
        return make_two_class_scores(second - first)

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

    def list_spans(self) -> tuple[Span, ...]:
        """There is a span for each class."""
        return self.distances

    def place_lesions(
        self, positions: Positions, tiles: int, label: int, random: Random
    ) -> list[Indices]:
        """Place two lesions at neighboring corners of a rectangle.

        Its short sides are near and its long sides far. Each corner has a lesion on every second
        slide of either class: where a single lesion is says nothing about the class. If the
        tissue has no place for such a rectangle, any two lesions at the distance are used.
        """
        centers = draw_centers(positions, tiles, random)
        distance = measure_distances(centers, np.sqrt(len(positions)))
        near, far = (measure_misfit(distance, span) == 0 for span in self.distances)
        corners = draw_rectangle(near, far, random)
        if corners is None:
            pair = draw_pair(measure_misfit(distance, self.distances[label]), random)
        else:
            turn = 2 * int(random.integers(2)) + label
            pair = np.roll(corners, -turn)[:2]
        return [np.concatenate(grow_lesions(positions, tiles, centers[pair]))]

    def compare_classes(self, apart: Floats, evidence: Floats) -> tuple[float, float]:
        """Compare pairs at each of the distances."""
        distance, both = np.hypot(*apart), evidence[0][:, None] + evidence[0]
        near, far = (sum_over_pairs(both, is_within(distance, s)) for s in self.distances)
        return near, far


@dataclass(frozen=True, kw_only=True)
class SameOrDifferent(SlideScaleTask):
    """Task 6: are two lesions far apart of the same kind?

    There are as many cells of either kind on every slide. Where the lesions are does not matter:
    a model must find both, and compare them.
    """

    name: ClassVar[str] = "same_or_different"
    other_kinds: ClassVar[tuple[str, ...]] = ("tumour a", "tumour b")
    classes: tuple[str, ...] = ("same", "different")
    distance: Span = (0.64, 0.96)
    """Between the lesions."""

    def count_lesions(self) -> int:
        """Both may be of one kind."""
        return 2

    def list_spans(self) -> tuple[Span, ...]:
        """The distance does not depend on the class."""
        return (self.distance,)

    def place_lesions(
        self, positions: Positions, tiles: int, label: int, random: Random
    ) -> list[Indices]:
        """Place two lesions of one kind or of two; a kind without lesion has single cells only."""
        first, second = draw_lesions(positions, tiles, self.distance, random)
        lesions = [first, second] if label else [np.concatenate([first, second]), first[:0]]
        return lesions[::-1] if random.integers(2) else lesions

    def compare_classes(self, apart: Floats, evidence: Floats) -> tuple[float, float]:
        """Compare pairs of one kind and of two."""
        allowed = is_within(np.hypot(*apart), self.distance)
        a, b = evidence
        same = [sum_over_pairs(own[:, None] + own, allowed) for own in (a, b)]
        return float(logsumexp(same) - np.log(2)), sum_over_pairs(a[:, None] + b, allowed)


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

    def list_spans(self) -> tuple[Span, ...]:
        """The distance does not depend on the class."""
        return (self.distance,)

    def place_lesions(
        self, positions: Positions, tiles: int, label: int, random: Random
    ) -> list[Indices]:
        """Place two lesions; the label decides which is which."""
        pair = draw_lesions(positions, tiles, self.distance, random, is_sideways=True)
        left, right = sorted(pair, key=lambda lesion: float(positions[lesion, 0].mean()))
        return [right, left] if label else [left, right]

    def compare_classes(self, apart: Floats, evidence: Floats) -> tuple[float, float]:
        """Compare pairs with the second lesion on the right and on the left."""
        across, down = apart
        allowed = is_within(np.hypot(*apart), self.distance) & (abs(across) >= abs(down))
        both = evidence[0][:, None] + evidence[1]
        right, left = (sum_over_pairs(both, allowed & (s * across > 0)) for s in (1, -1))
        return right, left


def is_within(distance: Floats, span: Span) -> Pairs:
    """Whether distances are within a span; some more is allowed, as centers are estimated."""
    return (distance >= 0.9 * span[0]) & (distance <= 1.1 * span[1])


def sum_over_pairs(evidence: Floats, allowed: Pairs) -> float:
    """Return the log of the mean likelihood over pairs of centers that are allowed."""
    if not allowed.any():
        return -1e6
    return float(logsumexp(evidence[allowed]) - np.log(allowed.sum()))


def draw_lesions(
    positions: Positions, tiles: int, span: Span, random: Random, *, is_sideways: bool = False
) -> tuple[Indices, Indices]:
    """Draw two lesions, discs of exactly ``tiles`` tiles each.

    If no two places on the slide are at such a distance, those are used that miss it by least.

    Args:
        positions: of the tissue.
        tiles: of a lesion.
        span: distance between the centers, as a share of the slide's size.
        random: draws the centers.
        is_sideways: whether the lesions must be further apart across than down.
    """
    centers = draw_centers(positions, tiles, random)
    misfit = measure_misfit(measure_distances(centers, np.sqrt(len(positions))), span)
    if is_sideways:
        across, down = abs(centers[:, None] - centers).transpose(2, 0, 1)
        misfit[across < down] += 10
    return grow_lesions(positions, tiles, centers[draw_pair(misfit, random)])


def draw_centers(positions: Positions, tiles: int, random: Random) -> Positions:
    """Draw positions with tissue as far around them as a lesion reaches, or the best ones."""
    reach = np.sqrt(tiles / np.pi) + 1
    axis = np.arange(-int(reach), int(reach) + 1)
    disc = np.hypot(axis[:, None], axis) <= reach
    image = np.zeros(positions.max(0) + 1)
    image[tuple(positions.T)] = 1
    around = np.round(fftconvolve(image, disc, mode="same"))[tuple(positions.T)]
    inside = np.flatnonzero(around >= tiles)
    if len(inside) < 2:
        inside = np.argsort(-around, kind="stable")[: len(positions) // 4]
    centers: Positions = positions[random.permutation(inside)[:MAX_CENTERS]]
    return centers


def measure_distances(centers: Positions, size: float) -> Floats:
    """Return (centers, centers) distances as a share of the slide's size; infinite to itself."""
    distance = np.asarray(np.hypot(*(centers[:, None] - centers).transpose(2, 0, 1)) / size)
    np.fill_diagonal(distance, inf)
    return distance


def measure_misfit(distance: Floats, span: Span) -> Floats:
    """Return by how much distances are outside a span; 0 inside."""
    return np.maximum(np.maximum(span[0] - distance, distance - span[1]), 0)


def draw_pair(misfit: Floats, random: Random) -> Indices:
    """Draw one of the pairs of centers that fit best."""
    pair: Indices = random.choice(np.argwhere(misfit == misfit.min()))
    return pair


def draw_rectangle(near: Pairs, far: Pairs, random: Random) -> Indices | None:
    """Draw four centers: near from the first to the second, then far, near, and far again.

    Returns None if there are no such four.
    """
    n, f = near.astype(np.float32), far.astype(np.float32)
    sides = np.argwhere(near & (f @ n @ f > 0))  # with another side near[c, d] opposite
    if not len(sides):
        return None
    a, b = random.choice(sides)
    c, d = random.choice(np.argwhere(near & far[b][:, None] & far[a]))
    return np.array([a, b, c, d])


def grow_lesions(positions: Positions, tiles: int, centers: Positions) -> tuple[Indices, Indices]:
    """Return the tiles nearest to each of two centers; none is in both."""
    to_first, to_second = (np.hypot(*(positions - center).T) for center in centers)
    first = np.argsort(to_first, kind="stable")[:tiles]
    to_second[first] = inf
    return first, np.argsort(to_second, kind="stable")[:tiles]
