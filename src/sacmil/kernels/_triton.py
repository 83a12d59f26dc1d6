"""The Triton kernels of SAC-MIL: each reads its rows once and puts them where they belong.

Rows and columns are instances and channels. A fold is ``D / K`` channels, and what the model calls
a ring is ``size`` instances from ``start`` on: fold f of row i belongs to the row f steps onward in
its ring. Lengths are plain arguments, never specialised: a new length compiles nothing.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

LENGTHS = ["n", "ring", "step", "absorbed"]
"""Arguments whose values must not choose a kernel."""


@triton.jit
def _onward(rows, folds, n, ring, step, absorbed):
    """(rows, columns): where each fold of each row belongs."""
    whole = tl.maximum((n // ring - absorbed) * ring, 0)
    start = tl.minimum(rows // ring * ring, whole)
    size = tl.where(n - start < (1 + absorbed) * ring, tl.maximum(n - start, 1), ring)
    onward = (rows - start)[:, None] + folds[None, :] * step
    return start[:, None] + onward % size[:, None]


@triton.jit
def _unit(x, inside, eps, D: tl.constexpr):
    """Rows of mean 0 and variance 1, and what they were multiplied by, (rows, 1)."""
    centred = tl.where(inside, x - tl.sum(x, 1)[:, None] / D, 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / D + eps)[:, None]
    return centred * scale, scale


@triton.jit(do_not_specialize=LENGTHS)
def norm_shift(
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    n,
    ring,
    step,
    absorbed,
    eps,
    D: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """y = shift(LN(x))."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = (rows < n)[:, None] & (columns < D)[None, :]
    here = rows.to(tl.int64)[:, None] * D + columns[None, :]
    x = tl.load(x_ptr + here, inside, other=0.0).to(tl.float32)
    unit, _ = _unit(x, inside, eps, D)
    weight = tl.load(weight_ptr + columns, columns < D, other=0.0).to(tl.float32)[None, :]
    bias = tl.load(bias_ptr + columns, columns < D, other=0.0).to(tl.float32)[None, :]
    there = _onward(rows, columns // (D // K), n, ring, step, absorbed)
    there = there.to(tl.int64) * D + columns[None, :]
    tl.store(y_ptr + there, unit * weight + bias, inside)


@triton.jit(do_not_specialize=LENGTHS)
def norm_shift_backward(
    x_ptr,
    weight_ptr,
    bias_ptr,
    grad_y_ptr,
    grad_out_ptr,
    y_ptr,
    grad_x_ptr,
    grad_weight_ptr,
    grad_bias_ptr,
    n,
    ring,
    step,
    absorbed,
    eps,
    D: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Of x + f(y), y = shift(LN(x)): the gradient of x, y again, sums for weight and bias."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = (rows < n)[:, None] & (columns < D)[None, :]
    here = rows.to(tl.int64)[:, None] * D + columns[None, :]
    there = _onward(rows, columns // (D // K), n, ring, step, absorbed)
    there = there.to(tl.int64) * D + columns[None, :]
    x = tl.load(x_ptr + here, inside, other=0.0).to(tl.float32)
    unit, scale = _unit(x, inside, eps, D)
    weight = tl.load(weight_ptr + columns, columns < D, other=0.0).to(tl.float32)[None, :]
    bias = tl.load(bias_ptr + columns, columns < D, other=0.0).to(tl.float32)[None, :]
    tl.store(y_ptr + there, unit * weight + bias, inside)
    grad_y = tl.load(grad_y_ptr + there, inside, other=0.0).to(tl.float32)
    sums = tl.program_id(0) * D + columns
    tl.store(grad_weight_ptr + sums, tl.sum(grad_y * unit, 0), columns < D)
    tl.store(grad_bias_ptr + sums, tl.sum(grad_y, 0), columns < D)
    grad = grad_y * weight
    along = tl.sum(grad * unit, 1)[:, None] / D
    grad = (grad - tl.sum(grad, 1)[:, None] / D - unit * along) * scale
    grad += tl.load(grad_out_ptr + here, inside, other=0.0).to(tl.float32)
    tl.store(grad_x_ptr + here, grad, inside)


@triton.jit
def _normal(u):
    """The normal distribution's function, of which GELU is u times."""
    return 0.5 + 0.5 * tl.math.erf(u * 0.7071067811865476)


@triton.jit(do_not_specialize=LENGTHS)
def gelu_unshift(
    u_ptr,
    v_ptr,
    n,
    ring,
    step,
    absorbed,
    D: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """v = unshift(GELU(u))."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < n)[:, None] & (columns < D)[None, :]
    there = _onward(rows, columns // (D // K), n, ring, step, absorbed)
    u = tl.load(u_ptr + there.to(tl.int64) * D + columns[None, :], inside, other=0.0)
    u = u.to(tl.float32)
    tl.store(v_ptr + rows.to(tl.int64)[:, None] * D + columns[None, :], u * _normal(u), inside)


@triton.jit(do_not_specialize=LENGTHS)
def gelu_unshift_backward(
    u_ptr,
    grad_v_ptr,
    v_ptr,
    grad_u_ptr,
    grad_bias_ptr,
    n,
    ring,
    step,
    absorbed,
    D: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The gradient of u, v = unshift(GELU(u)) again, and sums for the bias that is part of u."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = (rows < n)[:, None] & (columns < D)[None, :]
    here = rows.to(tl.int64)[:, None] * D + columns[None, :]
    there = _onward(rows, columns // (D // K), n, ring, step, absorbed)
    there = there.to(tl.int64) * D + columns[None, :]
    u = tl.load(u_ptr + there, inside, other=0.0).to(tl.float32)
    grad = tl.load(grad_v_ptr + here, inside, other=0.0).to(tl.float32)
    normal = _normal(u)
    tl.store(v_ptr + here, u * normal, inside)
    grad = grad * (normal + u * tl.exp(-0.5 * u * u) * 0.3989422804014327)
    tl.store(grad_u_ptr + there, grad, inside)
    tl.store(grad_bias_ptr + tl.program_id(0) * D + columns, tl.sum(grad, 0), columns < D)


@triton.jit
def _turned(coords_ptr, theta_ptr, source, pairs, known, D: tl.constexpr):
    """(rows, pairs) cosines and sines of rho theta + alpha, Eq. (6) to (8) of the paper.

    The bounds of all coordinates stand before them, and theta holds the scale. Of rho theta, which
    float32 would blur, only what is beyond a quarter turn leaves float64; alpha is known by its
    cosine and sine.
    """
    low_x, low_y = tl.load(coords_ptr), tl.load(coords_ptr + 1)
    high_x, high_y = tl.load(coords_ptr + 2), tl.load(coords_ptr + 3)
    x = tl.load(coords_ptr + 4 + 2 * source, known, other=0.0) - low_x
    y = tl.load(coords_ptr + 5 + 2 * source, known, other=0.0) - low_y
    x = x / tl.where(high_x > low_x, high_x - low_x, 1.0)
    y = y / tl.where(high_y > low_y, high_y - low_y, 1.0)
    radius = tl.sqrt(x * x + y * y)
    away = radius > 0
    cos_alpha = tl.where(away, x / tl.where(away, radius, 1.0), 1.0).to(tl.float32)[:, None]
    sin_alpha = tl.where(away, y / tl.where(away, radius, 1.0), 0.0).to(tl.float32)[:, None]
    theta = tl.load(theta_ptr + pairs, pairs < D // 2, other=0.0)
    turns = radius[:, None] * theta[None, :] * 0.15915494309189535
    cos, sin = _cosine_and_sine(turns)
    return cos * cos_alpha - sin * sin_alpha, sin * cos_alpha + cos * sin_alpha


@triton.jit
def _cosine_and_sine(turns):
    """Of float64 turns, in float32: by their series, from the nearest quarter on."""
    quarters = tl.floor(turns * 4.0 + 0.5)
    x = ((turns - quarters * 0.25) * 6.283185307179586).to(tl.float32)
    y = x * x
    sin = x + x * y * (-1 / 6 + y * (1 / 120 + y * (-1 / 5040 + y * (1 / 362880))))
    cos = 1.0 + y * (-0.5 + y * (1 / 24 + y * (-1 / 720 + y * (1 / 40320 - y * (1 / 3628800)))))
    quarter = (quarters - 4.0 * tl.floor(quarters * 0.25)).to(tl.int32)
    odd = (quarter & 1) == 1
    c, s = tl.where(odd, sin, cos), tl.where(odd, cos, sin)
    return tl.where((quarter == 1) | (quarter == 2), -c, c), tl.where(quarter >= 2, -s, s)


@triton.jit(do_not_specialize=["n"])
def place(
    p_ptr,
    order_ptr,
    coords_ptr,
    theta_ptr,
    h_ptr,
    n,
    D: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """h = what stands at order in p, through a ReLU, each pair of channels turned."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    pairs = tl.program_id(1) * PAIRS + tl.arange(0, PAIRS)
    known = rows < n
    source = tl.load(order_ptr + rows, known, other=0)
    columns = tl.program_id(1) * 2 * PAIRS + tl.arange(0, 2 * PAIRS)
    inside = known[:, None] & (columns < D)[None, :]
    p = tl.load(p_ptr + source[:, None] * D + columns[None, :], inside, other=0.0).to(tl.float32)
    if RELU:
        p = tl.maximum(p, 0.0)
    a, b = tl.split(tl.reshape(p, (ROWS, PAIRS, 2)))
    cos, sin = _turned(coords_ptr, theta_ptr, source, pairs, known, D)
    h = tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (ROWS, 2 * PAIRS))
    tl.store(h_ptr + rows.to(tl.int64)[:, None] * D + columns[None, :], h, inside)


@triton.jit(do_not_specialize=["n"])
def place_backward(
    grad_h_ptr,
    p_ptr,
    order_ptr,
    coords_ptr,
    theta_ptr,
    grad_p_ptr,
    n,
    D: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """The gradient of p: turned back, and nothing where the ReLU gave nothing."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    pairs = tl.program_id(1) * PAIRS + tl.arange(0, PAIRS)
    known = rows < n
    source = tl.load(order_ptr + rows, known, other=0)
    columns = tl.program_id(1) * 2 * PAIRS + tl.arange(0, 2 * PAIRS)
    inside = known[:, None] & (columns < D)[None, :]
    here = rows.to(tl.int64)[:, None] * D + columns[None, :]
    grad = tl.load(grad_h_ptr + here, inside, other=0.0).to(tl.float32)
    a, b = tl.split(tl.reshape(grad, (ROWS, PAIRS, 2)))
    cos, sin = _turned(coords_ptr, theta_ptr, source, pairs, known, D)
    grad = tl.reshape(tl.join(a * cos + b * sin, b * cos - a * sin), (ROWS, 2 * PAIRS))
    there = source[:, None] * D + columns[None, :]
    if RELU:
        grad = tl.where(tl.load(p_ptr + there, inside, other=0.0) > 0, grad, 0.0)
    tl.store(grad_p_ptr + there, grad, inside)
