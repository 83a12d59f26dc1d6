"""The planners: functions of a bag's coordinates and features, by the name that a card stores."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.errors import InputError, OptionError, suggest_names
from sacmil.regions import arrange

Array = npt.NDArray[Any]
Plan = dict[str, Array]

_MAX_PATCHES = 2**31


@dataclass(frozen=True)
class Planner:
    """How a model's plans are made, as data that a card can store."""

    name: str = "nothing"
    """One of list_planners()."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the planner besides the bag; numbers, text and lists of them."""
    trace_options: tuple[Mapping[str, Any], Mapping[str, Any]] = ({}, {})
    """Two sets of options to trace the ONNX graph with, whose plans differ in every dynamic axis.
    Needed where the plan of a small bag has dynamic axes of length one."""


def list_planners() -> list[str]:
    """List the names of planners."""
    return sorted(_PLANNERS)


def make_plan(
    name: str, options: Mapping[str, Any], coords: Array, features: Array | None = None
) -> Plan:
    """Make the plan of a bag.

    Args:
        name: one of list_planners().
        options: further arguments of the planner.
        coords: (N, 2), in patch units.
        features: (N, D); not all planners need them.

    Raises:
        InputError: coordinates are not finite, or farther apart than tiles of a slide can be.
    """
    _check_coords(coords)
    if name not in _PLANNERS:
        raise OptionError(f"there is no planner {name!r}; {suggest_names(name, list_planners())}")
    try:
        return _PLANNERS[name](coords, features, **options)
    except TypeError as error:
        raise OptionError(
            f"the planner {name!r} does not accept {dict(options)} ({error}); expected the "
            "options that the model was saved with"
        ) from error


def _check_coords(coords: Array) -> None:
    """Reject coordinates that overflow: planners square them in whole numbers."""
    lowest, highest = (float(end) for end in (coords.min(initial=0), coords.max(initial=0)))
    if not (math.isfinite(lowest) and math.isfinite(highest)):
        raise InputError(
            "coordinates hold NaN or infinity; expected patch units (level-0 pixels / patch size): "
            "drop those instances or repair the file"
        )
    farthest = highest if highest > -lowest else lowest
    if abs(farthest) > _MAX_PATCHES:
        raise InputError(
            f"coordinates reach {farthest:g}; expected patch units (level-0 pixels / patch size), "
            f"at most {_MAX_PATCHES:,}: check the file for outliers"
        )


def plan_nothing(coords: Array, features: Array | None = None) -> Plan:
    """Return the empty plan, for models that need none."""
    return {}


def plan_arrangement(
    coords: Array,
    features: Array | None = None,
    *,
    k: int,
    order: str,
    centers: str = "",
    centres: str = "",
) -> Plan:
    """Return order (N,), which puts instances into regions of neighbours (SAC-MIL, Sec. III-B).

    Options as those of ``arrange``. Exports of earlier versions call centers ``centres``.
    """
    return {"order": arrange(coords, k, centers or centres, order)}


def plan_orders(coords: Array, features: Array | None = None, *, shuffles: int) -> Plan:
    """Return orders (S, N) for models that split a bag into pseudo-bags (DTFD-MIL, IBMIL).

    They are fixed shuffles to average over, or for 0 the order of the bag.
    """
    n = len(coords)
    if not shuffles:
        return {"orders": np.arange(n)[None]}
    seeds = range(shuffles)
    return {"orders": np.stack([np.random.default_rng(s).permutation(n) for s in seeds])}


def plan_segments(
    coords: Array,
    features: Array | None = None,
    *,
    segments: Sequence[int],
    dilations: Sequence[int],
    legacy_placement: bool = False,
) -> Plan:
    """Return the tokens of dilated attention: every r-th token of each segment (LongNet).

    For branch b: seen_b (attentions, tokens per attention) and at_b (N,).
    seen_b is from ``list_attended_tokens``, at_b from ``find_token_rows``. The class token is
    token 0; its row is always 0, and at_b leaves it out.

    Args:
        coords: (N, 2); only their number is used.
        features: not used.
        segments: lengths, one for each branch.
        dilations: of each branch; an attention takes every r-th token.
        legacy_placement: put rows of uneven segments where the official code does.
    """
    tokens, plan = len(coords) + 1, {}
    for branch, (segment, dilation) in enumerate(zip(segments, dilations, strict=True)):
        plan[f"seen_{branch}"] = list_attended_tokens(tokens, segment, dilation)
        rows = find_token_rows(tokens, segment, dilation, legacy_placement=legacy_placement)
        plan[f"at_{branch}"] = rows[1:]
    return plan


def list_attended_tokens(tokens: int, segment: int, dilation: int) -> Array:
    """Return tokens that attend to each other, (segments * dilation, T), padded with ``tokens``.

    >>> list_attended_tokens(5, 3, 2).tolist()  # 0 and 2 of the first three; then 1, 3 and 4
    [[0, 2], [1, 5], [3, 5], [4, 5]]
    """
    width, length = _compute_segment_lengths(tokens, segment, dilation)
    offset = np.arange(length)
    token = np.arange(0, tokens, width)[:, None] + offset
    token = np.where((offset < width) & (token < tokens), token, tokens)
    groups = token.reshape(-1, length // dilation, dilation).swapaxes(1, 2)
    return groups.reshape(-1, length // dilation)


def find_token_rows(
    tokens: int, segment: int, dilation: int, *, legacy_placement: bool = False
) -> Array:
    """Return the row of each token's output among all attended tokens, (tokens,).

    The official code does not remove the padding of a segment, which moves the rows of every later
    segment.
    """
    width, length = _compute_segment_lengths(tokens, segment, dilation)
    number, offset = np.divmod(np.arange(tokens), length if legacy_placement else width)
    slot, group = np.divmod(offset, dilation)
    rows: Array = (number * dilation + group) * (length // dilation) + slot
    return rows


def _compute_segment_lengths(tokens: int, segment: int, dilation: int) -> tuple[int, int]:
    """Return the tokens of a segment without and with padding to whole groups."""
    width = min(segment, tokens)
    return width, -(-width // dilation) * dilation


def plan_slots(
    coords: Array, features: Array | None = None, *, side: int, apart: bool = False
) -> Plan:
    """Return square regions of neighbouring patches, and positions in them (HIPT).

    slots (N,): region * positions per region + position; regions by row, then column.

    Patches in the same slot count as one of M occupied slots. Unless ``apart``, the plan also has
    which (N,), the occupied slot of each patch; places (M,), its position in its region; and table
    (regions, T), the occupied slots of each region, padded with M.

    Args:
        coords: (N, 2), in patch units.
        features: not used.
        side: patches on a side of a region.
        apart: whether every instance is a region of its own.
    """
    if apart:
        return {"slots": np.arange(len(coords), dtype=np.int64) * side**2}
    c = np.asarray(coords, np.float64)
    # Rounded first: 2.9999999 is a 3 with the error of the division by the patch size.
    column, row = np.floor(np.round(c - c.min(0), 3)).astype(np.int64).T
    regions_per_row = column.max() // side + 1
    _, region = np.unique(row // side * regions_per_row + column // side, return_inverse=True)
    slots = region * side**2 + row % side * side + column % side
    occupied, which = np.unique(slots, return_inverse=True)
    region, position = np.divmod(occupied, side**2)
    return {"slots": slots, "which": which, "places": position, "table": _make_region_table(region)}


def _make_region_table(region: Array) -> Array:
    """Return the rows of each region, (regions, T), padded with M; ``region`` (M,) is sorted."""
    sizes = np.bincount(region)
    rows = np.arange(len(region))
    table = np.full((len(sizes), sizes.max()), len(region))
    table[region, rows - (np.cumsum(sizes) - sizes)[region]] = rows
    return table


def plan_square(coords: Array, features: Array | None = None) -> Plan:
    """Return the smallest square that holds a bag row by row, padded with its first instances.

    cells (side, side), the instance in each cell.

    >>> plan_square(np.zeros((5, 2)))["cells"].tolist()
    [[0, 1, 2], [3, 4, 0], [1, 2, 3]]
    """
    n = len(coords)
    side = math.isqrt(n - 1) + 1
    return {"cells": np.arange(side * side).reshape(side, side) % n}


def plan_square_regions(coords: Array, features: Array | None = None, **grids: int) -> Plan:
    """Return a bag row by row on a square that is divided into square regions (R2T-MIL).

    For each grid NAME (grid * grid, P), the instances of each region, and NAME_at (N,).

    N in NAME is an empty cell after the last instance. NAME_at is the cell of each instance.

    >>> plan_square_regions(np.zeros((3, 2)), halves=2)["halves"].tolist()
    [[0], [1], [2], [3]]

    Args:
        coords: (N, 2); only their number is used.
        features: not used.
        grids: regions on a side, by name.
    """
    plan = {}
    for name, grid in grids.items():
        plan[name] = _make_regions(len(coords), grid)
        plan[f"{name}_at"] = np.argsort(plan[name], axis=None, kind="stable")[: len(coords)]
    return plan


def _make_regions(n: int, grid: int) -> Array:
    side = -(-(math.isqrt(n - 1) + 1) // grid)  # of a region
    cells = np.minimum(np.arange((grid * side) ** 2), n)
    return cells.reshape(grid, side, grid, side).swapaxes(1, 2).reshape(grid**2, -1)


def plan_tissue_graph(coords: Array, features: Array | None = None, *, neighbours: int) -> Plan:
    """Return neighbours and traversals of the tissue; see ``make_tissue_graph``."""
    from sacmil.plans.tissue_graph import make_tissue_graph  # scipy is slow to load

    return make_tissue_graph(coords, features, neighbours=neighbours)


_PLANNERS: Mapping[str, Callable[..., Plan]] = {
    "nothing": plan_nothing,
    "arrangement": plan_arrangement,
    "orders": plan_orders,
    "segments": plan_segments,
    "slots": plan_slots,
    "square": plan_square,
    "square_regions": plan_square_regions,
    "tissue_graph": plan_tissue_graph,
}
"""The card of a model names one of these, and nothing else is run."""
