"""sacmil.regions against a plain reading of its definition, and the properties it promises."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from exhaustive import choose_cases
from numpy.typing import NDArray

from sacmil.errors import BagError, OptionError
from sacmil.regions import CENTERS, ORDERS, arrange
from sacmil.regions.arrangement import hilbert_index
from sacmil.synthetic.tissue_shape import make_tissue_coords

Array = NDArray[np.int64]


# The definition, as loops over whole numbers in canonical order.


def squared_distances(points: Array, center: Array) -> Array:
    return ((points - center) ** 2).sum(axis=1)


def nearest_free(points: Array, free: Array, center: int, count: int) -> list[int]:
    candidates = np.flatnonzero(free)
    distance = squared_distances(points[candidates], points[center])
    return candidates[np.argsort(distance, kind="stable")[:count]].tolist()


def textbook_fps(points: Array, count: int) -> list[int]:
    chosen = [0]
    distance = squared_distances(points, points[0])
    while len(chosen) < count:
        distance[chosen[-1]] = -1
        chosen.append(int(np.argmax(distance)))
        distance = np.minimum(distance, squared_distances(points, points[chosen[-1]]))
    return chosen


def plain_fps(points: Array, k: int) -> list[list[int]]:
    centers = textbook_fps(points, -(-len(points) // k))
    free = np.ones(len(points), dtype=bool)
    free[centers] = False
    regions = []
    for center in centers:
        regions.append([center, *nearest_free(points, free, center, k - 1)])
        free[regions[-1]] = False
    return regions


def served_in_turn(
    points: Array, k: int, choose: Callable[[Array, list[int]], int]
) -> list[list[int]]:
    free = np.ones(len(points), dtype=bool)
    regions: list[list[int]] = []
    while free.any():
        center = choose(free, [region[0] for region in regions])
        free[center] = False
        regions.append([center, *nearest_free(points, free, center, k - 1)])
        free[regions[-1]] = False
    return regions


def plain_fps_free(points: Array, k: int) -> list[list[int]]:
    nearest_centre = np.full(len(points), np.iinfo(np.int64).max)

    def choose(free: Array, centers: list[int]) -> int:
        if centers:
            distance = squared_distances(points, points[centers[-1]])
            np.minimum(nearest_centre, distance, out=nearest_centre)
        return int(np.argmax(np.where(free, nearest_centre, -1)))

    return served_in_turn(points, k, choose)


def plain_peel(points: Array, k: int) -> list[list[int]]:
    x, y = points.T
    dx, dy = x - int(x.sum()) / len(x), y - int(y.sum()) / len(y)
    distance = dx * dx + dy * dy
    return served_in_turn(points, k, lambda free, _: int(np.argmax(np.where(free, distance, -1.0))))


def plain_kd(points: Array, k: int) -> list[list[int]]:
    leaves: list[Array] = []

    def cut(part: Array) -> None:
        if len(part) <= k:
            leaves.append(np.sort(part))
            return
        width, height = np.ptp(points[part], axis=0)
        part = part[np.lexsort((part, points[part, 1 if height > width else 0]))]
        unit = k * k if len(part) > k * k else k
        multiples = range(unit, len(part), unit)
        middle = min(multiples, key=lambda size: abs(2 * size - len(part)))
        cut(part[:middle])
        cut(part[middle:])

    cut(np.arange(len(points)))
    return [[middle_of(points, leaf), *leaf[leaf != middle_of(points, leaf)]] for leaf in leaves]


def middle_of(points: Array, leaf: Array) -> int:
    dx, dy = (axis - int(axis.sum()) / len(leaf) for axis in points[leaf].T)
    return int(leaf[np.argmin(dx * dx + dy * dy)])


def hilbert_position(x: int, y: int, side: int) -> int:
    """The textbook conversion, see en.wikipedia.org/wiki/Hilbert_curve."""
    position, step = 0, side // 2
    while step:
        right, upper = int(x & step > 0), int(y & step > 0)
        position += step * step * ((3 * right) ^ upper)
        if not upper:
            if right:
                x, y = side - 1 - x, side - 1 - y
            x, y = y, x
        step //= 2
    return position


def plain_arrange(steps: Array, k: int, centers: str, order: str) -> Array:
    """The definition for coordinates that are whole, start at 0 and have no common divisor."""
    canonical = np.lexsort((steps[:, 1], steps[:, 0]))
    points = steps[canonical]
    makers = {"fps": plain_fps, "fps_free": plain_fps_free, "peel": plain_peel, "kd": plain_kd}
    regions = makers[centers](points, k)
    if order == "hilbert":
        side = 1 << int(points.max()).bit_length()
        short = [regions.pop()] if len(regions[-1]) < k else []
        regions.sort(key=lambda region: hilbert_position(*points[region[0]].tolist(), side))
        regions += short
    sequence = []
    for center, *others in regions:
        distance = squared_distances(points[others], points[center])
        sequence += [center, *np.array(others, dtype=int)[np.lexsort((others, distance))]]
    return canonical[sequence]


# Slides to try it on.


def on_lattice(coords: Array) -> Array:
    steps = coords - coords.min(axis=0)
    return steps // max(1, int(np.gcd.reduce(steps, axis=None)))


def full_grid(random: np.random.Generator, n: int) -> Array:
    return np.stack(np.divmod(random.permutation(n), int(np.ceil(np.sqrt(n)))), axis=1)


def clusters(random: np.random.Generator, n: int) -> Array:
    return random.integers(0, 12, (n, 2)) + random.choice([0, 60, 4000], (n, 2))


def line(random: np.random.Generator, n: int) -> Array:
    return random.permutation(n)[:, None] * random.choice([[1, 0], [0, 1], [2, 3]])


SLIDES: dict[str, Callable[[np.random.Generator, int], Array]] = {
    "irregular": lambda random, n: random.permutation(make_tissue_coords(n, seed=n)) * 224 + 1000,
    "full grid": full_grid,
    "duplicates": lambda random, n: random.integers(0, 1 + int(np.sqrt(n) / 3), (n, 2)),
    "clusters": clusters,
    "line": line,
    "one place": lambda random, n: np.full((n, 2), 7),
    "heavy tails": lambda random, n: (random.normal(size=(n, 2)) ** 3 * 20).astype(np.int64),
    "as wide as exact": lambda random, n: random.integers(0, 2**20, (n, 2)),
}

every_option = pytest.mark.parametrize(
    ("centers", "order"), [(centers, order) for centers in CENTERS for order in ORDERS]
)
every_slide = pytest.mark.parametrize("slide", SLIDES)


@pytest.fixture
def small_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes slides of a few hundred points use the grid as those of many thousand do."""
    monkeypatch.setattr("sacmil.regions.grid.MAX_POINTS_IN_ONE_CELL", 8)
    monkeypatch.setattr("sacmil.regions.grid.POINTS_PER_CELL", 3)


def is_permutation(order: Array, n: int) -> bool:
    return order.dtype == np.int64 and np.array_equal(np.sort(order), np.arange(n))


# The result is what the definition says.


@every_option
@every_slide
@pytest.mark.usefixtures("small_cells")
def test_the_result_is_that_of_the_plain_reading(slide: str, centers: str, order: str) -> None:
    random = np.random.default_rng(0)
    for n, k in [(1, 4), (5, 2), (40, 64), (64, 64), (100, 1), (257, 16), (700, 32)]:
        coords = SLIDES[slide](random, n)
        expected = plain_arrange(on_lattice(coords), k, centers, order)
        assert np.array_equal(arrange(coords, k, centers, order), expected), (n, k)


@every_option
def test_a_slide_of_many_cells_is_that_of_the_plain_reading(centers: str, order: str) -> None:
    coords = make_tissue_coords(6_000, seed=3)
    expected = plain_arrange(on_lattice(coords), 64, centers, order)
    assert np.array_equal(arrange(coords, 64, centers, order), expected)


@pytest.mark.slow
@every_slide
@pytest.mark.parametrize("centers", CENTERS)
def test_large_slides_are_those_of_the_plain_reading(slide: str, centers: str) -> None:
    coords = SLIDES[slide](np.random.default_rng(1), 20_000)
    expected = plain_arrange(on_lattice(coords), 64, centers, "fps")
    assert np.array_equal(arrange(coords, 64, centers), expected)


@pytest.mark.slow
@pytest.mark.parametrize("centers", choose_cases(list(CENTERS), step=2))
def test_keys_do_not_overflow_on_the_largest_and_widest_slide(centers: str) -> None:
    coords = np.random.default_rng(2).integers(0, 2**20, (2**21, 2))
    coords[:4] = [[0, 0], [0, 2**20 - 1], [2**20 - 1, 0], [2**20 - 1, 2**20 - 1]]
    expected = plain_arrange(coords, 2**18, centers, "fps")
    assert np.array_equal(arrange(coords, 2**18, centers), expected)


# It is a permutation, whatever comes.


@every_option
@every_slide
def test_every_instance_comes_exactly_once(slide: str, centers: str, order: str) -> None:
    random = np.random.default_rng(4)
    for n in [1, 2, 63, 64, 65, *random.integers(1, 2_000, 2)]:
        for k in (1, 3, 64) if n <= 65 else (32,):
            assert is_permutation(arrange(SLIDES[slide](random, n), k, centers, order), n), (n, k)


@pytest.mark.slow
@every_option
def test_every_number_of_instances_is_arranged(centers: str, order: str) -> None:
    random = np.random.default_rng(5)
    for n in choose_cases(range(1, 2_001), step=7):
        coords = random.integers(0, 60, (n, 2))
        assert is_permutation(arrange(coords, 16, centers, order), n), n


@pytest.mark.slow
@every_slide
@pytest.mark.parametrize("centers", CENTERS)
def test_large_slides_are_permuted(slide: str, centers: str) -> None:
    random = np.random.default_rng(6)
    for n in random.integers(20_000, 60_000, 3):
        assert is_permutation(arrange(SLIDES[slide](random, n), 64, centers, "hilbert"), n), n


# It depends on the slide only, not on how the file lists it.


@every_option
@every_slide
def test_row_order_changes_nothing(slide: str, centers: str, order: str) -> None:
    random = np.random.default_rng(7)
    coords = SLIDES[slide](random, 700)
    expected = coords[arrange(coords, 16, centers, order)]
    for _ in range(3):
        shuffled = random.permutation(coords)
        assert np.array_equal(shuffled[arrange(shuffled, 16, centers, order)], expected)


@pytest.mark.parametrize("centers", CENTERS)
def test_row_order_changes_nothing_where_floats_are_snapped_together(centers: str) -> None:
    random = np.random.default_rng(8)
    coords = np.concatenate([random.random((300, 2)) / 1000, random.random((300, 2)) * 9])
    shuffled = random.permutation(coords)
    expected = coords[arrange(coords, 16, centers)]
    assert np.array_equal(shuffled[arrange(shuffled, 16, centers)], expected)


@pytest.mark.parametrize("centers", CENTERS)
def test_equal_coordinates_keep_file_order(centers: str) -> None:
    assert np.array_equal(arrange(np.full((4, 2), 3), 4, centers), np.arange(4))


@every_option
def test_position_and_scale_change_nothing(centers: str, order: str) -> None:
    coords = make_tissue_coords(900, seed=9)
    expected = arrange(coords, 16, centers, order)
    for scale, shift in [(1, (31, -70_000)), (224, (0, 0)), (256, (4_096, 123)), (3, (-5, 2**40))]:
        assert np.array_equal(arrange(coords * scale + shift, 16, centers, order), expected)


@every_option
@pytest.mark.parametrize("patch", [224, 256, 448, 1000])
def test_patch_units_give_what_pixels_give(centers: str, order: str, patch: int) -> None:
    pixels = make_tissue_coords(900, seed=10) * patch + (12_345, 678)
    expected = arrange(pixels, 16, centers, order)
    for kind in (np.int32, np.uint32, np.float32, np.float64):
        assert np.array_equal(arrange(pixels.astype(kind), 16, centers, order), expected)
    for kind in (np.float32, np.float64):
        units = pixels.astype(kind) / kind(patch)
        assert np.array_equal(arrange(units, 16, centers, order), expected)


@pytest.mark.parametrize("scale", [1e-320, 1e-9, 1 / 7, 0.99, 1.01, 1e5, 1e13])
def test_floats_of_any_size_are_arranged(scale: float) -> None:
    coords = np.random.default_rng(11).random((300, 2)) * scale
    for centers in CENTERS:
        assert is_permutation(arrange(coords, 16, centers), 300)


def test_fractions_are_snapped_to_4096ths_and_wide_slides_to_a_million_steps() -> None:
    random = np.random.default_rng(12)
    coords = random.integers(0, 200 * 4096, (400, 2))
    coords[:2] = [[0, 0], [1, 200 * 4096 - 1]]
    nearly = coords / 4096 + random.uniform(-0.3, 0.3, coords.shape) / 4096 * (coords > 0)
    assert np.array_equal(arrange(nearly, 16), plain_arrange(coords, 16, "fps", "fps"))
    wide = coords * 1024 + random.integers(0, 1023, coords.shape)
    wide[:2] = [[0, 0], [1, 2**30 - 1]]
    assert np.array_equal(arrange(wide, 16), plain_arrange(wide // 1024, 16, "fps", "fps"))


# Regions are what the docstring describes.


@every_option
def test_members_follow_their_centre_from_near_to_far(centers: str, order: str) -> None:
    coords = make_tissue_coords(2_000, seed=13)
    regions = coords[arrange(coords, 16, centers, order)].reshape(-1, 16, 2)
    distance = ((regions - regions[:, :1]) ** 2).sum(axis=2)
    assert (np.diff(distance, axis=1) >= 0).all()


def test_fps_centres_are_those_of_farthest_point_sampling() -> None:
    coords = make_tissue_coords(5_000, seed=14)  # in canonical order already
    assert arrange(coords, 64)[::64].tolist() == textbook_fps(coords, 79)


def test_fps_free_and_peel_begin_where_they_should() -> None:
    coords = make_tissue_coords(5_000, seed=15)
    away = np.hypot(*(coords - coords.mean(axis=0)).T)
    assert arrange(coords, 64, "fps_free")[0] == 0
    assert away[arrange(coords, 64, "peel")[0]] == pytest.approx(away.max())


@pytest.mark.parametrize("centers", CENTERS)
def test_hilbert_moves_whole_regions_and_leaves_the_short_one_last(centers: str) -> None:
    coords = make_tissue_coords(1_000, seed=16)
    made, moved = (arrange(coords, 64, centers, order) for order in ORDERS)
    rows, moved_rows = made[:960].reshape(-1, 64), moved[:960].reshape(-1, 64)
    assert sorted(rows.tolist()) == sorted(moved_rows.tolist())
    assert not np.array_equal(rows, moved_rows)
    assert np.array_equal(made[960:], moved[960:])


def test_the_hilbert_curve_visits_every_position_in_single_steps() -> None:
    x, y = (axis.ravel() for axis in np.mgrid[:32, :32])
    index = hilbert_index(x, y, bits=5)
    way = np.stack([x, y], axis=1)[np.argsort(index)]
    assert sorted(index.tolist()) == list(range(1024))
    assert (np.abs(np.diff(way, axis=0)).sum(axis=1) == 1).all()


# Regions are compact; figures from sac-mil.md, "Arrangement: what was measured".

MEASURED = {  # of regions on average, of the last tenth of them, of 4,096-rings
    "fps": (4.78, 14.1, 137),
    "fps_free": (4.11, 9.8, 139),
    "peel": (3.35, 3.4, 137),
    "kd": (3.56, 3.5, 33),
}


def spreads(coords: Array, size: int) -> NDArray[np.float64]:
    """Mean distances to their centroid of so many consecutive instances at a time."""
    groups = coords[: len(coords) // size * size].reshape(-1, size, 2)
    away = groups - groups.mean(axis=1, keepdims=True)
    return np.hypot(away[..., 0], away[..., 1]).mean(axis=1)


@pytest.mark.parametrize("centers", CENTERS)
def test_regions_of_100_000_instances_are_as_compact_as_measured(centers: str) -> None:
    coords = make_tissue_coords(100_000, seed=0)
    sequence = coords[arrange(coords, 64, centers)]
    regions, rings = spreads(sequence, 64), spreads(sequence, 4096)
    found = regions.mean(), regions[-len(regions) // 10 :].mean(), rings.mean()
    assert found == pytest.approx(MEASURED[centers], rel=0.15)


def test_a_hilbert_curve_makes_rings_compact() -> None:
    coords = make_tissue_coords(100_000, seed=0)
    rings = {c: spreads(coords[arrange(coords, 64, c, "hilbert")], 4096).mean() for c in CENTERS}
    assert rings["fps"] == pytest.approx(40, rel=0.15)
    assert max(rings.values()) < 46


@pytest.mark.parametrize("n", [10_000, 100_000])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_peeling_leaves_no_scattered_regions(n: int, seed: int) -> None:
    coords = make_tissue_coords(n, seed)
    regions = spreads(coords[arrange(coords, 64, "peel")], 64)
    assert regions.mean() < 3.8
    assert regions[-len(regions) // 10 :].mean() < 3.8


def test_choosing_centres_while_serving_makes_more_compact_regions() -> None:
    coords = make_tissue_coords(10_000, seed=0)
    mean = {c: spreads(coords[arrange(coords, 64, c)], 64).mean() for c in CENTERS}
    assert mean["peel"] < mean["fps_free"] < mean["fps"]


# Coordinates that cannot be arranged are rejected with a hint.


@pytest.mark.parametrize(
    ("coords", "message"),
    [
        (np.zeros((5, 3)), r"shape \(5, 3\); expected \(N, 2\)"),
        (np.zeros(4), r"shape \(4,\); expected \(N, 2\)"),
        ([[1, 2], [3]], r"are not an array .* expected shape \(N, 2\)"),
        (np.zeros((0, 2)), "0 instances; expected 1 to"),
        ([[0, np.nan], [1, 1]], "1 instances are NaN or infinite"),
        ([[0, np.inf], [np.nan, 1]], "2 instances are NaN or infinite"),
        ([["a", "b"]], "type <U1; expected whole numbers or floats"),
        ([[True, False]], "type bool"),
        ([[0, 0], [2**48, 0]], r"span about 2\^49; expected .* less than 2\^48"),
        ([[-1e308, 0], [1e308, 0]], r"span about 2\^1025"),
        (np.broadcast_to(0, (2**21 + 1, 2)), "2,097,153 instances; expected 1 to 2,097,152"),
    ],
)
def test_coordinates_that_make_no_slide_are_rejected(coords: object, message: str) -> None:
    with pytest.raises(BagError, match=message):
        arrange(coords, 4)


@pytest.mark.parametrize("k", [0, -3, 2.0, "64", True, None])
def test_a_region_size_that_is_no_positive_whole_number_is_rejected(k: object) -> None:
    with pytest.raises(OptionError, match=r"k=.*expected a whole number"):
        arrange(np.zeros((4, 2)), k)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"centers": "fsp"}, "centers='fsp' is not known: did you mean 'fps'"),
        ({"centers": "voronoi"}, "known are: fps, fps_free, kd, peel"),
        ({"order": "Hilbert"}, "order='Hilbert' is not known: did you mean 'hilbert'"),
        ({"order": None}, "known are: fps, hilbert"),
    ],
)
def test_unknown_options_are_rejected_with_the_nearest(
    options: dict[str, str], message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        arrange(np.zeros((4, 2)), 2, **options)


# The tissue that slides above are made of.


@pytest.mark.parametrize("n", [1, 2, 7, 100, 3_333])
def test_tissue_has_exactly_so_many_distinct_patches(n: int) -> None:
    coords = make_tissue_coords(n, seed=n)
    assert coords.shape == (n, 2)
    assert coords.dtype == np.int64
    assert len(np.unique(coords, axis=0)) == n


def test_tissue_is_a_function_of_its_seed() -> None:
    assert np.array_equal(make_tissue_coords(500, seed=1), make_tissue_coords(500, seed=1))
    assert not np.array_equal(make_tissue_coords(500, seed=1), make_tissue_coords(500, seed=2))
