"""Neighbours, spanning trees and walks against slow definitions of them."""

from __future__ import annotations

import numpy as np
import pytest

from sacmil.plans.tissue_graph import (
    breadth_first_order,
    depth_first_postorder,
    depth_first_preorder,
    dissimilarity,
    distance,
    find_nearest_neighbors,
    list_edges,
    spanning_tree,
)

RANDOM = np.random.default_rng(0)
GRID = np.stack(np.divmod(RANDOM.choice(400, 150, replace=False), 20), axis=1).astype(float)
LAYOUTS = {
    "grid": GRID,
    "shifted grid": GRID + [1 / 3, 0.7],
    "anywhere": RANDOM.uniform(0, 10, (120, 2)).round(3),
    "line": np.stack((np.arange(40), np.zeros(40)), axis=1),
    "diagonal": np.stack((np.arange(40), np.arange(40)), axis=1)[::-1],
    "duplicates": RANDOM.integers(0, 4, (90, 2)).astype(float),
    "one place": np.zeros((30, 2)),
    "nine": GRID[:9],
    "two": GRID[:2],
    "one": GRID[:1],
}

every_layout = pytest.mark.parametrize("coords", LAYOUTS.values(), ids=LAYOUTS)


def brute_force(coords: np.ndarray, count: int) -> np.ndarray:
    """All distances, sorted by (distance, y, x, row)."""
    columns = []
    for i, (x, y) in enumerate(coords):
        others = [
            (round((a - x) ** 2 + (b - y) ** 2, 9), b, a, j)
            for j, (a, b) in enumerate(coords)
            if j != i
        ]
        columns.append([j for *_, j in sorted(others)[:count]])
    return np.array(columns, np.int64).T.reshape(-1, len(coords))


def kruskal(edges: np.ndarray, weights: np.ndarray, nodes: int) -> list[list[int]]:
    """By union-find: adjacency in the order in which edges join the tree."""
    parent = list(range(nodes))

    def root(i: int) -> int:
        while parent[i] != i:
            i = parent[i]
        return i

    tree: list[list[int]] = [[] for _ in range(nodes)]
    for e in sorted(range(len(weights)), key=lambda e: weights[e]):
        i, j = edges[:, e].tolist()
        if root(i) != root(j):
            parent[root(i)] = root(j)
            tree[i].append(j)
            tree[j].append(i)
    return tree


def visit(tree: list[list[int]], node: int, seen: set[int], before: list, after: list) -> None:
    seen.add(node)
    before.append(node)
    for child in tree[node]:
        if child not in seen:
            visit(tree, child, seen, before, after)
    after.append(node)


@every_layout
@pytest.mark.parametrize("count", [1, 8])
def test_neighbours_are_those_of_all_distances_sorted(coords, count: int) -> None:
    found = find_nearest_neighbors(coords, count)
    assert found.dtype == np.int64
    assert found.shape == (min(count, len(coords) - 1), len(coords))
    np.testing.assert_array_equal(found, brute_force(coords, count))


def test_many_patches_at_the_same_distance_are_all_considered() -> None:
    span = np.arange(-180, 181)  # a ring around one patch: 64 neighbours tie
    ring = np.stack(np.nonzero(span[:, None] ** 2 + span**2 == 32045), axis=1) - 180
    assert len(ring) == 64
    coords = np.concatenate(([[0.0, 0.0]], ring))
    wanted = np.lexsort((coords[1:, 0], coords[1:, 1]))[:8] + 1
    np.testing.assert_array_equal(find_nearest_neighbors(coords, 8)[:, 0], wanted)


def test_where_a_grid_begins_does_not_decide_ties() -> None:
    for offset in ([1000 / 3, 0.1], [-17.3, 1e4 / 7]):
        np.testing.assert_array_equal(
            find_nearest_neighbors(GRID + offset, 8), find_nearest_neighbors(GRID, 8)
        )


@every_layout
def test_trees_are_those_of_kruskal(coords) -> None:
    edges = list_edges(find_nearest_neighbors(coords, 8))
    assert len({tuple(pair) for pair in edges.T.tolist()}) == edges.shape[1]
    assert (edges[0] < edges[1]).all()
    for weights in (distance(coords, edges), np.random.default_rng(1).normal(size=edges.shape[1])):
        tree = spanning_tree(edges, weights, len(coords))
        assert tree == kruskal(edges, weights, len(coords))


@every_layout
def test_walks_are_those_of_the_recursive_definitions(coords) -> None:
    edges = list_edges(find_nearest_neighbors(coords, 2))  # few: several components
    tree = spanning_tree(edges, distance(coords, edges), len(coords))
    seen: set[int] = set()
    before: list[int] = []
    after: list[int] = []
    levels: list[int] = []
    for root in range(len(tree)):
        if root not in seen:
            visit(tree, root, seen, before, after)
            level = [root]
            while level:
                levels += level
                level = [child for node in level for child in tree[node] if child not in levels]
    assert depth_first_preorder(tree).tolist() == before
    assert depth_first_postorder(tree).tolist() == after
    assert breadth_first_order(tree).tolist() == levels


def test_a_forest_is_walked_component_by_component_from_its_lowest_row() -> None:
    edges = np.array([[0, 1, 2, 3], [4, 5, 4, 5]])  # 0-4, 1-5, 2-4, 3-5; 6 by itself
    tree = spanning_tree(edges, np.array([0.2, 0.4, 0.1, 0.3]), 7)
    assert tree == [[4], [5], [4], [5], [2, 0], [3, 1], []]
    assert depth_first_preorder(tree).tolist() == [0, 4, 2, 1, 5, 3, 6]
    assert depth_first_postorder(tree).tolist() == [2, 4, 0, 3, 5, 1, 6]
    assert breadth_first_order(tree).tolist() == [0, 4, 2, 1, 5, 3, 6]


def test_edges_of_no_weight_and_of_equal_weight_are_taken_in_order() -> None:
    edges = np.array([[0, 0, 1], [1, 2, 2]])
    assert spanning_tree(edges, np.zeros(3), 3) == [[1, 2], [0], [0]]
    assert spanning_tree(edges, np.array([1.0, -1.0, 0.0]), 3) == [[2], [2], [0, 1]]


def test_dissimilarity_is_one_minus_the_cosine() -> None:
    features = RANDOM.normal(size=(5000, 3)).astype(np.float16)
    features[7] = 0
    edges = np.stack((np.arange(4999), np.arange(1, 5000)))
    found = dissimilarity(features, edges)
    for e in (0, 6, 7, 4095, 4096, 4998):
        a, b = features[edges[:, e]].astype(float)
        lengths = np.sqrt(a @ a) * np.sqrt(b @ b)
        assert found[e] == pytest.approx(1 - (a @ b / lengths if lengths else 0), abs=1e-12)
