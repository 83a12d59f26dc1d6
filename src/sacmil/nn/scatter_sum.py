"""Rows added up by whom they belong to."""

from __future__ import annotations

from torch import Tensor


def scatter_sum(owner: Tensor, rows: Tensor, owners: int) -> Tensor:
    """(owners, …): the sum of the rows of each.

    Not by index_add: exported, that becomes a node whose threads, in onnxruntime, lose sums where
    rows have the same owner.

    Args:
        owner: (N,), whose each row is.
        rows: (N, …).
        owners: how many there are.
    """
    index = owner.reshape(-1, *[1] * (rows.dim() - 1)).expand_as(rows)
    return rows.new_zeros(owners, *rows.shape[1:]).scatter_add(0, index, rows)
