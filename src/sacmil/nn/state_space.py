"""State space models in plain PyTorch: the selective scan of Mamba (Gu and Dao 2023), which has
kernels on a GPU, and the scan of Mamba-2 (Dao and Gu 2024) as matrix products."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch._higher_order_ops.scan import scan
from torch.autograd.function import once_differentiable

from sacmil.kernels import scan as kernel
from sacmil.kernels.config import can_run_kernels


class CausalConvolution(nn.Conv1d):
    """Each channel sees its own last few values; the sequence is padded with zeros in front.

    Args:
        channels: width of the sequence.
        taps: values an output sees, including that at its own position.
    """

    def __init__(self, channels: int, taps: int = 4) -> None:
        super().__init__(channels, channels, taps, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels) to (N, channels)."""
        assert self.bias is not None
        # Shifted multiply-adds take less than half the time of a grouped conv1d on a CPU.
        now, *before = self.weight[:, 0].flip(1).T.contiguous()
        out = torch.addcmul(self.bias, x, now)
        if torch.compiler.is_compiling():  # works for bags shorter than the convolution too
            x = torch.cat((x.new_zeros(len(before), x.shape[1]), x))
            for lag, tap in enumerate(before, start=1):
                out = out + x[len(before) - lag :][: out.shape[0]] * tap
            return out
        for lag, tap in enumerate(before, start=1):
            out[lag:].addcmul_(x[:-lag], tap)
        return out


# --- the selective scan of Mamba ------------------------------------------------------------------


class Recurrence(NamedTuple):
    """How the states of a chunk follow from each other; a, s, g are (chunk, state, channels)."""

    chunk: int
    """Steps of a chunk."""
    advance: Callable[[Tensor, Tensor], None]
    """advance(a, s): s[t] += a[t] * s[t - 1] for t = 1, 2, ..., in place; a stays."""
    retreat: Callable[[Tensor, Tensor], None]
    """retreat(a, g): g[t] += a[t + 1] * g[t + 1] for t = last - 1, ..., in place; a stays."""


class _ScanInputs(NamedTuple):
    u: Tensor
    """(N, channels)"""
    dt: Tensor
    """(N, channels)"""
    A: Tensor
    """(state, channels): the longer axis last, as in all values computed from it."""
    B: Tensor
    """(N, state)"""
    C: Tensor
    """(N, state)"""


def selective_scan(
    u: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *, recurrence: Recurrence | None = None
) -> Tensor:
    """Return y (N, channels), in float32 at least.

    Each channel d has ``state`` numbers s that decay and receive its input:

        s_t = exp(dt_t A) * s_{t-1} + dt_t u_t B_t        y_t = C_t . s_t        s_0 = 0

    The sequence is split into chunks. Decays and states exist for one chunk at a time. Only the
    state at its start is saved, from which the backward pass recomputes the chunk. Decays are
    multiplied, never divided: dt A reaches -11 a step, and the inverse of exp of a sum of such
    overflows.

    Args:
        u: (N, channels), the input.
        dt: (N, channels), positive step sizes; large ones forget, small ones keep.
        A: (channels, state), negative.
        B: (N, state), how the input enters the state.
        C: (N, state), how the state is read.
        recurrence: how to compute a chunk; None chooses by device.
    """
    dtype = torch.promote_types(dt.dtype, torch.float32)
    with torch.autocast(u.device.type, enabled=False):
        inputs = [tensor.to(dtype) for tensor in (u, dt, A.T.contiguous(), B, C)]
        if torch.compiler.is_compiling():
            return _scan_for_export(_ScanInputs(*inputs))
        if recurrence is None and dtype == torch.float32 and can_run_kernels(u):
            inputs = [tensor.contiguous() for tensor in inputs]
            y: Tensor = _KernelScan.apply(*inputs)  # type: ignore[no-untyped-call]
        else:
            recurrence = recurrence or (DOUBLING if u.is_cuda else STEPS)
            y = _SelectiveScan.apply(recurrence, *inputs)  # type: ignore[no-untyped-call]
    return y


class _KernelScan(torch.autograd.Function):
    """The scan with kernels, which hold decays and states of a few steps and write none."""

    @staticmethod
    def forward(ctx: Any, *inputs: Tensor) -> Tensor:
        y, ends = kernel.scan_forward(*inputs)
        ctx.save_for_backward(*inputs, ends)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, ...]:
        *inputs, ends = ctx.saved_tensors
        return kernel.scan_backward(dy.contiguous(), ends, *inputs)


class _SelectiveScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, recurrence: Recurrence, *tensors: Tensor) -> Tensor:
        inputs = _ScanInputs(*tensors)
        y, starts = _scan_forward(inputs, recurrence)
        ctx.save_for_backward(*inputs, starts)
        ctx.recurrence = recurrence
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        *tensors, starts = ctx.saved_tensors
        return None, *_scan_backward(_ScanInputs(*tensors), starts, dy, ctx.recurrence)


def _scan_for_export(inputs: _ScanInputs) -> Tensor:
    """Scan step by step with ONNX's Scan, the only loop that an export does not unroll."""
    u, dt, A, B, C = inputs

    def step(state: Tensor, now: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
        entering, dt, b, c = now
        state = (dt * A).exp() * state + entering * b[:, None]
        return state, c @ state

    y: Tensor = scan(step, torch.zeros_like(A), (u * dt, dt, B, C))[1]
    return y


def _scan_forward(inputs: _ScanInputs, recurrence: Recurrence) -> tuple[Tensor, Tensor]:
    """Return the output, and the state before each chunk and after the last."""
    y = torch.empty_like(inputs.u, memory_format=torch.contiguous_format)
    chunks = list(_iter_chunks(len(y), recurrence.chunk))
    starts = inputs.A.new_zeros(len(chunks) + 1, *inputs.A.shape)
    buffers = _allocate_buffers(inputs, recurrence, 2)
    for number, rows in enumerate(chunks):
        _, states = _compute_states(inputs, rows, starts[number], recurrence, buffers)
        torch.bmm(inputs.C[rows, None], states, out=y[rows, None])
        starts[number + 1] = states[-1]
    return y, starts


def _scan_backward(
    inputs: _ScanInputs, starts: Tensor, dy: Tensor, recurrence: Recurrence
) -> tuple[Tensor, ...]:
    """Return gradients of u, dt, A, B, C, computed from the last chunk to the first."""
    grads = _ScanInputs(*(torch.zeros_like(tensor) for tensor in inputs))
    *buffers, gradients = _allocate_buffers(inputs, recurrence, 3)
    later = torch.zeros_like(inputs.A)  # gradient of the next chunk's start state
    for number, rows in reversed(list(enumerate(_iter_chunks(len(dy), recurrence.chunk)))):
        decay, states = _compute_states(inputs, rows, starts[number], recurrence, buffers)
        g = gradients[: len(states)]  # of the states
        torch.mul(dy[rows, None], inputs.C[rows, :, None], out=g)
        g[-1].add_(later)
        recurrence.retreat(decay, g)
        later = decay[0] * g[0]
        grads.C[rows] = torch.bmm(states, dy[rows, :, None])[..., 0]
        exponents = _compute_exponent_gradients(decay, states, g, starts[number])
        _accumulate_gradients(grads, inputs, rows, g, exponents)
    return tuple(grads)


def _accumulate_gradients(
    grads: _ScanInputs, inputs: _ScanInputs, rows: slice, g: Tensor, exponents: Tensor
) -> None:
    """Add a chunk's gradients, from those of its states and of its exponents dt A."""
    u, dt = inputs.u[rows], inputs.dt[rows]
    entered = torch.bmm(inputs.B[rows, None], g)[:, 0]  # gradient of dt u
    grads.B[rows] = torch.bmm(g, (dt * u)[..., None])[..., 0]
    grads.u[rows] = entered * dt
    torch.mul(exponents, inputs.A, out=g)
    grads.dt[rows] = torch.addcmul(g.sum(1), entered, u)
    torch.mul(exponents, dt[:, None], out=g)
    grads.A.add_(g.sum(0))


def _compute_exponent_gradients(decay: Tensor, states: Tensor, g: Tensor, start: Tensor) -> Tensor:
    """Return g_t * s_{t-1} * a_t, which overwrites the decays."""
    decay.mul_(g)
    decay[1:].mul_(states[:-1])
    decay[0].mul_(start)
    return decay


def _compute_states(
    inputs: _ScanInputs, rows: slice, start: Tensor, recurrence: Recurrence, buffers: list[Tensor]
) -> tuple[Tensor, Tensor]:
    """Compute decays and states of a chunk, (chunk, state, channels), in the buffers."""
    dt = inputs.dt[rows]
    decay, states = (buffer[: len(dt)] for buffer in buffers)
    torch.mul(dt[:, None], inputs.A, out=decay).exp_()
    torch.mul((dt * inputs.u[rows])[:, None], inputs.B[rows, :, None], out=states)
    states[0].addcmul_(decay[0], start)
    recurrence.advance(decay, states)
    return decay, states


def _allocate_buffers(inputs: _ScanInputs, recurrence: Recurrence, count: int) -> list[Tensor]:
    steps = min(len(inputs.u), recurrence.chunk)
    return [inputs.A.new_empty(steps, *inputs.A.shape) for _ in range(count)]


def _iter_chunks(length: int, chunk: int) -> Iterator[slice]:
    return (slice(start, min(start + chunk, length)) for start in range(0, length, chunk))


def _advance_by_steps(a: Tensor, s: Tensor) -> None:
    for factor, (before, now) in zip(a.unbind()[1:], pairwise(s.unbind()), strict=True):
        now.addcmul_(factor, before)


def _retreat_by_steps(a: Tensor, g: Tensor) -> None:
    pairs = list(zip(a.unbind()[1:], pairwise(g.unbind()), strict=True))
    for factor, (now, after) in reversed(pairs):
        now.addcmul_(factor, after)


def _advance_by_doubling(a: Tensor, s: Tensor) -> None:
    """Double ``reach`` in each pass, after which s[t] includes the last 2 reach steps."""
    reach, length = 1, len(s)
    while reach < length:
        s[reach:] += a[reach:] * s[:-reach]
        a = torch.cat((a[:reach], a[reach:] * a[:-reach]))
        reach *= 2


def _retreat_by_doubling(a: Tensor, g: Tensor) -> None:
    backwards = g.flip(0)
    _advance_by_doubling(a.flip(0).roll(1, 0), backwards)
    g.copy_(backwards.flip(0))


STEPS = Recurrence(32, _advance_by_steps, _retreat_by_steps)
"""One step after the other, over buffers that stay in a CPU's cache."""

DOUBLING = Recurrence(128, _advance_by_doubling, _retreat_by_doubling)
"""A few passes over the whole chunk, each reaching twice as far, for parallel devices. It only
multiplies factors up to one."""


# --- the scan of Mamba-2 --------------------------------------------------------------------------

CHUNK = 64
"""Steps of a chunk. Longer chunks have quadratically more decays, but fewer states to pass on."""


def state_space_duality(
    x: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, *, chunk: int = CHUNK
) -> Tensor:
    """Return y (N, heads, head_dim), in float32 at least.

    Each head keeps a matrix S of head_dim x state numbers, which all decay alike:

        S_t = exp(dt_t A) S_{t-1} + dt_t x_t B_t^T        y_t = S_t C_t        S_0 = 0

    Within a chunk y = ((C B^T) o L)(dt x), where L_ij = exp(sum of dt A over j < k <= i). Earlier
    chunks enter through the state at its start.

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
        if not torch.compiler.is_compiling():  # min() cannot be exported
            chunk = min(chunk, len(x))
        return _scan(x * dt[..., None], dt * A, B, C, chunk)


def _scan(entering: Tensor, exponents: Tensor, B: Tensor, C: Tensor, chunk: int) -> Tensor:
    # Padded with zeros at the end: they add nothing, decay nothing, and are cut off again.
    chunks = [_split_chunks(tensor, chunk) for tensor in (entering, exponents, B, C)]
    state = B.new_zeros(1, B.shape[1], entering.shape[1] * entering.shape[2])
    if torch.compiler.is_compiling():  # in one group: a loop count cannot be exported
        return _scan_group(state, *chunks)[0].flatten(0, 1)[: B.shape[0]]
    out = []
    # The gradient of split is one concatenation; that of a slice is as long as the bag.
    groups = (torch.split(tensor, _count_chunks_per_group(B)) for tensor in chunks)
    for group in zip(*groups, strict=True):
        y, state = _scan_group(state, *group)
        out.append(y)
    return torch.cat(out).flatten(0, 1)[: len(B)]


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
    added = _compute_chunk_states(entering, decay, B)
    starts, state = _propagate_states(state, added, exponents.sum(1))
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
