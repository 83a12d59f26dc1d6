"""Bags per second from files, as a ratio to reading their bytes one file after the other.

Layouts are read through HDF5, whose lock lets one thread read at a time, by threads and by
processes, which do not send them back; stored features are read without HDF5, as training does
after its first epoch.
The files are in the cache of the system, unless it is smaller than they are.

Run: python -m benchmarks.streaming --bags 60 --instances 10000 --workers 8
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

from sacmil import Bag, create_model, read_bag, write_bag
from sacmil.formats._stored_features import StoredFeatures, find_stored_features
from sacmil.synthetic.tissue_shape import make_tissue_coords
from sacmil.training.loading import SampleLoader

WIDTH = 1024


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bags", type=int, default=12)
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        paths = _write_bags(Path(folder), options.bags, options.instances)
        features = read_bag(paths[0]).features
        size = sum(path.stat().st_size for path in paths) / len(paths) / 1e6
        print(f"streaming, {len(paths)} bags of {size:.0f} MB, milliseconds a bag")
        found = [find_stored_features(path, read_bag(path).features) for path in paths]
        stored = [each for each in found if each]
        assert len(stored) == len(paths)
        threads = ThreadPoolExecutor(options.workers)
        processes = ProcessPoolExecutor(options.workers, mp_context=get_context("spawn"))
        loader = SampleLoader(
            create_model("sac_mil_near_far", in_dim=WIDTH, num_classes=2),
            paths,
            [0] * len(paths),
            cache="none",
        )
        calls: dict[str, Callable[[], object]] = {
            "the bytes of the files": lambda: [_read_bytes(path) for path in paths],
            "through the layout": lambda: [_read_layout(path) for path in paths],
            "through the layout, threads": lambda: _map(threads, _read_layout, paths),
            "through the layout, processes": lambda: _map(processes, _read_layout, paths),
            "stored features": lambda: [_read_stored(each, len(features)) for each in stored],
            "stored features, threads": lambda: _map(threads, _read_stored_alike, stored),
            "as training reads, one thread": lambda: list(loader),
        }
        base = 0.0
        for name, call in calls.items():
            call()
            began = time.perf_counter()
            call()
            seconds = (time.perf_counter() - began) / len(paths)
            base = base or seconds
            print(f"  {name:32}{1e3 * seconds:8.2f} ms{seconds / base:8.2f} x", flush=True)
        processes.shutdown()


def _write_bags(folder: Path, count: int, instances: int) -> list[Path]:
    block = np.random.default_rng(0).standard_normal((instances, WIDTH), dtype=np.float32)
    bag = Bag("slide", block.astype(np.float16), make_tissue_coords(instances, 0) * 512, 512)
    paths = [folder / f"{number}.h5" for number in range(count)]
    for path in paths:
        write_bag(path, bag)
    return paths


def _map(pool: Executor, function: Callable[..., object], items: list) -> None:
    list(pool.map(function, items))


def _read_bytes(path: Path) -> int:
    buffer = np.empty(path.stat().st_size, np.uint8)
    with path.open("rb", buffering=0) as file:
        return file.readinto(buffer.data)


def _read_layout(path: Path) -> int:
    return len(read_bag(path))


def _read_stored_alike(stored: StoredFeatures) -> None:
    _read_stored(stored, stored.extents[0].size // (2 * WIDTH))


def _read_stored(stored: StoredFeatures, rows: int) -> None:
    assert stored.read_into(np.empty(2 * rows * WIDTH, np.uint8).data)


if __name__ == "__main__":
    main()
