"""The area that polygons cover of a tile is exact: by geometry, and against counting points."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sacmil.cohorts.coverage import compute_covered_share

SQUARE = np.array([[0, 0], [10, 0], [10, 10], [0, 10]], float)
TRIANGLE = np.array([[0, 0], [10, 0], [0, 10]], float)
HOLE = np.array([[2, 2], [8, 2], [8, 8], [2, 8]], float)
BOW = np.array([[0, 0], [10, 10], [10, 0], [0, 10]], float)
# winds twice around its middle
TWICE = np.array([[0, 0], [10, 0], [10, 10], [2, 10], [2, 2], [8, 2], [8, 8], [0, 8]], float)


def share(corner: tuple[float, float], *positive: np.ndarray, less: tuple = ()) -> float:
    return float(compute_covered_share([corner], 10, positive, less)[0])


@pytest.mark.parametrize(
    ("corner", "positive", "less", "expected"),
    [
        ((0, 0), (SQUARE,), (), 1),
        ((5, 5), (SQUARE,), (), 0.25),
        ((-3, 2), (SQUARE,), (), 0.7 * 0.8),
        ((10, 0), (SQUARE,), (), 0),  # they touch along a side
        ((0, 0), (TRIANGLE,), (), 0.5),
        ((5, 0), (TRIANGLE,), (), 0.125),
        ((0, 0), (SQUARE,), (HOLE,), 0.64),
        ((0, 0), (SQUARE, HOLE), (), 1),
        ((0, 0), (SQUARE, HOLE[::-1]), (), 1),
        ((0, 0), (SQUARE + 5, SQUARE - 5), (), 0.5),
        ((0, 0), (SQUARE + [5, 0], SQUARE + [0, 5]), (), 0.75),
        ((0, 0), (SQUARE + 100,), (), 0),
        ((0, 0), (BOW,), (), 0.5),
        ((0, 0), (TWICE,), (), 1 - 0.04),
        ((0, 0), (TRIANGLE, np.array([[10, 10], [10, 0], [0, 0]], float)), (), 0.75),
        ((0, 0), (SQUARE * 100 - 500,), (), 1),
        ((0, 0), (SQUARE * 100 - 500,), (SQUARE * 100 - 500,), 0),
        ((0, 0), (SQUARE * 100 - 500,), (TRIANGLE,), 0.5),
        ((0, 0), (np.array([[0, 0], [5, 5], [10, 10]], float),), (), 0),  # a line
    ],
)
def test_known_areas_are_exact(
    corner: tuple[float, float], positive: tuple, less: tuple, expected: float
) -> None:
    assert share(corner, *positive, less=less) == pytest.approx(expected, abs=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(*[st.integers(-3, 13)] * 4), min_size=1, max_size=4), st.integers(0, 2))
def test_boxes_on_a_grid_are_counted_square_by_square(boxes: list, holes: int) -> None:
    """Level and upright edges, shared ones too, on and off the borders of the tiles."""
    polygons, masks = [], []
    for x0, y0, x1, y1 in boxes:
        polygons.append(np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], float))
        mask = np.zeros((16, 16), dtype=bool)
        (x0, x1), (y0, y1) = sorted((x0, x1)), sorted((y0, y1))
        mask[x0 + 3 : x1 + 3, y0 + 3 : y1 + 3] = True
        masks.append(mask)
    first = max(1, len(boxes) - holes)
    covered = np.any(masks[:first], axis=0) & ~np.any([np.zeros((16, 16)), *masks[first:]], axis=0)
    corners = np.argwhere(np.ones((4, 4))) * 4 - 3
    expected = [covered[x : x + 4, y : y + 4].mean() for x, y in corners + 3]
    found = compute_covered_share(corners, 4, polygons[:first], polygons[first:])
    np.testing.assert_allclose(found, expected, atol=1e-12)


def blob(random: np.random.Generator, points: int, size: float) -> np.ndarray:
    """An outline as a hand draws it: round about, and crossing itself now and then."""
    turn = np.sort(random.uniform(0, 2 * np.pi, points)) + random.normal(0, 0.1, points)
    radius = size * random.uniform(0.3, 1, points)
    centre = random.uniform(0, 40, 2)
    return centre + radius[:, None] * np.stack([np.cos(turn), np.sin(turn)], 1)


def winding(points: np.ndarray, polygon: np.ndarray) -> np.ndarray:
    """Turns around points by summing angles: slow, and a different way than the one tested."""
    total = np.zeros(len(points))
    for start, end in zip(polygon, np.roll(polygon, -1, axis=0), strict=True):
        a, b = start - points, end - points
        cross = a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]
        total += np.arctan2(cross, (a * b).sum(1))
    return np.rint(total / (2 * np.pi))


@settings(max_examples=6, deadline=None)
@given(st.integers(0, 10_000))
def test_areas_agree_with_a_raster_count(seed: int) -> None:
    random = np.random.default_rng(seed)
    positive = [blob(random, int(random.integers(3, 10)), 15) for _ in range(3)]
    negative = [blob(random, 5, 10)]
    corners = np.concatenate([np.argwhere(np.ones((4, 4))) * 10.0, random.uniform(-5, 40, (6, 2))])
    steps = (np.arange(50) + 0.5) / 50 * 10
    offsets = np.stack(np.meshgrid(steps, steps), -1).reshape(-1, 2)
    points = (corners[:, None] + offsets).reshape(-1, 2)
    inside = np.any([winding(points, polygon) != 0 for polygon in positive], axis=0)
    inside &= ~np.any([winding(points, polygon) != 0 for polygon in negative], axis=0)
    counted = inside.reshape(len(corners), -1).mean(1)
    np.testing.assert_allclose(
        compute_covered_share(corners, 10, positive, negative), counted, rtol=0, atol=0.02
    )


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10_000))
def test_tiles_of_a_grid_add_up_to_the_polygon(seed: int) -> None:
    random = np.random.default_rng(seed)
    turn = np.linspace(0, 2 * np.pi, 30, endpoint=False)  # so that it does not cross itself
    polygon = 50 + random.uniform(10, 45, (30, 1)) * np.stack([np.cos(turn), np.sin(turn)], 1)
    x, y = polygon.T
    area = abs((x * np.roll(y, -1) - y * np.roll(x, -1)).sum()) / 2
    grid = (np.argwhere(np.ones((12, 12))) - 1) * 10 + random.uniform(0, 5, 2)
    assert compute_covered_share(grid, 10, [polygon]).sum() * 100 == pytest.approx(area, rel=1e-9)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10_000))
def test_direction_start_doubled_points_and_position_change_nothing(seed: int) -> None:
    random = np.random.default_rng(seed)
    polygons = [blob(random, 8, 15) for _ in range(2)]
    corners = random.uniform(-10, 40, (20, 2))
    expected = compute_covered_share(corners, 10, polygons)
    changed = [
        [polygon[::-1] for polygon in polygons],
        [np.roll(polygon, 3, axis=0) for polygon in polygons],
        [np.repeat(polygon, 2, axis=0) for polygon in polygons],
        [np.concatenate([polygon, polygon[:1]]) for polygon in polygons],
        [*polygons, polygons[0]],
    ]
    for other in changed:
        np.testing.assert_allclose(compute_covered_share(corners, 10, other), expected, atol=1e-9)
    far = np.array([120_000.0, 90_000.0])
    moved = compute_covered_share(corners + far, 10, [polygon + far for polygon in polygons])
    np.testing.assert_allclose(moved, expected, atol=1e-8)


def test_nothing_covers_nothing() -> None:
    assert compute_covered_share(np.zeros((0, 2)), 10, [SQUARE]).shape == (0,)
    assert compute_covered_share([[0, 0]], 10, []).tolist() == [0]
    assert compute_covered_share([[0, 0]], 10, [], [SQUARE]).tolist() == [0]


def test_long_edges_far_beyond_the_tiles_are_seen() -> None:
    huge = np.array([[-1e5, -1e5], [1e5, -1e5], [1e5, 1e5]], float)  # its edge is the diagonal
    corners = np.array([[0, 0], [0, 10], [10, 0], [5, 0]], float)
    np.testing.assert_allclose(
        compute_covered_share(corners, 10, [huge]), [0.5, 0, 1, 0.875], atol=1e-9
    )
