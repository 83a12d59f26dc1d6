"""The parts of SAC-MIL's fast path one by one, on a GPU, against a copy and against cuBLAS.

Run: python -m benchmarks.parts [--instances 262144]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from itertools import product

import torch
from torch import Tensor

from benchmarks import trial_kernels
from benchmarks.length import timed
from sacmil.kernels.sac_block import Shift
from sacmil.kernels.switch import kernels

DIM, IN_DIM, K = 512, 1024, 64
Call = Callable[[], object]


def main(arguments: list[str] | None = None) -> None:
    """Print milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=262_144)
    parser.add_argument("--level", type=int, nargs="+", default=[0, 1, 2])
    options = parser.parse_args(arguments)
    x = _random(options.instances, DIM)
    calls = dict(_usual(x))
    for level in options.level:
        parts = (*_passes(x, level), *_whole(x, level))
        calls |= {f"{name}, level {level}": call for name, call in parts}
    calls |= dict(_placing(x)) | dict(_fused(x))
    for name, call in calls.items():
        try:
            print(f"  {name:<70}{timed(call, 'cuda'):9.4f} ms", flush=True)
        except Exception as error:
            print(f"  {name:<70}{type(error).__name__}", flush=True)


def _random(*shape: int) -> Tensor:
    return torch.randn(*shape, device="cuda").bfloat16()


def _usual(x: Tensor) -> Iterator[tuple[str, Call]]:
    w, b = (
        torch.randn(DIM, DIM, device="cuda").bfloat16(),
        torch.randn(DIM, device="cuda").bfloat16(),
    )
    features = _random(len(x), IN_DIM)
    wide, out = _random(DIM, IN_DIM), torch.empty_like(x)
    yield "copy", lambda: out.copy_(x)
    yield "cuBLAS 512 x 512 with bias", lambda: torch.addmm(b, x, w.t())
    yield "cuBLAS 512 x 512, then + x", lambda: torch.addmm(b, x, w.t()).add_(x)
    yield "cuBLAS 512 x 512 onto x", lambda: out.addmm_(x, w.t())
    yield "cuBLAS 1024 x 512 with bias", lambda: torch.addmm(b, features, wide.t())
    yield "mean", lambda: x.mean(0)
    yield "norms", lambda: torch.linalg.vector_norm(x, dim=1)


def _passes(x: Tensor, level: int) -> Iterator[tuple[str, Call]]:
    shift = Shift.of(len(x), K, level, "absorb")
    ones, zeros, out = torch.ones_like(x[0]), torch.zeros_like(x[0]), torch.empty_like(x)
    for rows, warps in product((2, 4, 8, 16), (2, 4, 8)):
        yield (
            f"norm_shift rows {rows} warps {warps}",
            lambda rows=rows, warps=warps: kernels().norm_shift[(-(-len(x) // rows),)](
                x, ones, zeros, out, *shift[:4], 1e-5, D=DIM, K=K,
                ROWS=rows, COLUMNS=DIM, num_warps=warps,
            ),
        )  # fmt: skip
    for rows, columns, warps in product((8, 16, 32, 64), (64, 128, 256, 512), (4, 8)):
        yield (
            f"gelu_unshift rows {rows} columns {columns} warps {warps}",
            lambda rows=rows, columns=columns, warps=warps: kernels().gelu_unshift[
                (-(-len(x) // rows), DIM // columns)
            ](
                x, out, *shift[:4], D=DIM, K=K, ROWS=rows, COLUMNS=columns, num_warps=warps,
            ),
        )  # fmt: skip


def _whole(x: Tensor, level: int) -> Iterator[tuple[str, Call]]:
    """The same where all rings are whole."""
    if len(x) % K ** (level + 1):
        return
    step, groups = K**level, len(x) // K
    ones, zeros, out = torch.ones_like(x[0]), torch.zeros_like(x[0]), torch.empty_like(x)
    for warps in (8, 16):
        yield (
            f"norm_shift_whole warps {warps}",
            lambda warps=warps: trial_kernels.norm_shift_whole[(groups,)](
                x, ones, zeros, out, step, 1e-5, D=DIM, K=K, num_warps=warps
            ),
        )
    for columns, warps in product((64, 128, 256), (4, 8)):
        yield (
            f"gelu_unshift_whole columns {columns} warps {warps}",
            lambda columns=columns, warps=warps: trial_kernels.gelu_unshift_whole[
                (groups, DIM // columns)
            ](x, out, step, D=DIM, K=K, COLUMNS=columns, num_warps=warps),
        )


def _placing(x: Tensor) -> Iterator[tuple[str, Call]]:
    n, out = len(x), torch.empty_like(x)
    order = torch.randperm(n, device="cuda")
    coords = torch.rand(n + 2, 2, device="cuda", dtype=torch.float64)
    theta = torch.rand(DIM // 2, device="cuda", dtype=torch.float64)
    yield "order alone", lambda: x.index_select(0, order)
    for rows, pairs, warps in product((4, 8, 16, 32), (64, 128, 256), (4, 8)):
        yield (
            f"place rows {rows} pairs {pairs} warps {warps}",
            lambda rows=rows, pairs=pairs, warps=warps: kernels().place[
                (-(-n // rows), DIM // (2 * pairs))
            ](
                x, order, coords, theta, out, n, D=DIM, RELU=True,
                ROWS=rows, PAIRS=pairs, num_warps=warps,
            ),
        )  # fmt: skip


def _fused(x: Tensor) -> Iterator[tuple[str, Call]]:
    n, shift = len(x), Shift.of(len(x), K, 1, "absorb")
    w, b = (
        torch.randn(DIM, DIM, device="cuda").bfloat16(),
        torch.randn(DIM, device="cuda").bfloat16(),
    )
    out = torch.empty_like(x)
    for rows, columns, depth, warps, stages in (
        (128, 128, 64, 4, 3), (128, 128, 64, 8, 3), (128, 128, 64, 8, 4), (128, 256, 64, 8, 3),
        (128, 256, 64, 8, 4), (256, 128, 64, 8, 3), (64, 256, 64, 4, 3), (64, 256, 64, 8, 4),
        (128, 256, 32, 8, 4),
    ):  # fmt: skip
        grid = (-(-n // rows) * (DIM // columns),)
        sizes = {"ROWS": rows, "COLUMNS": columns, "DEPTH": depth, "num_warps": warps}
        sizes["num_stages"] = stages
        yield (
            f"product, GELU, unshift {rows} x {columns} x {depth}, warps {warps}, stages {stages}",
            lambda grid=grid, sizes=sizes: trial_kernels.product_gelu_unshift[grid](
                x, w, b, out, out, *shift[:4], D=DIM, K=K, KEEP=False, **sizes
            ),
        )
        yield (
            f"product onto x {rows} x {columns} x {depth}, warps {warps}, stages {stages}",
            lambda grid=grid, sizes=sizes: trial_kernels.product_residual[grid](
                x, w, b, x, out, n, D=DIM, **sizes
            ),
        )


if __name__ == "__main__":
    main()
