"""The Triton kernels of Mamba's selective scan.

Steps are split into tiles of STEPS steps, STATES states and CHANNELS channels. Decays and states
exist in registers only. What a tile passes to the next one, or its gradient to the one before, is
computed for all tiles in parallel, and then scanned over the tiles (``recur``). A step beyond the
last has dt = 0: it decays nothing and adds nothing. A state beyond the last has A = 0.
"""
# mypy: disable-error-code="no-untyped-def, untyped-decorator, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _compose_steps(a, s, b, t):
    """Compose two steps, each of which maps a state x to a x + s."""
    return a * b, s * b + t


@triton.jit(do_not_specialize=["steps"])
def recur(
    a_ptr,
    s_ptr,
    steps,
    WIDTH: tl.constexpr,
    BACK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """s[t] += a[t] s[t - 1] from the first; BACK: s[t] += a[t + 1] s[t + 1] from the last."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    last = tl.arange(0, ROWS) == ROWS - 1
    before = tl.zeros((COLUMNS,), tl.float32)
    for begin in range(0, steps, ROWS):
        turn = begin + tl.arange(0, ROWS)
        rows = (steps - 1 - turn if BACK else turn).to(tl.int64)[:, None]
        known = (turn < steps)[:, None] & (columns < WIDTH)[None, :]
        factors = rows + 1 if BACK else rows
        follows = known & (turn > 0)[:, None]
        a = tl.load(a_ptr + factors * WIDTH + columns[None, :], follows, other=0.0)
        s = tl.load(s_ptr + rows * WIDTH + columns[None, :], known, other=0.0)
        a, s = tl.associative_scan((a, s), 0, _compose_steps)
        s += a * before[None, :]
        tl.store(s_ptr + rows * WIDTH + columns[None, :], s, known)
        before = tl.sum(tl.where(last[:, None], s, 0.0), 0)


@triton.jit
def _load_rows(x_ptr, rows, columns, known, WIDTH: tl.constexpr):
    """Load (rows, columns) of a matrix; zero where masked."""
    inside = known[:, None] & (columns < WIDTH)[None, :]
    return tl.load(x_ptr + rows.to(tl.int64)[:, None] * WIDTH + columns[None, :], inside, other=0.0)


@triton.jit
def _store_rows(x_ptr, x, rows, columns, known, WIDTH: tl.constexpr):
    inside = known[:, None] & (columns < WIDTH)[None, :]
    tl.store(x_ptr + rows.to(tl.int64)[:, None] * WIDTH + columns[None, :], x, inside)


@triton.jit
def _load_state(x_ptr, tile, states, channels, known, D: tl.constexpr, S: tl.constexpr):
    """Load (states, channels) of a tile; zero where masked."""
    inside = (states < S)[:, None] & (channels < D)[None, :] & known
    begin = tile.to(tl.int64) * (S * D)
    return tl.load(x_ptr + begin + states[:, None] * D + channels[None, :], inside, other=0.0)


@triton.jit
def _store_state(x_ptr, x, tile, states, channels, D: tl.constexpr, S: tl.constexpr):
    inside = (states < S)[:, None] & (channels < D)[None, :]
    begin = tile.to(tl.int64) * (S * D)
    tl.store(x_ptr + begin + states[:, None] * D + channels[None, :], x, inside)


@triton.jit(do_not_specialize=["n"])
def end_states(
    u_ptr,
    dt_ptr,
    A_ptr,
    B_ptr,
    ends_ptr,
    decays_ptr,
    n,
    D: tl.constexpr,
    S: tl.constexpr,
    STEPS: tl.constexpr,
    STATES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """The state at the end of each tile if it starts with zeros, and the decay over the tile."""
    tile, steps = tl.program_id(0), tl.arange(0, STEPS)
    rows, states = tile * STEPS + steps, tl.arange(0, STATES)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    A = _load_rows(A_ptr, states, channels, states < S, D)
    dt = _load_rows(dt_ptr, rows, channels, rows < n, D)
    entering = dt * _load_rows(u_ptr, rows, channels, rows < n, D)
    B = _load_rows(B_ptr, rows, states, rows < n, S)
    follows = (rows + 1 < n) & (steps + 1 < STEPS)
    remaining = tl.cumsum(_load_rows(dt_ptr, rows + 1, channels, follows, D), 0, reverse=True)
    end = tl.sum(_compute_decays(remaining, A) * entering[:, None, :] * B[:, :, None], 0)
    _store_state(ends_ptr, end, tile, states, channels, D, S)
    _store_state(decays_ptr, tl.exp(tl.sum(dt, 0)[None, :] * A), tile, states, channels, D, S)


@triton.jit
def _compute_decays(dt, A):
    """Return exp(dt A), (steps, states, channels)."""
    return tl.exp(dt[:, None, :] * A[None, :, :])


@triton.jit
def _compute_states(
    u_ptr, dt_ptr, A, B_ptr, start, rows, states, channels, known, D: tl.constexpr, S: tl.constexpr
):
    """Return the states after each row, (steps, states, channels); masked rows change nothing."""
    dt = _load_rows(dt_ptr, rows, channels, known, D)
    entering = dt * _load_rows(u_ptr, rows, channels, known, D)
    entered = entering[:, None, :] * _load_rows(B_ptr, rows, states, known, S)[:, :, None]
    decay, state = tl.associative_scan((_compute_decays(dt, A), entered), 0, _compose_steps)
    return state + decay * start[None, :, :]


@triton.jit(do_not_specialize=["n"])
def outputs(
    u_ptr,
    dt_ptr,
    A_ptr,
    B_ptr,
    C_ptr,
    ends_ptr,
    y_ptr,
    n,
    D: tl.constexpr,
    S: tl.constexpr,
    STEPS: tl.constexpr,
    STATES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Outputs of a tile, which starts with the end state of the one before."""
    tile, states = tl.program_id(0), tl.arange(0, STATES)
    rows = tile * STEPS + tl.arange(0, STEPS)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    A = _load_rows(A_ptr, states, channels, states < S, D)
    start = _load_state(ends_ptr, tile - 1, states, channels, tile > 0, D, S)
    C = _load_rows(C_ptr, rows, states, rows < n, S)
    state = _compute_states(u_ptr, dt_ptr, A, B_ptr, start, rows, states, channels, rows < n, D, S)
    _store_rows(y_ptr, tl.sum(state * C[:, :, None], 1), rows, channels, rows < n, D)


@triton.jit(do_not_specialize=["n"])
def end_gradients(
    grad_y_ptr,
    dt_ptr,
    A_ptr,
    C_ptr,
    grad_ends_ptr,
    decays_ptr,
    n,
    D: tl.constexpr,
    S: tl.constexpr,
    STEPS: tl.constexpr,
    STATES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """The gradient of each tile's start state from its own outputs, and the decay over the tile."""
    tile, states = tl.program_id(0), tl.arange(0, STATES)
    rows = tile * STEPS + tl.arange(0, STEPS)
    channels = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    A = _load_rows(A_ptr, states, channels, states < S, D)
    dt = _load_rows(dt_ptr, rows, channels, rows < n, D)
    grad_y = _load_rows(grad_y_ptr, rows, channels, rows < n, D)
    C = _load_rows(C_ptr, rows, states, rows < n, S)
    grad = tl.sum(_compute_decays(tl.cumsum(dt, 0), A) * grad_y[:, None, :] * C[:, :, None], 0)
    _store_state(grad_ends_ptr, grad, tile, states, channels, D, S)
    _store_state(decays_ptr, tl.exp(tl.sum(dt, 0)[None, :] * A), tile, states, channels, D, S)


@triton.jit(do_not_specialize=["n", "tiles"])
def gradients(
    u_ptr,
    dt_ptr,
    A_ptr,
    B_ptr,
    C_ptr,
    ends_ptr,
    grad_ends_ptr,
    grad_y_ptr,
    grad_u_ptr,
    grad_dt_ptr,
    grad_A_ptr,
    grad_B_ptr,
    grad_C_ptr,
    n,
    tiles,
    D: tl.constexpr,
    S: tl.constexpr,
    STEPS: tl.constexpr,
    STATES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Gradients of a tile: of A per tile, of B and C per block of channels, to be summed."""
    tile, steps = tl.program_id(0), tl.arange(0, STEPS)
    rows, states = tile * STEPS + steps, tl.arange(0, STATES)
    block = tl.program_id(1)
    channels = block * CHANNELS + tl.arange(0, CHANNELS)
    A = _load_rows(A_ptr, states, channels, states < S, D)
    start = _load_state(ends_ptr, tile - 1, states, channels, tile > 0, D, S)
    later = _load_state(grad_ends_ptr, tile + 1, states, channels, tile + 1 < tiles, D, S)
    u = _load_rows(u_ptr, rows, channels, rows < n, D)
    dt = _load_rows(dt_ptr, rows, channels, rows < n, D)
    B = _load_rows(B_ptr, rows, states, rows < n, S)
    C = _load_rows(C_ptr, rows, states, rows < n, S)
    grad_y = _load_rows(grad_y_ptr, rows, channels, rows < n, D)
    # The decayed state before each step; subtracting the input from the state is less exact.
    came = (rows <= n) & (steps > 0)
    decayed = _compute_decays(dt, A)
    decayed *= _compute_states(
        u_ptr, dt_ptr, A, B_ptr, start, rows - 1, states, channels, came, D, S
    )
    state = decayed + (dt * u)[:, None, :] * B[:, :, None]
    offset = block.to(tl.int64) * n * S
    grad_C = tl.sum(state * grad_y[:, None, :], 2)
    _store_rows(grad_C_ptr + offset, grad_C, rows, states, rows < n, S)

    follows = (rows + 1 < n) & (steps + 1 < STEPS)
    decay = _compute_decays(_load_rows(dt_ptr, rows + 1, channels, follows, D), A)
    grad_state = grad_y[:, None, :] * C[:, :, None]
    grad_state += tl.where(steps == STEPS - 1, 1.0, 0.0)[:, None, None] * later[None, :, :]
    _, grad_state = tl.associative_scan((decay, grad_state), 0, _compose_steps, reverse=True)
    grad_input = tl.sum(grad_state * B[:, :, None], 1)
    grad_exponent = grad_state * decayed  # of dt A
    _store_rows(grad_u_ptr, grad_input * dt, rows, channels, rows < n, D)
    grad_dt = grad_input * u + tl.sum(grad_exponent * A[None, :, :], 1)
    _store_rows(grad_dt_ptr, grad_dt, rows, channels, rows < n, D)
    grad_A = tl.sum(grad_exponent * dt[:, None, :], 0)
    _store_state(grad_A_ptr, grad_A, tile, states, channels, D, S)
    grad_B = tl.sum(grad_state * (dt * u)[:, None, :], 2)
    _store_rows(grad_B_ptr + offset, grad_B, rows, states, rows < n, S)
