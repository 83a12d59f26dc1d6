"""How long arranging a bag takes, beside a plain numpy loop that only finds the centres.

Run: python -m benchmarks.arrange --sizes 10000 100000 300000
"""

from __future__ import annotations

import argparse
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.clock import best_times
from sacmil.regions import CENTERS, arrange
from sacmil.synthetic.tissue_shape import make_tissue_coords

K = 64


def plain_farthest_points(coords: NDArray[np.int64], count: int) -> list[int]:
    """Textbook farthest-point sampling: every centre looks at every point."""
    x, y = coords.T.copy()
    chosen, nearest = [0], np.full(len(x), np.iinfo(np.int64).max)
    while len(chosen) < count:
        dx, dy = x - x[chosen[-1]], y - y[chosen[-1]]
        np.minimum(nearest, dx * dx + dy * dy, out=nearest)
        chosen.append(int(nearest.argmax()))
    return chosen


def report(size: int, repeats: int) -> None:
    """Print the times of one slide."""
    coords = make_tissue_coords(size, seed=0)
    plain_loop = {"plain loop": partial(plain_farthest_points, coords, -(-size // K))}
    plain = best_times(plain_loop, repeats=1)["plain loop"]
    print(f"  {size:>9,}  {'plain loop':12} {1e3 * plain:9.1f} ms")
    ours = {name: partial(arrange, coords, K, name) for name in CENTERS}
    for name, seconds in best_times(ours, repeats).items():
        print(f"  {size:>9,}  {name:12} {1e3 * seconds:9.1f} ms  {plain / seconds:5.1f} x")


def main(arguments: list[str] | None = None) -> None:
    """Print a table of times, in milliseconds and as the plain loop's multiple of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10_000, 100_000, 300_000])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    print(f"arrange, k = {K}, numpy {np.__version__}, one core")
    for size in options.sizes:
        report(size, options.repeats)


if __name__ == "__main__":
    main()
