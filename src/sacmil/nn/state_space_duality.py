"""The scan of Mamba-2 (Dao and Gu 2024) as matrix products, chunk by chunk.

Each head keeps a matrix S of head_dim x state numbers, which all decay alike:

    S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T        y_t = S_t C_t        S_0 = 0

Within a chunk y = ((C B^T) o L)(dt x), where L_ij = exp(sum of dt A over j < k <= i). Earlier
chunks enter through the state at its start.
"""

from __future__ import annotations

import torch
from torch import Tensor

CHUNK = 64
"""Steps of a chunk. Longer chunks have quadratically more decays, but fewer states to pass on."""


def state_space_duality(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *, chunk: int = CHUNK
) -> Tensor:
    """Return y (N, heads, head_dim), in float32 at least.

    Args:
        x: (N, heads, head_dim), the input.
        dt: (N, heads), positive step sizes; large ones forget, small ones keep.
        A: (heads,), negative.
        B: (N, state), how the input enters the state, the same for all heads.
        C: (N, state), how the state is read, the same for all heads.
        chunk: steps of a chunk; changes the run time, not the result.
    """
    dtype = torch.promote_types(dt.dtype, torch.float32)
    with torch.autocast(x.device.type, enabled=False):
        x, dt, A, B, C = (tensor.to(dtype) for tensor in (x, dt, A, B, C))
        if torch.compiler.is_compiling():  # neither a loop count nor min() can be exported
            return _scan_one_group(x * dt[..., None], dt * A, B, C, chunk)
        return _scan(x * dt[..., None], dt * A, B, C, min(chunk, len(x)))


def _scan(entering: Tensor, exponents: Tensor, B: Tensor, C: Tensor, chunk: int) -> Tensor:
    # Padded with zeros at the end: they add nothing, decay nothing, and are cut off again.
    chunks = [_split_chunks(tensor, chunk) for tensor in (entering, exponents, B, C)]
    state = _make_initial_state(entering, B)
    out = []
    # The gradient of split is one concatenation; that of a slice is as long as the bag.
    for group in zip(
        *(torch.split(tensor, _count_chunks_per_group(B)) for tensor in chunks), strict=True
    ):
        y, state = _scan_group(state, *group)
        out.append(y)
    return torch.cat(out).flatten(0, 1)[: len(B)]


def _scan_one_group(
    entering: Tensor, exponents: Tensor, B: Tensor, C: Tensor, chunk: int
) -> Tensor:
    """Do the same with all chunks in one group."""
    chunks = [_split_chunks(tensor, chunk) for tensor in (entering, exponents, B, C)]
    return _scan_group(_make_initial_state(entering, B), *chunks)[0].flatten(0, 1)[: B.shape[0]]


def _make_initial_state(entering: Tensor, B: Tensor) -> Tensor:
    """Return the state before the first step, (1, state, heads * head_dim)."""
    return B.new_zeros(1, B.shape[1], entering.shape[1] * entering.shape[2])


def _count_chunks_per_group(tensor: Tensor) -> int:
    """Return the chunks to compute at once: one fits a CPU's cache, many fill a GPU."""
    return 64 if tensor.is_cuda else 1


def _split_chunks(tensor: Tensor, chunk: int) -> Tensor:
    """Split (N, ...) into (chunks, chunk, ...)."""
    n = tensor.shape[0]  # an export takes len() as a constant, and does not support -n % chunk
    missing = (n + chunk - 1) // chunk * chunk - n
    padded = torch.cat((tensor, tensor.new_zeros(missing, *tensor.shape[1:])))
    return padded.view(-1, chunk, *tensor.shape[1:])


def _scan_group(
    state: Tensor, entering: Tensor, exponents: Tensor, B: Tensor, C: Tensor
) -> tuple[Tensor, Tensor]:
    """Return outputs of some chunks (G, Q, heads, head_dim), and the state after the last."""
    decay = _make_decay_matrix(exponents.transpose(1, 2))  # (G, heads, Q, Q)
    starts, state = _propagate_states(
        state, _compute_chunk_states(entering, decay, B), exponents.sum(1)
    )
    return _compute_outputs(starts, entering, exponents, decay, B, C), state


def _compute_chunk_states(entering: Tensor, decay: Tensor, B: Tensor) -> Tensor:
    """Return what each chunk adds to the state at its end, (G, state, heads * head_dim)."""
    until_the_end = decay[..., -1, :].transpose(1, 2)[..., None]  # (G, Q, heads, 1)
    return B.mT @ (entering * until_the_end).flatten(2)


def _compute_outputs(
    starts: Tensor, entering: Tensor, exponents: Tensor, decay: Tensor, B: Tensor, C: Tensor
) -> Tensor:
    """Return (G, Q, heads, head_dim), from the states at the chunks' starts and from inside."""
    mixing = (C @ B.mT)[:, None] * decay
    inside = mixing @ entering.transpose(1, 2)  # (G, heads, Q, head_dim)
    from_the_start = exponents.cumsum(1).exp()[..., None]  # (G, Q, heads, 1)
    before = (C @ starts).view_as(entering) * from_the_start
    return before + inside.transpose(1, 2)


def _make_decay_matrix(exponents: Tensor) -> Tensor:
    """Return exp(sum over j < k <= i), (..., Q, Q), zero for j > i; exponents are (..., Q).

    Each sum is computed directly: differences of longer sums would lose digits.
    """
    steps = exponents.shape[-1]
    ones = torch.ones(steps, steps, dtype=torch.bool, device=exponents.device)
    summands = exponents[..., :, None].expand(*exponents.shape, steps)
    sums = summands.masked_fill(~ones.tril(-1), 0).cumsum(-2)
    return sums.masked_fill(~ones.tril(), -torch.inf).exp()


def _propagate_states(
    state: Tensor, chunk_states: Tensor, exponents: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the state before each chunk, (G, state, heads * head_dim), and after the last.

    Uses a matrix of the decays between chunks: a loop would keep a GPU waiting.

    Args:
        state: (1, state, heads * head_dim), before the first.
        chunk_states: (G, state, heads * head_dim), what each chunk adds.
        exponents: (G, heads), the decay of earlier states over each chunk.
    """
    heads = exponents.shape[1]
    if not torch.compiler.is_compiling() and len(chunk_states) == 1:
        decayed = exponents.exp()[:, None, :, None] * state.reshape(*state.shape[:2], heads, -1)
        return state, chunk_states + decayed.flatten(2)
    exponents = torch.cat((exponents.new_zeros(1, heads), exponents))
    decay = _make_decay_matrix(exponents.T)  # (heads, G+1, G+1)
    states = torch.cat((state, chunk_states))
    by_head = states.reshape(*states.shape[:2], heads, -1).permute(2, 0, 1, 3)
    after = (decay @ by_head.flatten(2)).reshape(by_head.shape).permute(1, 2, 0, 3).flatten(2)
    return after[:-1], after[-1:]
