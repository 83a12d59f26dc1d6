"""The scan of Mamba-2 (Dao and Gu 2024) as matrix products, chunk by chunk.

Each head keeps a matrix S of head_dim x state numbers, which all decay alike:

    S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T        y_t = S_t C_t        S_0 = 0

Within a chunk y = ((C B^T) o L)(dt x), where L_ij = exp(sum of dt A over j < k <= i); what came
before the chunk arrives through the state at its start.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

CHUNK = 64
"""Steps of a chunk: its decays grow as the square, the states to hand over become fewer."""


def state_space_duality(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *, chunk: int = CHUNK
) -> Tensor:
    """y (N, heads, head_dim), in float32 at least.

    Args:
        x: (N, heads, head_dim), the input.
        dt: (N, heads), positive; large forgets, small keeps.
        A: (heads,), negative.
        B: (N, state), how the input enters the state, the same for all heads.
        C: (N, state), how the state is read, the same for all heads.
        chunk: steps of a chunk; changes the time taken, not the result.
    """
    dtype = torch.promote_types(dt.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        x, dt, A, B, C = (tensor.to(dtype) for tensor in (x, dt, A, B, C))
        return _scan(x * dt[..., None], dt * A, B, C, min(chunk, len(x)))


def _scan(entering: Tensor, exponents: Tensor, B: Tensor, C: Tensor, chunk: int) -> Tensor:
    # Zeros at the end: they enter nothing, decay nothing, and are cut off again.
    parts = [_chunks(tensor, chunk) for tensor in (entering, exponents, B, C)]
    state = B.new_zeros(B.shape[1], *entering.shape[1:])  # (state, heads, head_dim)
    out = []
    # split, whose gradient is one concatenation; that of a slice is as long as the bag.
    for group in zip(*(torch.split(part, _at_once(B)) for part in parts), strict=True):
        y, state = _group(state, *group)
        out.append(y)
    return torch.cat(out).flatten(0, 1)[: len(B)]


def _at_once(tensor: Tensor) -> int:
    """Chunks to compute together: one fits a processor's cache, many fill a graphics card."""
    return 64 if tensor.is_cuda else 1


def _chunks(tensor: Tensor, chunk: int) -> Tensor:
    """(N, ...) to (chunks, chunk, ...)."""
    missing = -len(tensor) % chunk
    padded = F.pad(tensor, (0, 0) * (tensor.ndim - 1) + (0, missing)) if missing else tensor
    return padded.view(-1, chunk, *tensor.shape[1:])


def _group(
    state: Tensor, entering: Tensor, exponents: Tensor, B: Tensor, C: Tensor
) -> tuple[Tensor, Tensor]:
    """Outputs of some chunks (G, Q, heads, head_dim), and the state after the last of them."""
    decay = _decays(exponents.transpose(1, 2))  # (G, heads, Q, Q)
    mixing = (C @ B.mT)[:, None] * decay
    inside = mixing @ entering.transpose(1, 2)  # (G, heads, Q, head_dim)
    until_the_end = decay[..., -1, :].transpose(1, 2)[..., None]  # (G, Q, heads, 1)
    added = B.mT @ (entering * until_the_end).flatten(2)  # (G, state, heads * head_dim)
    starts, state = _handed_over(state, added, exponents.sum(1).exp())
    from_the_start = exponents.cumsum(1).exp()[..., None]  # (G, Q, heads, 1)
    before = (C @ starts.flatten(2)).view_as(entering) * from_the_start
    return before + inside.transpose(1, 2), state


def _decays(exponents: Tensor) -> Tensor:
    """exp(sum over j < k <= i), (..., Q, Q), zero for j > i; exponents are (..., Q).

    Sums are made of what is summed, not as differences of longer sums, which would lose digits.
    """
    steps = exponents.shape[-1]
    ones = torch.ones(steps, steps, dtype=torch.bool, device=exponents.device)
    summands = exponents[..., :, None].expand(*exponents.shape, steps)
    sums = summands.masked_fill(~ones.tril(-1), 0).cumsum(-2)
    return sums.masked_fill(~ones.tril(), -torch.inf).exp()


def _handed_over(state: Tensor, added: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
    """The state at the start of each chunk (G, state, heads, head_dim), and after the last."""
    starts = []
    for more, share in zip(added.unbind(), kept.unbind(), strict=True):
        starts.append(state)
        state = state * share[:, None] + more.view_as(state)
    return torch.stack(starts), state
