"""The selective scan of Mamba (Gu and Dao 2023), in plain PyTorch or with kernels on a GPU.

Each channel d has ``state`` numbers s that decay and receive its input:

    s_t = exp(dt_t A) * s_{t-1} + dt_t u_t B_t        y_t = C_t . s_t        s_0 = 0

The sequence is split into chunks. Decays and states exist for one chunk at a time. Only the state
at its start is saved, from which the backward pass recomputes the chunk. Decays are multiplied,
never divided: dt A reaches -11 a step, and the inverse of exp of a sum of such overflows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan
from torch.autograd.function import once_differentiable

from sacmil.kernels import scan as kernel
from sacmil.kernels.config import can_run_kernels


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
    u: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    recurrence: Recurrence | None = None,
) -> Tensor:
    """Return y (N, channels), in float32 at least.

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
            return _scan_by_kernels(_ScanInputs(*inputs))
        recurrence = recurrence or (DOUBLING if u.is_cuda else STEPS)
        y: Tensor = _SelectiveScan.apply(recurrence, *inputs)  # type: ignore[no-untyped-call]
    return y


def _scan_by_kernels(inputs: _ScanInputs) -> Tensor:
    dense = (tensor.contiguous() for tensor in inputs)
    y: Tensor = _KernelScan.apply(*dense)  # type: ignore[no-untyped-call]
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
    chunks = list(_split_chunks(len(y), recurrence.chunk))
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
    for number, rows in reversed(list(enumerate(_split_chunks(len(dy), recurrence.chunk)))):
        decay, states = _compute_states(inputs, rows, starts[number], recurrence, buffers)
        g = gradients[: len(states)]  # of the states
        torch.mul(dy[rows, None], inputs.C[rows, :, None], out=g)
        g[-1].add_(later)
        recurrence.retreat(decay, g)
        later = decay[0] * g[0]
        grads.C[rows] = torch.bmm(states, dy[rows, :, None])[..., 0]
        _accumulate_gradients(
            grads, inputs, rows, g, _compute_exponent_gradients(decay, states, g, starts[number])
        )
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


def _split_chunks(length: int, chunk: int) -> Iterator[slice]:
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
