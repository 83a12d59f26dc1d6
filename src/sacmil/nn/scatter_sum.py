"""Sums of rows by group."""

from __future__ import annotations

from torch import Tensor


def scatter_sum(owner: Tensor, rows: Tensor, owners: int) -> Tensor:
    """Return the sum of the rows of each owner, (owners, …).

    index_add is not used: onnxruntime runs its exported node in threads that lose sums of rows
    with the same owner.

    Args:
        owner: (N,), the owner of each row.
        rows: (N, …).
        owners: number of owners.
    """
    index = owner.reshape(-1, *[1] * (rows.dim() - 1)).expand_as(rows)
    return rows.new_zeros(owners, *rows.shape[1:]).scatter_add(0, index, rows)
