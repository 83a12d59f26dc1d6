"""The parts of SAC-MIL's fast path one by one, on a GPU, beside a copy and cuBLAS.

Run: python -m benchmarks.parts [--instances 262144] [--level 0 1 2] [--rows 2 4 8] [--warps 4]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor

from benchmarks.length import timed
from sacmil.kernels.config import count_programs, load_kernels
from sacmil.kernels.sac_mil import MAX_PROGRAMS, FoldShift
from sacmil.models.sac_mil import SACBlock

DIM, IN_DIM, K = 512, 1024, 64
Call = Callable[[], object]


def main(arguments: list[str] | None = None) -> None:
    """Print milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=262_144)
    parser.add_argument("--level", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rows", type=int, nargs="+", default=[2, 4, 8], help="of a program")
    parser.add_argument("--warps", type=int, nargs="+", default=[4], help="of a program")
    options = parser.parse_args(arguments)
    x = _random(options.instances, DIM)
    calls = dict(_usual(x)) | dict(_placing(x, options))
    for level, rows, warps in product(options.level, options.rows, options.warps):
        named = f"level {level}, {rows} rows, {warps} warps"
        calls |= {f"{name}, {named}": call for name, call in _passes(x, level, rows, warps)}
    for name, call in calls.items():
        print(f"  {name:<60}{timed(call, 'cuda', 0.05):9.4f} ms", flush=True)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def _usual(x: Tensor) -> Iterator[tuple[str, Call]]:
    w, b, wide = _random(DIM, DIM), _random(DIM), _random(DIM, IN_DIM)
    features, out = _random(len(x), IN_DIM), torch.empty_like(x)
    yield "copy", lambda: out.copy_(x)
    yield "cuBLAS 512 x 512 with bias", lambda: torch.addmm(b, x, w.t())
    yield "cuBLAS 512 x 512 with bias, then + x", lambda: torch.addmm(b, x, w.t()).add_(x)
    yield "cuBLAS 512 x 512 onto what is there", lambda: out.addmm_(x, w.t())
    yield "cuBLAS 512 x 512, a weight's gradient", lambda: x.t() @ x
    yield "cuBLAS 1024 x 512 with bias", lambda: torch.addmm(b, features, wide.t())
    yield "mean", lambda: x.mean(0)
    yield "norms", lambda: torch.linalg.vector_norm(x, dim=1)


def _passes(x: Tensor, level: int, rows: int, warps: int) -> Iterator[tuple[str, Call]]:
    n = len(x)
    shift = FoldShift.for_block(SACBlock(DIM, K, level, "linear", "absorb", residual=True), n)
    sizes = {**shift.choose_program_sizes(DIM), "ROWS": rows, "num_warps": warps}
    ones, zeros, out, more = _random(DIM), _random(DIM), torch.empty_like(x), torch.empty_like(x)
    statistics = torch.randn(n, 2, device="cuda").view(torch.int64)[:, 0]
    blocks = count_programs(n, rows)
    few = min(blocks, MAX_PROGRAMS)
    sums, carried = torch.empty(few, 3, DIM, device="cuda"), torch.randn(DIM, device="cuda")
    made = load_kernels()
    yield (
        "norm_shift",
        _launch(
            made.norm_shift[blocks,],
            *(x, carried, statistics, ones, zeros, out, *shift[:3]),
            CARRIED=True,
            **sizes,
        ),
    )
    yield (
        "gelu_unshift",
        _launch(made.move_folds[blocks,], x, out, *shift[:3], BACK=True, GELU=True, **sizes),
    )
    yield (
        "gelu_unshift_backward",
        _launch(made.gelu_unshift_backward[few,], x, out, more, sums, *shift[:3], blocks, **sizes),
    )
    yield (
        "norm_shift_backward",
        _launch(
            made.norm_shift_backward[few,],
            *(x, statistics, ones, out, out, more, sums, *shift[:3], blocks),
            **sizes,
        ),
    )


def _placing(x: Tensor, options: argparse.Namespace) -> Iterator[tuple[str, Call]]:
    n, out = len(x), torch.empty_like(x)
    order, carried = torch.randperm(n, device="cuda"), torch.randn(DIM, device="cuda")
    coords = torch.rand(n, 2, device="cuda", dtype=torch.float64)
    theta = torch.rand(DIM // 2, device="cuda", dtype=torch.float64)
    made, norms = load_kernels(), torch.empty_like(x[:, 0])
    yield "order only", lambda: x.index_select(0, order)
    for rows, warps in product(options.rows, options.warps):
        named = f"{rows} rows, {warps} warps"
        sizes = {"D": DIM, "ROWS": rows, "num_warps": warps}
        blocks = count_programs(n, rows)
        sums = torch.empty(min(blocks, MAX_PROGRAMS), DIM, device="cuda")
        yield (
            f"row_statistics, {named}",
            _launch(
                made.row_statistics[blocks,],
                *(x, carried, torch.empty_like(order), n, 1e-5),
                **{"CARRIED": True, "COLUMNS": DIM, **sizes},
            ),
        )
        yield (
            f"finish, {named}",
            _launch(
                made.finish[len(sums),],
                *(x, carried, order, norms, sums, n, blocks),
                **{"COLUMNS": DIM, **sizes},
            ),
        )
        for pairs in (128, 256):
            yield (
                f"place, {named}, {pairs} pairs",
                _launch(
                    made.place[blocks, DIM // (2 * pairs)],
                    *(x, order, coords, coords[0], coords[1], theta, out, n),
                    **{"RELU": True, "PAIRS": pairs, **sizes},
                ),
            )


def _launch(kernel: Any, *given: Any, **sizes: Any) -> Call:
    return partial(kernel, *given, **sizes)


if __name__ == "__main__":
    main()
