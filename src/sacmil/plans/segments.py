"""Tokens of dilated attention: segments of a bag, every r-th token of each (LongNet)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sacmil.plans._registry import Array, Plan


def make(
    coords: Array,
    features: Array | None = None,
    *,
    segments: Sequence[int],
    dilations: Sequence[int],
    legacy_placement: bool = False,
) -> Plan:
    """Return for branch b: seen_b (attentions, tokens per attention) and at_b (N,).

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
    return (
        token.reshape(-1, length // dilation, dilation)
        .swapaxes(1, 2)
        .reshape(-1, length // dilation)
    )


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
