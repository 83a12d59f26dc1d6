"""Experiments, kept or dropped by what benchmarks.parts says of them beside sacmil.kernels.

Products in Triton whose results go straight to where they belong; and passes over whole rings only,
which move rows among themselves inside a program.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from sacmil.kernels._triton import LENGTHS, _normal


@triton.jit
def _sums(a_ptr, w_ptr, rows, columns, n, D: tl.constexpr, DEPTH: tl.constexpr):
    """(rows, columns) of a wᵀ; both are D wide."""
    depth = tl.arange(0, DEPTH)
    a_ptrs = a_ptr + rows.to(tl.int64)[:, None] * D + depth[None, :]
    w_ptrs = w_ptr + columns[:, None] * D + depth[None, :]
    sums = tl.zeros((rows.shape[0], columns.shape[0]), tl.float32)
    for _ in range(0, D, DEPTH):
        a = tl.load(a_ptrs, (rows < n)[:, None], other=0.0)
        sums = tl.dot(a, tl.load(w_ptrs).T, sums)
        a_ptrs += DEPTH
        w_ptrs += DEPTH
    return sums


@triton.jit
def _back(rows, folds, n, ring, step, absorbed):
    """(rows, columns): where each fold of each row came from."""
    whole = tl.maximum((n // ring - absorbed) * ring, 0)
    start = tl.minimum(rows // ring * ring, whole)
    size = tl.where(n - start < (1 + absorbed) * ring, tl.maximum(n - start, 1), ring)[:, None]
    back = (folds[None, :] * step) % size
    return start[:, None] + ((rows - start)[:, None] + size - back) % size


@triton.jit(do_not_specialize=LENGTHS)
def product_gelu_unshift(
    y_ptr,
    w_ptr,
    b_ptr,
    u_ptr,
    v_ptr,
    n,
    ring,
    step,
    absorbed,
    D: tl.constexpr,
    K: tl.constexpr,
    KEEP: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """v = unshift(GELU(u)), u = y wᵀ + b, which is kept where it is needed."""
    across: tl.constexpr = D // COLUMNS
    rows = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    u = _sums(y_ptr, w_ptr, rows, columns, n, D, DEPTH)
    u += tl.load(b_ptr + columns).to(tl.float32)[None, :]
    inside = (rows < n)[:, None] & (columns < D)[None, :]
    if KEEP:
        here = rows.to(tl.int64)[:, None] * D + columns[None, :]
        tl.store(u_ptr + here, u, inside)
    there = _back(rows, columns // (D // K), n, ring, step, absorbed)
    there = there.to(tl.int64) * D + columns[None, :]
    u = u.to(v_ptr.dtype.element_ty).to(tl.float32)
    tl.store(v_ptr + there, u * _normal(u), inside)


@triton.jit(do_not_specialize=["n"])
def product_residual(
    v_ptr,
    w_ptr,
    b_ptr,
    x_ptr,
    out_ptr,
    n,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
):
    """out = x + v wᵀ + b; out may be x."""
    across: tl.constexpr = D // COLUMNS
    rows = tl.program_id(0) // across * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(0) % across * COLUMNS + tl.arange(0, COLUMNS)
    sums = _sums(v_ptr, w_ptr, rows, columns, n, D, DEPTH)
    sums += tl.load(b_ptr + columns).to(tl.float32)[None, :]
    here = rows.to(tl.int64)[:, None] * D + columns[None, :]
    inside = (rows < n)[:, None] & (columns < D)[None, :]
    sums += tl.load(x_ptr + here, inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + here, sums, inside)


@triton.jit
def _members(step, D: tl.constexpr, K: tl.constexpr, columns):
    """(K, columns): where the rows stand that a shift moves among themselves."""
    group = tl.program_id(0)
    rows = group // step * (step * K) + group % step + tl.arange(0, K) * step
    return rows.to(tl.int64)[:, None] * D + columns[None, :]


@triton.jit(do_not_specialize=["step"])
def norm_shift_whole(
    x_ptr, weight_ptr, bias_ptr, y_ptr, step, eps, D: tl.constexpr, K: tl.constexpr
):
    """y = shift(LN(x)), all rings whole."""
    columns = tl.arange(0, D)
    here = _members(step, D, K, columns)
    x = tl.load(x_ptr + here).to(tl.float32)
    centred = x - tl.sum(x, 1)[:, None] / D
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / D + eps)
    weight = tl.load(weight_ptr + columns).to(tl.float32)[None, :]
    bias = tl.load(bias_ptr + columns).to(tl.float32)[None, :]
    y = (centred * scale[:, None] * weight + bias).to(y_ptr.dtype.element_ty)
    source = (tl.arange(0, K)[:, None] + K - (columns // (D // K))[None, :]) % K
    tl.store(y_ptr + here, tl.gather(y, source, 0))


@triton.jit(do_not_specialize=["step"])
def gelu_unshift_whole(u_ptr, v_ptr, step, D: tl.constexpr, K: tl.constexpr, COLUMNS: tl.constexpr):
    """v = unshift(GELU(u)), all rings whole."""
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    here = _members(step, D, K, columns)
    u = tl.load(u_ptr + here).to(tl.float32)
    v = (u * _normal(u)).to(v_ptr.dtype.element_ty)
    source = (tl.arange(0, K)[:, None] + (columns // (D // K))[None, :]) % K
    tl.store(v_ptr + here, tl.gather(v, source, 0))
