"""Reading a bag of 10,000 x 1024 features against reading its bytes, from the page cache.

The first read of a file in a process verifies its checksum; ``read_bag`` is every later read.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import tempfile
import zlib
from pathlib import Path

import h5py
import numpy as np

from benchmarks.clock import best_times
from sacmil import Bag, read_bag, write_bag
from sacmil.formats import native
from sacmil.synthetic.tissue_shape import make_tissue_coords


def main(arguments: list[str] | None = None) -> None:
    """Print milliseconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args(arguments)
    print(f"bags, {options.instances:,} x {options.dim}")
    coords = make_tissue_coords(options.instances, seed=0) * 256
    drawn = np.random.default_rng(0).standard_normal((options.instances, options.dim))
    with tempfile.TemporaryDirectory() as folder:
        for dtype in (np.float16, np.float32):
            file = Path(folder) / f"{np.dtype(dtype).name}.h5"
            write_bag(file, Bag("made", drawn.astype(dtype), coords, 256))
            _compare(file, options.repeats)


def _compare(file: Path, repeats: int) -> None:
    os.utime(file, (0, 0))  # a file that has just been written is verified each time
    size = file.stat().st_size
    buffer = np.empty(size, np.uint8)
    times = best_times(
        {
            "bytes of the file": lambda: _bytes(file, buffer),
            "h5py, features only": lambda: _features(file),
            "read_bag": lambda: read_bag(file),
            "read_bag, verified": lambda: _read_verified(file),
            "CRC-32 of the bytes": lambda: zlib.crc32(buffer.data),
            "SHA-256 of the bytes": lambda: hashlib.sha256(buffer.data).digest(),
        },
        repeats,
    )
    for name, seconds in times.items():
        ratio = seconds / times["bytes of the file"]
        rate = size / seconds / 1e9
        print(f"  {file.stem}  {name:<20}{1e3 * seconds:8.2f} ms{rate:7.2f} GB/s{ratio:7.2f} x")


def _bytes(file: Path, buffer: np.ndarray) -> None:
    with file.open("rb", buffering=0) as opened:
        opened.readinto(memoryview(buffer))


def _read_verified(file: Path) -> object:
    """As a process reads a bag for the first time."""
    native._verified_files.clear()
    return read_bag(file)


def _features(file: Path) -> object:
    with h5py.File(file) as opened:
        return opened["features"][:]


if __name__ == "__main__":
    main()
