"""Fast paths of SAC-MIL: kernels on a GPU, chunks that fit in the cache on a CPU.

A SAC block is two matrix products and two fused passes: norm with shift, GELU with unshift.
Normed, shifted and activated rows exist only as operands of a product. Saved for the gradient are
the block's input, two statistics per row, and the first product.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from sacmil.kernels.config import (
    can_run_kernels,
    count_programs,
    is_enabled,
    launch,
    next_power_of_two,
    use_device_of,
)

MAX_CHANNELS = 4096
"""Channels of a row that one program can hold."""
MAX_PROGRAMS = 4096
"""Programs that sum over instances; their partial sums are added at the end."""
CPU_CHUNK_ROWS = 2048
"""Rows of a chunk on a CPU, or one ring if that is longer."""
GPU_CHUNK_ROWS = 262_144
"""Rows of a chunk for inference on a GPU, or one ring if that is longer."""
PROPE_ROWS, PROPE_PAIRS = 8, 128
"""Rows and pairs of channels per program."""


def dispatch_block(block: Any, x: Tensor) -> Tensor | None:
    """Apply a SACBlock with kernels on a GPU or in chunks on a CPU; None if neither supports it."""
    if supports_kernels(block, x):
        return correlate_with_kernels(block, x)
    return correlate_in_chunks(block, x) if supports_chunks(block, x) else None


# --- a block with kernels -------------------------------------------------------------------------


class FoldShift(NamedTuple):
    """How folds are shifted, as arguments of the kernels."""

    n: int
    ring: int
    step: int
    absorb: bool
    k: int

    @classmethod
    def for_block(cls, block: Any, n: int) -> FoldShift:
        """Return the shift of a SACBlock for a bag of n."""
        return cls.for_level(block.k, block.level, n, absorb=block.tail == "absorb")

    @classmethod
    def for_level(cls, k: int, level: int, n: int, *, absorb: bool = True) -> FoldShift:
        """Return the shift of a level for a bag of n; no ring is longer than the bag."""
        ring, step = k ** (level + 1), k**level
        if ring > n:
            ring, step = n + 1, step % n
        return cls(n, ring, step, absorb, k)

    def choose_program_sizes(self, dim: int, elements: int = 2048) -> dict[str, Any]:
        """Return the constants of a program that processes whole rows of about ``elements``."""
        folds, width = next_power_of_two(self.k), next_power_of_two(dim // self.k)
        rows = max(1, elements // (folds * width))
        model_sizes = {"D": dim, "K": self.k, "ABSORB": self.absorb}
        return model_sizes | {"ROWS": rows, "FOLDS": folds, "WIDTH": width}


def supports_kernels(block: Any, x: Tensor) -> bool:
    """Whether the kernels support a SACBlock with these options, and x."""
    dim = x.shape[1]
    return (
        has_standard_options(block, dim)
        and dim <= MAX_CHANNELS
        and _is_autocast_dtype(x)
        and can_run_kernels(x)
    )


def has_standard_options(block: Any, dim: int) -> bool:
    """Whether a SACBlock has the options that the fast paths support."""
    layers = isinstance(block.act, nn.GELU) and isinstance(block.decay, nn.Identity)
    return layers and block.residual and dim % block.k == 0


def _is_autocast_dtype(x: Tensor) -> bool:
    """Whether matrix products keep the dtype of x; autocast may change it."""
    device = x.device.type
    return not torch.is_autocast_enabled(device) or torch.get_autocast_dtype(device) == x.dtype


def correlate_with_kernels(block: Any, x: Tensor) -> Tensor:
    """Return x + W2 unshift(GELU(W1 shift(LN(x)))), with a SACBlock's parameters."""
    shift = FoldShift.for_block(block, len(x))
    with use_device_of(x):
        out: Tensor = _SACBlockFunction.apply(
            x, *get_parameters(block, x.dtype), block.norm.eps, shift
        )  # type: ignore[no-untyped-call]
    return out


def get_parameters(block: Any, dtype: torch.dtype) -> list[Tensor]:
    """Return weight and bias of the norm, of W1 and of W2."""
    layers = (block.norm, block.w1, block.w2)
    held = [each for layer in layers for each in (layer.weight, layer.bias)]
    return held if all(each.dtype == dtype for each in held) else [each.to(dtype) for each in held]


class _SACBlockFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *given: Any) -> Tensor:
        weight, bias, w1, b1, w2, b2, eps, shift = given
        x = x.contiguous()
        statistics = row_statistics(x, eps)
        u = torch.addmm(b1, norm_shift(x, statistics, weight, bias, shift), w1.t())
        ctx.save_for_backward(x, statistics, u, weight, bias, w1, w2)
        ctx.shift = shift
        return torch.addmm(b2, gelu_unshift(u, shift), w2.t()).add_(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_out: Tensor) -> tuple[Tensor | None, ...]:
        x, statistics, u, weight, bias, w1, w2 = ctx.saved_tensors
        shift, grad_out = ctx.shift, grad_out.contiguous()
        grad_w2 = grad_out.t() @ gelu_unshift(u, shift)
        grad_u, grad_b1 = gelu_unshift_backward(u, grad_out @ w2, shift)
        grad_w1 = grad_u.t() @ norm_shift(x, statistics, weight, bias, shift)
        grad_y = grad_u @ w1
        del grad_u
        grad_x, sums = norm_shift_backward(x, statistics, weight, grad_y, grad_out, shift)
        grad_weight, grad_bias, grad_b2 = sums
        return grad_x, grad_weight, grad_bias, grad_w1, grad_b1, grad_w2, grad_b2, None, None


def row_statistics(x: Tensor, eps: float, carried_bias: Tensor | None = None) -> Tensor:
    """Return mean and inverse deviation of each row of x, with the carried bias added.

    (N,), int64 that packs the two float32 values.
    """
    n, dim = x.shape
    statistics = x.new_empty(n, dtype=torch.int64)
    columns = next_power_of_two(dim)
    rows = max(1, 4096 // columns)
    sizes = {"D": dim, "CARRIED": carried_bias is not None, "ROWS": rows, "COLUMNS": columns}
    grid = (count_programs(n, rows),)
    launch("row_statistics", grid, (x, carried_bias, statistics), (n, eps), **sizes)
    return statistics


def norm_shift(
    x: Tensor,
    statistics: Tensor,
    weight: Tensor,
    bias: Tensor,
    shift: FoldShift,
    carried_bias: Tensor | None = None,
) -> Tensor:
    """Return shift(LN(x)), (N, D), with the carried bias added to x."""
    y, sizes = torch.empty_like(x), shift.choose_program_sizes(x.shape[1])
    tensors = (x, carried_bias, statistics, weight, bias, y)
    grid = (count_programs(shift.n, sizes["ROWS"]),)
    launch("norm_shift", grid, tensors, shift[:3], CARRIED=carried_bias is not None, **sizes)
    return y


def norm_shift_backward(
    x: Tensor,
    statistics: Tensor,
    weight: Tensor,
    grad_y: Tensor,
    grad_out: Tensor,
    shift: FoldShift,
) -> tuple[Tensor, Tensor]:
    """Return the gradient of x (with grad_out of the residual), and of weight, bias and output."""
    dim, grad_x = x.shape[1], torch.empty_like(x)
    sizes = shift.choose_program_sizes(dim, 1024)
    blocks = count_programs(shift.n, sizes["ROWS"])
    sums = x.new_empty(min(blocks, MAX_PROGRAMS), 3, dim, dtype=torch.float32)
    tensors = (x, statistics, weight, grad_y, grad_out, grad_x, sums)
    launch("norm_shift_backward", (len(sums),), tensors, (*shift[:3], blocks), **sizes)
    return grad_x, sums.sum(0).to(weight.dtype)


def gelu_unshift(u: Tensor, shift: FoldShift, out: Tensor | None = None) -> Tensor:
    """Return unshift(GELU(u)), (N, D)."""
    return _launch_move(u, shift, back=True, gelu=True, out=out)


def gelu_unshift_backward(u: Tensor, grad_v: Tensor, shift: FoldShift) -> tuple[Tensor, Tensor]:
    """Return the gradient of u, and its sum over instances."""
    grad_u, sizes = torch.empty_like(u), shift.choose_program_sizes(u.shape[1], 1024)
    blocks = count_programs(shift.n, sizes["ROWS"])
    sums = u.new_empty(min(blocks, MAX_PROGRAMS), u.shape[1], dtype=torch.float32)
    tensors = (u, grad_v, grad_u, sums)
    launch("gelu_unshift_backward", (len(sums),), tensors, (*shift[:3], blocks), **sizes)
    return grad_u, sums.sum(0).to(u.dtype)


# --- the shift by itself --------------------------------------------------------------------------


def see_region(block: Any, y: Tensor) -> Tensor | None:
    """Return unshift(W_v shift(y)) of a NearBlock; None where kernels do not support it."""
    widths = (y.shape[1], block.value.out_features)
    fits = all(width % block.k == 0 and width <= MAX_CHANNELS for width in widths)
    if not fits or not _is_autocast_dtype(y) or not can_run_kernels(y):
        return None
    shift = FoldShift.for_level(block.k, 0, len(y))
    with use_device_of(y):
        return move_folds(block.value(move_folds(y, shift)), shift, back=True)


def move_folds(x: Tensor, shift: FoldShift, *, back: bool = False) -> Tensor:
    """Return shift(x), or unshift(x)."""
    moved: Tensor = _MoveFolds.apply(x, shift, back)  # type: ignore[no-untyped-call]
    return moved


class _MoveFolds(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *given: Any) -> Tensor:
        ctx.shift, ctx.back = given
        return _launch_move(x, ctx.shift, back=ctx.back)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        return _launch_move(grad, ctx.shift, back=not ctx.back), None, None


def _launch_move(
    x: Tensor, shift: FoldShift, *, back: bool, gelu: bool = False, out: Tensor | None = None
) -> Tensor:
    x = x.contiguous()
    y, sizes = torch.empty_like(x) if out is None else out, shift.choose_program_sizes(x.shape[1])
    grid = (count_programs(shift.n, sizes["ROWS"]),)
    launch("move_folds", grid, (x, y), shift[:3], BACK=back, GELU=gelu, **sizes)
    return y


# --- a block on a CPU, without gradients ----------------------------------------------------------


def supports_chunks(block: Any, x: Tensor) -> bool:
    """Whether ``correlate_in_chunks`` supports a SACBlock with these options, and x."""
    on_cpu = x.device.type == "cpu" and not torch.is_autocast_enabled("cpu")
    is_inference = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
    return has_standard_options(block, x.shape[1]) and on_cpu and is_inference and is_enabled()


def correlate_in_chunks(block: Any, x: Tensor) -> Tensor:
    """Return what ``correlate_with_kernels`` does, a few rings at a time, in reused buffers.

    The plain path writes intermediate results for the whole bag. Here they are written for a chunk
    that fits in the CPU's cache. All chunks share the indices that gather the folds.
    """
    out = x.clone(memory_format=torch.contiguous_format)
    buffers: dict[int, _ChunkBuffers] = {}
    for rows in split_at_rings(len(x), block.k ** (block.level + 1), CPU_CHUNK_ROWS):
        length = rows.stop - rows.start
        if length not in buffers:
            buffers = {length: _ChunkBuffers(block, x, length)}
        buffers[length].add_block_output(out[rows])
    return out


def split_at_rings(n: int, ring: int, chunk_rows: int) -> Iterator[slice]:
    """Yield chunks of a bag, each of whole rings; the last includes the remainder."""
    step = max(1, chunk_rows // ring) * ring
    starts = range(0, max(n - step, 0) + 1, step)
    for start in starts:
        yield slice(start, n if start == starts[-1] else start + step)


class _ChunkBuffers:
    """Indices and buffers for chunks of one length.

    Args:
        block: a SACBlock.
        x: gives dtype and width of the chunks.
        length: of a chunk.
    """

    def __init__(self, block: Any, x: Tensor, length: int) -> None:
        self.block = block
        shift = FoldShift.for_block(block, length)
        self.shift_rows = make_gather_indices(shift, forward=False)
        self.unshift_rows = make_gather_indices(shift, forward=True)
        self.first_buffer, self.second_buffer = x.new_empty(2, length, x.shape[1])

    def add_block_output(self, x: Tensor) -> None:
        """Add the output of the block to a chunk."""
        norm, w1, w2 = self.block.norm, self.block.w1, self.block.w2
        self._gather_folds(self.shift_rows, norm(x), self.first_buffer)
        torch.addmm(w1.bias, self.first_buffer, w1.weight.t(), out=self.second_buffer)
        torch.ops.aten.gelu_(self.second_buffer)
        self._gather_folds(self.unshift_rows, self.second_buffer, self.first_buffer)
        x.add_(torch.addmm(w2.bias, self.first_buffer, w2.weight.t(), out=self.second_buffer))

    def _gather_folds(self, rows: Tensor, x: Tensor, out: Tensor) -> None:
        width = x.shape[1] // self.block.k
        torch.index_select(x.view(-1, width), 0, rows, out=out.view(-1, width))


def make_gather_indices(shift: FoldShift, *, forward: bool) -> Tensor:
    """Return the source row of each fold, (N k,), shifted forward or backward."""
    small = shift.n * shift.k < 2**31
    i = torch.arange(shift.n, dtype=torch.int32 if small else torch.int64)[:, None]
    folds = torch.arange(shift.k, dtype=i.dtype)
    absorbed = 1 if shift.absorb else 0
    last = max(shift.n // shift.ring - absorbed, 0) * shift.ring
    start = (i // shift.ring * shift.ring).clamp(max=last)
    left = shift.n - start
    size = torch.where(left < (1 + absorbed) * shift.ring, left, shift.ring)
    distance = folds * shift.step
    source = (i - start + (distance if forward else -distance)).remainder(size)
    return ((start + source) * shift.k + folds).flatten()


# --- all blocks, without gradients ----------------------------------------------------------------


def correlate_and_pool(blocks: Any, h: Tensor, order: Tensor) -> tuple[Tensor, Tensor] | None:
    """Apply SAC blocks without gradients and pool; None if there is no fast path.

    Returns the mean (D,) of the instances, and their norms (N,) in the order of the bag. Blocks
    update the rows in place. The last bias of a block is the same for all rows: it is not added to
    each row but carried along.

    Args:
        blocks: applied in order.
        h: (N, D), in arranged order; may be overwritten.
        order: index of the first, second, … instance.
    """
    if torch.is_grad_enabled() or not can_run_kernels(h):
        return None
    if not all(hasattr(block, "w1") and supports_kernels(block, h) for block in blocks):
        return None
    h = h.contiguous()
    carried: Tensor | None = None
    with use_device_of(h):
        for block in blocks:
            given = get_parameters(block, h.dtype)
            for rows in split_at_rings(len(h), block.k ** (block.level + 1), GPU_CHUNK_ROWS):
                _add_block_output(block, given, h[rows], carried)
            carried = given[5].float() if carried is None else carried + given[5]
        return _reduce_rows(h, carried, order)


def _add_block_output(
    block: Any, parameters: list[Tensor], x: Tensor, carried_bias: Tensor | None
) -> None:
    """Add the output of the block to x, without its last bias."""
    weight, bias, w1, b1, w2, _ = parameters
    shift = FoldShift.for_block(block, len(x))
    statistics = row_statistics(x, block.norm.eps, carried_bias)
    y = norm_shift(x, statistics, weight, bias, shift, carried_bias)
    u = torch.addmm(b1, y, w1.t())
    x.addmm_(gelu_unshift(u, shift, out=y), w2.t())


def _reduce_rows(h: Tensor, carried_bias: Tensor | None, order: Tensor) -> tuple[Tensor, Tensor]:
    n, dim = h.shape
    carried_bias = h.new_zeros(dim, dtype=torch.float32) if carried_bias is None else carried_bias
    columns = next_power_of_two(dim)
    rows = max(1, 8192 // columns)
    blocks = count_programs(n, rows)
    norms = torch.empty_like(h[:, 0])
    sums = h.new_empty(min(blocks, MAX_PROGRAMS), dim, dtype=torch.float32)
    tensors = (h, carried_bias, order, norms, sums)
    launch("norms_and_mean", (len(sums),), tensors, (n, blocks), D=dim, ROWS=rows, COLUMNS=columns)
    return sums.sum(0).to(h.dtype), norms


# --- PROPE in one pass: reorder the rows, apply the ReLU, rotate ----------------------------------


def supports_prope(project: nn.Sequential, features: Tensor) -> bool:
    """Whether a fast path exists for a linear layer with this activation."""
    return isinstance(project[1], nn.ReLU | nn.Identity) and can_run_kernels(features)


def project_and_rotate(
    project: nn.Sequential, features: Tensor, order: Tensor, coords: Tensor, scale: float
) -> Tensor:
    """Return projected features in arranged order, rotated by PROPE, (N, dim).

    Args:
        project: a linear layer and its activation.
        features: (N, …), in the order of the bag.
        order: index of the first, second, … instance, (N,).
        coords: (N, 2), in the order of the bag.
        scale: of PROPE.
    """
    c = coords.double().contiguous()
    relu = isinstance(project[1], nn.ReLU)
    with use_device_of(features):
        p = project[0](features)
        theta = _get_theta(p.shape[1] // 2, scale, c.device)
        rotated: Tensor = _PROPEFunction.apply(p, order, c, *c.aminmax(dim=0), theta, relu)  # type: ignore[no-untyped-call]
    return rotated


def _get_theta(pairs: int, scale: float, device: torch.device) -> Tensor:
    """Return Eq. (4) of the paper times the scale; cached, except while a CUDA graph is captured:
    the memory of a graph is freed with it."""
    capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    return (_make_theta if capturing else _cached_theta)(pairs, scale, device)


def _make_theta(pairs: int, scale: float, device: torch.device) -> Tensor:
    last = -4 * (pairs - 1) / pairs
    with torch.inference_mode(mode=False):  # the cached tensor may be used with autograd later
        return scale * torch.logspace(0, last, pairs, dtype=torch.float64, device=device)


_cached_theta = lru_cache(maxsize=16)(_make_theta)


class _PROPEFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, p: Tensor, *given: Any) -> Tensor:
        p = p.contiguous()
        *tensors, ctx.relu = given
        ctx.save_for_backward(p, *tensors)
        h, grid, sizes = torch.empty_like(p), *_choose_launch_sizes(p)
        launch("prope", grid, (p, *tensors, h), (len(p),), RELU=ctx.relu, **sizes)
        return h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h: Tensor) -> tuple[Tensor | None, ...]:
        p, *tensors = ctx.saved_tensors
        grad_p, grid, sizes = torch.empty_like(p), *_choose_launch_sizes(p)
        given = (grad_h.contiguous(), p, *tensors, grad_p)
        launch("prope_backward", grid, given, (len(p),), RELU=ctx.relu, **sizes)
        return grad_p, None, None, None, None, None, None


def _choose_launch_sizes(p: Tensor) -> tuple[tuple[int, int], dict[str, int]]:
    n, dim = p.shape
    pairs = min(PROPE_PAIRS, next_power_of_two(dim // 2))
    grid = (count_programs(n, PROPE_ROWS), count_programs(dim, 2 * pairs))
    return grid, {"D": dim, "ROWS": PROPE_ROWS, "PAIRS": pairs}
