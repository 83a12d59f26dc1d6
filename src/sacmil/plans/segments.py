"""Which tokens meet in dilated attention: segments of a bag, every r-th token of each (LongNet)."""

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
    """For branch b: seen_b (attentions, tokens of one) and at_b (N,), as ``seen`` and ``at``.

    Tokens are counted with the class token, which stands first and is always found at 0; at_b
    leaves it out.

    Args:
        coords: (N, 2); only their number counts.
        features: not looked at.
        segments: lengths, one for each branch.
        dilations: of each branch, every how many tokens one is seen.
        legacy_placement: put rows of uneven segments where the official code does.
    """
    tokens, plan = len(coords) + 1, {}
    for branch, (segment, dilation) in enumerate(zip(segments, dilations, strict=True)):
        plan[f"seen_{branch}"] = list_attended_tokens(tokens, segment, dilation)
        found = find_token_rows(tokens, segment, dilation, legacy_placement=legacy_placement)
        plan[f"at_{branch}"] = found[1:]
    return plan


def list_attended_tokens(tokens: int, segment: int, dilation: int) -> Array:
    """(segments * dilation, T): tokens that meet; their number itself where one is missing.

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
    """(tokens,), where among all that are seen each token's own answer stands.

    The official code leaves the filling of each segment where it is, which moves the rows of every
    later segment.
    """
    width, length = _compute_segment_lengths(tokens, segment, dilation)
    home, offset = np.divmod(np.arange(tokens), length if legacy_placement else width)
    slot, group = np.divmod(offset, dilation)
    found: Array = (home * dilation + group) * (length // dilation) + slot
    return found


def _compute_segment_lengths(tokens: int, segment: int, dilation: int) -> tuple[int, int]:
    """How many tokens a segment has, and how many when filled up to whole groups."""
    width = min(segment, tokens)
    return width, -(-width // dilation) * dilation
