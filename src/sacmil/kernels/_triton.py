"""The Triton kernels of SAC-MIL: each program writes its own rows and reads from their sources.

Rows are instances; their channels form K folds of ``D / K``. A ring of the model is ``size``
instances from ``start`` on. The shift takes fold f of a row from f steps back in its ring. Reads
are scattered, writes are not: caches help reads only. Lengths are plain arguments, never
specialised: a new length compiles nothing.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

LENGTH_ARGUMENTS = ["n", "ring", "step"]
"""Arguments whose values must not specialise a kernel."""


@triton.jit
def _ring_bounds(rows, n, ring, ABSORB: tl.constexpr):
    """Return start and size of the ring of each row."""
    absorbed: tl.constexpr = 1 if ABSORB else 0
    whole = tl.maximum((n // ring - absorbed) * ring, 0)
    start = tl.minimum(rows // ring * ring, whole)
    return start, tl.where(n - start < (1 + absorbed) * ring, tl.maximum(n - start, 1), ring)


@triton.jit
def _interleave_rows(turn, n, ring, step, K: tl.constexpr, ABSORB: tl.constexpr):
    """Return the row to process at each turn. In whole rings, K rows that exchange folds follow
    each other, so that a program finds its next reads in the cache."""
    start, size = _ring_bounds(turn, n, ring, ABSORB)
    within = turn - start
    return tl.where(size == ring, start + within % K * step + within // K, turn)


@triton.jit
def _shift_distances(rows, folds, n, ring, step, ABSORB: tl.constexpr):
    """Return how far each fold moves, (rows, folds), and start and size of its ring, (rows, 1)."""
    start, size = _ring_bounds(rows, n, ring, ABSORB)
    distance = ((folds.to(tl.int64) * step) % n).to(tl.int32)[None, :]
    if not ABSORB:  # the last ring may be shorter than the distance
        distance = distance % size[:, None]
    return distance, start[:, None], size[:, None]


@triton.jit
def _shift_sources(rows, folds, n, ring, step, ABSORB: tl.constexpr):
    """Return the rows that the folds of a shifted row come from, (rows, folds)."""
    distance, start, size = _shift_distances(rows, folds, n, ring, step, ABSORB)
    source = rows[:, None] - distance
    return tl.where(source < start, source + size, source)


@triton.jit
def _unshift_sources(rows, folds, n, ring, step, ABSORB: tl.constexpr):
    """Return the rows that the folds of an unshifted row come from, (rows, folds)."""
    distance, start, size = _shift_distances(rows, folds, n, ring, step, ABSORB)
    source = rows[:, None] + distance
    return tl.where(source >= start + size, source - size, source)


@triton.jit
def _channel_indices(D: tl.constexpr, K: tl.constexpr, FOLDS: tl.constexpr, WIDTH: tl.constexpr):
    """Return folds, channels (1, folds, width), and the mask of valid channels."""
    folds, within = tl.arange(0, FOLDS), tl.arange(0, WIDTH)
    channels = folds[:, None] * (D // K) + within[None, :]
    known = (folds < K)[:, None] & (within < D // K)[None, :]
    return folds, channels[None, :, :], known[None, :, :]


@triton.jit
def _element_offsets(rows, channels, D: tl.constexpr):
    """Return the offsets of channels in rows, which are (rows, folds) or (rows, 1)."""
    return rows.to(tl.int64)[:, :, None] * D + channels


@triton.jit
def _row_sum(x):
    """Sum over all channels of a row, (rows, 1, 1)."""
    return tl.sum(tl.sum(x, 2), 1)[:, None, None]


@triton.jit
def _pack_pair(mean, scale):
    """Pack two float32 of a row into one int64, which is read at once."""
    high = scale.to(tl.int32, bitcast=True).to(tl.int64) << 32
    return high | (mean.to(tl.int32, bitcast=True).to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def _unpack_pair(pair):
    """Return the two float32."""
    mean = pair.to(tl.int32).to(tl.float32, bitcast=True)
    return mean, (pair >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit(do_not_specialize=["n"])
def row_statistics(
    x_ptr,
    carried_ptr,
    statistics_ptr,
    n,
    eps,
    D: tl.constexpr,
    CARRIED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Compute mean and inverse deviation of each row of x, with the carried bias added."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = (rows < n)[:, None] & (columns < D)[None, :]
    x = tl.load(x_ptr + rows.to(tl.int64)[:, None] * D + columns[None, :], inside, other=0.0)
    x = x.to(tl.float32)
    if CARRIED:
        x += tl.load(carried_ptr + columns, columns < D, other=0.0)[None, :]
    mean = tl.sum(x, 1) / D
    centred = tl.where(inside, x - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, 1) / D + eps)
    tl.store(statistics_ptr + rows, _pack_pair(mean, scale), rows < n)


@triton.jit(do_not_specialize=LENGTH_ARGUMENTS)
def norm_shift(
    x_ptr,
    carried_ptr,
    statistics_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    n,
    ring,
    step,
    D: tl.constexpr,
    K: tl.constexpr,
    ABSORB: tl.constexpr,
    CARRIED: tl.constexpr,
    ROWS: tl.constexpr,
    FOLDS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """y = shift(LN(x))."""
    turn = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rows = _interleave_rows(turn, n, ring, step, K, ABSORB)
    folds, channels, known = _channel_indices(D, K, FOLDS, WIDTH)
    inside = (turn < n)[:, None] & (folds < K)[None, :]
    source = _shift_sources(rows, folds, n, ring, step, ABSORB)
    whole = inside[:, :, None] & known
    x = tl.load(x_ptr + _element_offsets(source, channels, D), whole, other=0.0).to(tl.float32)
    if CARRIED:
        x += tl.load(carried_ptr + channels, known, other=0.0)
    mean, scale = _unpack_pair(tl.load(statistics_ptr + source, inside, other=0)[:, :, None])
    weight = tl.load(weight_ptr + channels, known, other=0.0).to(tl.float32)
    bias = tl.load(bias_ptr + channels, known, other=0.0).to(tl.float32)
    y = (x - mean) * scale * weight + bias
    tl.store(y_ptr + _element_offsets(rows[:, None], channels, D), y, whole)


@triton.jit(do_not_specialize=[*LENGTH_ARGUMENTS, "blocks"])
def norm_shift_backward(
    x_ptr,
    statistics_ptr,
    weight_ptr,
    grad_y_ptr,
    grad_out_ptr,
    grad_x_ptr,
    sums_ptr,
    n,
    ring,
    step,
    blocks,
    D: tl.constexpr,
    K: tl.constexpr,
    ABSORB: tl.constexpr,
    ROWS: tl.constexpr,
    FOLDS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """For x + f(y), y = shift(LN(x)): the gradient of x; sums for weight, bias and output of f."""
    folds, channels, known = _channel_indices(D, K, FOLDS, WIDTH)
    weight = tl.load(weight_ptr + channels, known, other=0.0).to(tl.float32)
    for_weight = tl.zeros((1, FOLDS, WIDTH), tl.float32)
    for_bias = tl.zeros((1, FOLDS, WIDTH), tl.float32)
    for_out = tl.zeros((1, FOLDS, WIDTH), tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        turn = block * ROWS + tl.arange(0, ROWS)
        rows = _interleave_rows(turn, n, ring, step, K, ABSORB)
        inside = turn < n
        whole = inside[:, None, None] & known
        here = _element_offsets(rows[:, None], channels, D)
        x = tl.load(x_ptr + here, whole, other=0.0).to(tl.float32)
        mean, scale = _unpack_pair(tl.load(statistics_ptr + rows, inside, other=0)[:, None, None])
        unit = tl.where(whole, (x - mean) * scale, 0.0)
        there = _unshift_sources(rows, folds, n, ring, step, ABSORB)
        grad_y = tl.load(grad_y_ptr + _element_offsets(there, channels, D), whole, other=0.0).to(
            tl.float32
        )
        out = tl.load(grad_out_ptr + here, whole, other=0.0).to(tl.float32)
        for_weight += tl.sum(grad_y * unit, 0)[None, :, :]
        for_bias += tl.sum(grad_y, 0)[None, :, :]
        for_out += tl.sum(out, 0)[None, :, :]
        grad = grad_y * weight
        grad = (grad - _row_sum(grad) / D - unit * (_row_sum(grad * unit) / D)) * scale
        tl.store(grad_x_ptr + here, grad + out, whole)
    sums_ptr += tl.program_id(0) * 3 * D
    tl.store(sums_ptr + channels, for_weight, known)
    tl.store(sums_ptr + D + channels, for_bias, known)
    tl.store(sums_ptr + 2 * D + channels, for_out, known)


@triton.jit
def _normal_cdf_and_exp(u):
    """Return the normal distribution function of u (GELU is u times it), and exp(-u²/2).

    Abramowitz and Stegun 7.1.26, with an error of at most 7.5e-8.
    """
    z = tl.abs(u) * 0.7071067811865476
    bell = tl.exp(-z * z)
    t = 1.0 / (1.0 + 0.3275911 * z)
    tail = 0.127414796 + t * (
        -0.142248368 + t * (0.7107068705 + t * (-0.7265760135 + t * 0.5307027145))
    )
    tail = tail * t * bell
    return tl.where(u < 0, tail, 1.0 - tail), bell


@triton.jit(do_not_specialize=LENGTH_ARGUMENTS)
def move_folds(
    x_ptr,
    y_ptr,
    n,
    ring,
    step,
    BACK: tl.constexpr,
    GELU: tl.constexpr,
    D: tl.constexpr,
    K: tl.constexpr,
    ABSORB: tl.constexpr,
    ROWS: tl.constexpr,
    FOLDS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """y = shift(x), or unshift(x) if BACK; of GELU(x) if GELU."""
    turn = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rows = _interleave_rows(turn, n, ring, step, K, ABSORB)
    folds, channels, known = _channel_indices(D, K, FOLDS, WIDTH)
    whole = (turn < n)[:, None, None] & known
    if BACK:
        source = _unshift_sources(rows, folds, n, ring, step, ABSORB)
    else:
        source = _shift_sources(rows, folds, n, ring, step, ABSORB)
    x = tl.load(x_ptr + _element_offsets(source, channels, D), whole, other=0.0)
    if GELU:
        x = x.to(tl.float32)
        normal, _ = _normal_cdf_and_exp(x)
        x *= normal
    tl.store(y_ptr + _element_offsets(rows[:, None], channels, D), x, whole)


@triton.jit(do_not_specialize=[*LENGTH_ARGUMENTS, "blocks"])
def gelu_unshift_backward(
    u_ptr,
    grad_v_ptr,
    grad_u_ptr,
    sums_ptr,
    n,
    ring,
    step,
    blocks,
    D: tl.constexpr,
    K: tl.constexpr,
    ABSORB: tl.constexpr,
    ROWS: tl.constexpr,
    FOLDS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """For v = unshift(GELU(u)): the gradient of u, and its sums over instances."""
    folds, channels, known = _channel_indices(D, K, FOLDS, WIDTH)
    sums = tl.zeros((1, FOLDS, WIDTH), tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        turn = block * ROWS + tl.arange(0, ROWS)
        rows = _interleave_rows(turn, n, ring, step, K, ABSORB)
        whole = (turn < n)[:, None, None] & known
        here = _element_offsets(rows[:, None], channels, D)
        u = tl.load(u_ptr + here, whole, other=0.0).to(tl.float32)
        there = _shift_sources(rows, folds, n, ring, step, ABSORB)
        grad = tl.load(grad_v_ptr + _element_offsets(there, channels, D), whole, other=0.0).to(
            tl.float32
        )
        normal, bell = _normal_cdf_and_exp(u)
        grad = grad * (normal + u * bell * 0.3989422804014327)
        tl.store(grad_u_ptr + here, grad, whole)
        sums += tl.sum(grad, 0)[None, :, :]
    tl.store(sums_ptr + tl.program_id(0) * D + channels, sums, known)


@triton.jit(do_not_specialize=["n", "blocks"])
def norms_and_mean(
    x_ptr,
    carried_ptr,
    order_ptr,
    norms_ptr,
    sums_ptr,
    n,
    blocks,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """For h = x + carried bias: the norm of each row, in the order of the bag; partial means."""
    columns = tl.arange(0, COLUMNS)
    carried = tl.load(carried_ptr + columns, columns < D, other=0.0)[None, :]
    sums = tl.zeros((COLUMNS,), tl.float32)
    for block in range(tl.program_id(0), blocks, tl.num_programs(0)):
        rows = block * ROWS + tl.arange(0, ROWS)
        inside = (rows < n)[:, None] & (columns < D)[None, :]
        x = tl.load(x_ptr + rows.to(tl.int64)[:, None] * D + columns[None, :], inside, other=0.0)
        h = tl.where(inside, x.to(tl.float32) + carried, 0.0)
        index = tl.load(order_ptr + rows, rows < n, other=0)
        tl.store(norms_ptr + index, tl.sqrt(tl.sum(h * h, 1)), rows < n)
        sums += tl.sum(h, 0)
    tl.store(sums_ptr + tl.program_id(0) * D + columns, sums / n, columns < D)


@triton.jit
def _rotation_cos_sin(
    coords_ptr, low_ptr, high_ptr, theta_ptr, source, pairs, known, D: tl.constexpr
):
    """Return cosines and sines of rho theta + alpha, (rows, pairs): Eq. (6) to (8) of the paper.

    Theta includes the scale. rho theta is too large for float32: it is reduced to a quarter turn
    in float64 first. Of alpha only cosine and sine are needed.
    """
    low_x, low_y = tl.load(low_ptr), tl.load(low_ptr + 1)
    high_x, high_y = tl.load(high_ptr), tl.load(high_ptr + 1)
    x = tl.load(coords_ptr + 2 * source, known, other=0.0) - low_x
    y = tl.load(coords_ptr + 2 * source + 1, known, other=0.0) - low_y
    x = x / tl.where(high_x > low_x, high_x - low_x, 1.0)
    y = y / tl.where(high_y > low_y, high_y - low_y, 1.0)
    radius = tl.sqrt(x * x + y * y)
    nonzero = radius > 0
    cos_alpha = tl.where(nonzero, x / tl.where(nonzero, radius, 1.0), 1.0).to(tl.float32)[:, None]
    sin_alpha = tl.where(nonzero, y / tl.where(nonzero, radius, 1.0), 0.0).to(tl.float32)[:, None]
    theta = tl.load(theta_ptr + pairs, pairs < D // 2, other=0.0)
    cos, sin = _cosine_and_sine(radius[:, None] * theta[None, :] * 0.15915494309189535)
    return cos * cos_alpha - sin * sin_alpha, sin * cos_alpha + cos * sin_alpha


@triton.jit
def _cosine_and_sine(turns):
    """Return float32 cosine and sine of float64 turns, by series around the nearest quarter."""
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
def prope(
    p_ptr,
    order_ptr,
    coords_ptr,
    low_ptr,
    high_ptr,
    theta_ptr,
    h_ptr,
    n,
    D: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """h = ReLU of p in the given order, each pair of channels rotated."""
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
    cos, sin = _rotation_cos_sin(coords_ptr, low_ptr, high_ptr, theta_ptr, source, pairs, known, D)
    h = tl.reshape(tl.join(a * cos - b * sin, a * sin + b * cos), (ROWS, 2 * PAIRS))
    tl.store(h_ptr + rows.to(tl.int64)[:, None] * D + columns[None, :], h, inside)


@triton.jit(do_not_specialize=["n"])
def prope_backward(
    grad_h_ptr,
    p_ptr,
    order_ptr,
    coords_ptr,
    low_ptr,
    high_ptr,
    theta_ptr,
    grad_p_ptr,
    n,
    D: tl.constexpr,
    RELU: tl.constexpr,
    ROWS: tl.constexpr,
    PAIRS: tl.constexpr,
):
    """The gradient of p: rotated back, and zero where the ReLU gave zero."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    pairs = tl.program_id(1) * PAIRS + tl.arange(0, PAIRS)
    known = rows < n
    source = tl.load(order_ptr + rows, known, other=0)
    columns = tl.program_id(1) * 2 * PAIRS + tl.arange(0, 2 * PAIRS)
    inside = known[:, None] & (columns < D)[None, :]
    here = rows.to(tl.int64)[:, None] * D + columns[None, :]
    grad = tl.load(grad_h_ptr + here, inside, other=0.0).to(tl.float32)
    a, b = tl.split(tl.reshape(grad, (ROWS, PAIRS, 2)))
    cos, sin = _rotation_cos_sin(coords_ptr, low_ptr, high_ptr, theta_ptr, source, pairs, known, D)
    grad = tl.reshape(tl.join(a * cos + b * sin, b * cos - a * sin), (ROWS, 2 * PAIRS))
    there = source[:, None] * D + columns[None, :]
    if RELU:
        grad = tl.where(tl.load(p_ptr + there, inside, other=0.0) > 0, grad, 0.0)
    tl.store(grad_p_ptr + there, grad, inside)
