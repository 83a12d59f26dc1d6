"""The graph of neighbouring patches: nearest neighbours, spanning tree, orders of visiting it.

All of it is deterministic: ties are decided by place, then by row.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial import cKDTree

from sacmil.plans._registry import Array, Plan

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Tree = list[list[int]]
"""The tree neighbours of each patch, along the lightest edge first."""


def make(coords: Array, features: Array | None = None, *, neighbours: int) -> Plan:
    """Whom each patch sends to, and three orders along the tree of the most alike neighbours.

    neighbours (``neighbours``, N), N itself where a small bag has no further neighbour;
    orders (3, N). Without features the nearest count as the most alike.
    """
    nearest = find_nearest_neighbors(coords, neighbours)
    edges = list_edges(nearest)
    weights = distance(coords, edges) if features is None else dissimilarity(features, edges)
    tree = spanning_tree(edges, weights, len(coords))
    walks = (depth_first_preorder, depth_first_postorder, breadth_first_order)
    nobody = np.full((neighbours - len(nearest), len(coords)), len(coords))
    return {
        "neighbours": np.concatenate([nearest, nobody]),
        "orders": np.stack([walk(tree) for walk in walks]),
    }


def find_nearest_neighbors(coords: npt.NDArray[Any], count: int) -> Integers:
    """(K, N), row r holds the r-th nearest other patch of each patch; K = min(count, N - 1).

    Of patches equally far away the first comes first when reading along x, line by line down y; of
    patches at the same place the one with the smaller row. Places count as equal up to a thousandth
    of a patch: on a grid that does not begin at a whole number rounding would decide otherwise.
    """
    count = min(count, len(coords) - 1)
    lines = np.asarray(coords, np.float64)[:, ::-1]  # (y, x): sorted, they read line by line
    lines = np.round(lines - lines.min(axis=0), 3)
    places, place = np.unique(lines, axis=0, return_inverse=True)
    place = place.reshape(-1)  # numpy 2.0 gave it a second axis
    candidates = _list_nearest_patches(
        _find_nearest_positions(places, count + 1), place, count + 1
    )[place]
    others = candidates != np.arange(len(coords))[:, None]
    # Where duplicates crowd a patch out of its own list, the last candidate goes instead.
    others[others.all(axis=1), -1] = False
    return np.ascontiguousarray(candidates[others].reshape(len(coords), count).T)


def _find_nearest_positions(positions: Floats, count: int) -> Integers:
    """(places, M), each place's nearest places, itself first; M = min(count, places)."""
    tree, count = cKDTree(positions), min(count, len(positions))
    found = np.empty((len(positions), count), np.int64)
    open_rows, reach = np.arange(len(positions)), 2 * count
    while len(open_rows):
        reach = min(reach, len(positions))
        distances, indices = tree.query(positions[open_rows], k=np.arange(1, reach + 1))
        found[open_rows] = _sort_by_distance(positions, open_rows, indices)[:, :count]
        # Ties that may go on beyond what was asked for: ask again, for more.
        unsure = distances[:, -1] <= distances[:, count - 1] * (1 + 1e-6)
        open_rows = open_rows[unsure & (reach < len(positions))]
        reach *= 2
    return found


def _sort_by_distance(positions: Floats, rows: Integers, indices: Integers) -> Integers:
    """Indices sorted by distance, then by place: places stand in reading order."""
    squares = ((positions[indices] - positions[rows, None]) ** 2).sum(-1).astype(np.float32)
    order = np.lexsort((indices, squares), axis=-1)
    return np.take_along_axis(indices, order, axis=1)


def _list_nearest_patches(nearest: Integers, position_of_patch: Integers, count: int) -> Integers:
    """(places, count), the first patches met when going through the nearest places in order."""
    patches = np.argsort(position_of_patch, kind="stable")
    sizes = np.bincount(position_of_patch)
    starts = np.cumsum(sizes) - sizes
    ends = np.cumsum(sizes[nearest], axis=1)  # patches met up to and including each place
    rows = np.arange(len(nearest))
    found = np.empty((len(nearest), count), np.int64)
    for number in range(count):
        slot = (ends <= number).sum(axis=1)
        at = nearest[rows, slot]
        found[:, number] = patches[starts[at] + number - (ends[rows, slot] - sizes[at])]
    return found


def list_edges(neighbors: Integers) -> Integers:
    """(2, E), each pair of patches once, smaller row first, of which one lists the other."""
    nodes = neighbors.shape[1]
    centres = np.broadcast_to(np.arange(nodes), neighbors.shape)
    low, high = np.minimum(centres, neighbors), np.maximum(centres, neighbors)
    return np.stack(np.divmod(np.unique(low * nodes + high), nodes))


def dissimilarity(features: npt.NDArray[Any], edges: Integers) -> Floats:
    """(E,), 1 - cos of the features at both ends; 1 where one has none."""
    sizes = np.concatenate([_norms(features[rows]) for rows in _split_rows(len(features))])
    sizes[sizes == 0] = 1
    weights = np.empty(edges.shape[1])
    for rows in _split_rows(len(weights)):
        one, other = (features[ends].astype(np.float64) for ends in edges[:, rows])
        scale = sizes[edges[0, rows]] * sizes[edges[1, rows]]
        weights[rows] = 1 - np.einsum("ij,ij->i", one, other) / scale
    return weights


def _norms(features: npt.NDArray[Any]) -> Floats:
    return np.asarray(np.linalg.norm(features.astype(np.float64), axis=1))


def _split_rows(length: int, size: int = 4096) -> list[slice]:
    return [slice(start, start + size) for start in range(0, length, size)]


def distance(coords: npt.NDArray[Any], edges: Integers) -> Floats:
    """(E,), the length of each edge."""
    ends = np.asarray(coords, np.float64)[edges]
    return np.asarray(np.hypot(*(ends[0] - ends[1]).T))


def spanning_tree(edges: Integers, weights: Floats, nodes: int) -> Tree:
    """The minimum spanning tree of each component, as Kruskal makes it: of equals the first edge.

    Args:
        edges: (2, E), each once.
        weights: (E,), of any sign.
        nodes: how many there are.
    """
    # By rank weights are distinct, which leaves one tree only, and never zero, which sparse
    # matrices forget.
    ranks = np.empty(len(weights))
    ranks[np.argsort(weights, kind="stable")] = np.arange(1, len(weights) + 1)
    tree = minimum_spanning_tree(csr_array((ranks, tuple(edges)), shape=(nodes, nodes))).tocoo()
    here = np.concatenate((tree.row, tree.col))
    there = np.concatenate((tree.col, tree.row))[
        order := np.lexsort((np.concatenate((tree.data, tree.data)), here))
    ]
    bounds = np.searchsorted(here[order], np.arange(nodes + 1)).tolist()
    ends = there.tolist()
    return [ends[bounds[node] : bounds[node + 1]] for node in range(nodes)]


def depth_first_preorder(tree: Tree) -> Integers:
    """(N,), parents before children; a component begins at its lowest row."""
    lightest_on_top = [children[::-1] for children in tree]
    return np.array([n for part in _walk_depth_first(lightest_on_top) for n in part], np.int64)


def depth_first_postorder(tree: Tree) -> Integers:
    """(N,), children before parents, in the walk of ``depth_first_preorder``."""
    # Going through children the other way round and reading backwards: each after its children.
    return np.array([n for part in _walk_depth_first(tree) for n in reversed(part)], np.int64)


def breadth_first_order(tree: Tree) -> Integers:
    """(N,), level by level; a component begins at its lowest row."""
    order: list[int] = []
    seen = bytearray(len(tree))
    for root in range(len(tree)):
        queue = deque([] if seen[root] else [root])
        while queue:
            node = queue.popleft()
            seen[node] = 1
            order.append(node)
            queue.extend(child for child in tree[node] if not seen[child])
    return np.array(order, np.int64)


def _walk_depth_first(tree: Tree) -> list[list[int]]:
    """Each component's nodes before their children, the last child of a list first."""
    parts: list[list[int]] = []
    seen = bytearray(len(tree))
    for root in range(len(tree)):
        part: list[int] = []
        stack = [] if seen[root] else [root]
        while stack:
            node = stack.pop()
            seen[node] = 1
            part.append(node)
            stack.extend(child for child in tree[node] if not seen[child])
        parts.append(part)
    return parts
