"""The graph of neighbouring patches: nearest neighbours, spanning tree, traversal orders.

All of it is deterministic: ties are decided by position, then by row.
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array
from scipy.sparse.csgraph import minimum_spanning_tree
from scipy.spatial import cKDTree

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Tree = list[list[int]]
"""The tree neighbours of each patch, along the lightest edge first."""


def make_tissue_graph(
    coords: npt.NDArray[Any], features: npt.NDArray[Any] | None, *, neighbours: int
) -> dict[str, npt.NDArray[Any]]:
    """Return the neighbours of each patch, and three traversals of the minimum spanning tree.

    neighbours (``neighbours``, N), padded with N in small bags; orders (3, N). Edges are weighted
    by the dissimilarity of features, or by distance without features.
    """
    nearest = find_nearest_neighbors(coords, neighbours)
    edges = list_edges(nearest)
    weights = distance(coords, edges) if features is None else dissimilarity(features, edges)
    tree = spanning_tree(edges, weights, len(coords))
    walks = (depth_first_preorder, depth_first_postorder, breadth_first_order)
    padding = np.full((neighbours - len(nearest), len(coords)), len(coords))
    return {
        "neighbours": np.concatenate([nearest, padding]),
        "orders": np.stack([walk(tree) for walk in walks]),
    }


def find_nearest_neighbors(coords: npt.NDArray[Any], count: int) -> Integers:
    """Return (K, N): row r holds the r-th nearest other patch of each patch; K = min(count, N - 1).

    Ties in distance go to the smaller y, then x; patches at the same position go by row. Positions
    are rounded to a thousandth of a patch. Otherwise rounding errors would decide ties on a grid
    that does not start at a whole number.
    """
    count = min(count, len(coords) - 1)
    lines = np.asarray(coords, np.float64)[:, ::-1]  # (y, x): sorted, they read line by line
    lines = np.round(lines - lines.min(axis=0), 3)
    positions, index = np.unique(lines, axis=0, return_inverse=True)
    index = index.reshape(-1)  # numpy 2.0 gave it a second axis
    nearest = _find_nearest_positions(positions, count + 1)
    candidates = _list_nearest_patches(nearest, index, count + 1)[index]
    others = candidates != np.arange(len(coords))[:, None]
    # If duplicates push a patch out of its own list, drop the last candidate instead.
    others[others.all(axis=1), -1] = False
    return np.ascontiguousarray(candidates[others].reshape(len(coords), count).T)


def _find_nearest_positions(positions: Floats, count: int) -> Integers:
    """Return the nearest positions of each, itself first, (positions, at most count)."""
    tree, count = cKDTree(positions), min(count, len(positions))
    found = np.empty((len(positions), count), np.int64)
    open_rows, reach = np.arange(len(positions)), 2 * count
    while len(open_rows):
        reach = min(reach, len(positions))
        distances, indices = tree.query(positions[open_rows], k=np.arange(1, reach + 1))
        found[open_rows] = _sort_by_distance(positions, open_rows, indices)[:, :count]
        # Ties may continue beyond the last result: query more.
        may_tie = distances[:, -1] <= distances[:, count - 1] * (1 + 1e-6)
        open_rows = open_rows[may_tie & (reach < len(positions))]
        reach *= 2
    return found


def _sort_by_distance(positions: Floats, rows: Integers, indices: Integers) -> Integers:
    """Sort indices by distance, then by position: positions are in reading order."""
    squares = ((positions[indices] - positions[rows, None]) ** 2).sum(-1).astype(np.float32)
    order = np.lexsort((indices, squares), axis=-1)
    return np.take_along_axis(indices, order, axis=1)


def _list_nearest_patches(nearest: Integers, position_of_patch: Integers, count: int) -> Integers:
    """Return the first patches at the nearest positions, in order, (positions, count)."""
    patches = np.argsort(position_of_patch, kind="stable")
    sizes = np.bincount(position_of_patch)
    starts = np.cumsum(sizes) - sizes
    ends = np.cumsum(sizes[nearest], axis=1)  # patches up to and including each position
    rows = np.arange(len(nearest))
    found = np.empty((len(nearest), count), np.int64)
    for number in range(count):
        slot = (ends <= number).sum(axis=1)
        position = nearest[rows, slot]
        before = ends[rows, slot] - sizes[position]
        found[:, number] = patches[starts[position] + number - before]
    return found


def list_edges(neighbors: Integers) -> Integers:
    """Return each pair of neighbours once, smaller row first, (2, E)."""
    nodes = neighbors.shape[1]
    centres = np.broadcast_to(np.arange(nodes), neighbors.shape)
    low, high = np.minimum(centres, neighbors), np.maximum(centres, neighbors)
    return np.stack(np.divmod(np.unique(low * nodes + high), nodes))


def dissimilarity(features: npt.NDArray[Any], edges: Integers) -> Floats:
    """Return 1 - cos of the features at both ends, (E,); 1 if the features of one are all zero."""
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
    """Return the length of each edge, (E,)."""
    ends = np.asarray(coords, np.float64)[edges]
    return np.asarray(np.hypot(*(ends[0] - ends[1]).T))


def spanning_tree(edges: Integers, weights: Floats, nodes: int) -> Tree:
    """Return the minimum spanning tree of each component, by Kruskal; ties go to the first edge.

    Args:
        edges: (2, E), each once.
        weights: (E,), of any sign.
        nodes: their number.
    """
    # Ranks are distinct, so the tree is unique, and never zero, which sparse matrices drop.
    ranks = np.empty(len(weights))
    ranks[np.argsort(weights, kind="stable")] = np.arange(1, len(weights) + 1)
    tree = minimum_spanning_tree(csr_array((ranks, tuple(edges)), shape=(nodes, nodes))).tocoo()
    here = np.concatenate((tree.row, tree.col))
    order = np.lexsort((np.tile(tree.data, 2), here))
    there = np.concatenate((tree.col, tree.row))[order]
    bounds = np.searchsorted(here[order], np.arange(nodes + 1)).tolist()
    ends = there.tolist()
    return [ends[bounds[node] : bounds[node + 1]] for node in range(nodes)]


def depth_first_preorder(tree: Tree) -> Integers:
    """Return nodes with parents before children, (N,); a component starts at its lowest row."""
    lightest_on_top = [children[::-1] for children in tree]
    return np.concatenate(_walk_components(lightest_on_top))


def depth_first_postorder(tree: Tree) -> Integers:
    """Return nodes with children before parents, (N,), in the walk of ``depth_first_preorder``."""
    # Visit children in reverse order and read backwards: each node follows its children.
    return np.concatenate([nodes[::-1] for nodes in _walk_components(tree)])


def breadth_first_order(tree: Tree) -> Integers:
    """Return nodes level by level, (N,); a component starts at its lowest row."""
    return np.concatenate(_walk_components(tree, breadth_first=True))


def _walk_components(tree: Tree, *, breadth_first: bool = False) -> list[Integers]:
    """Return the nodes of each component before their children: first child first if
    ``breadth_first``, otherwise the last."""
    components: list[Integers] = []
    seen = bytearray(len(tree))
    for root in range(len(tree)):
        if seen[root]:
            continue
        nodes, waiting = [], deque([root])
        while waiting:
            node = waiting.popleft() if breadth_first else waiting.pop()
            seen[node] = 1
            nodes.append(node)
            waiting.extend(child for child in tree[node] if not seen[child])
        components.append(np.array(nodes, np.int64))
    return components
