"""Bags per second from files, as a ratio to reading their bytes one file after the other.

Layouts are read through HDF5, whose lock lets one thread read at a time, by threads and by
processes, which do not send them back; stored features are read without HDF5, as training does
after its first epoch.
The files are in the cache of the system, unless it is smaller than they are, or ``--cold`` removes
them from it before every call.

With ``--slides`` a cohort larger than memory is made of links to those files, and read as training
does for two epochs: time against that of their bytes, and how much the memory of the process grows.

Run: python -m benchmarks.streaming --bags 60 --instances 10000 --workers 8 [--cold]
     python -m benchmarks.streaming --bags 60 --instances 10000 --slides 11000
"""

from __future__ import annotations

import argparse
import os
import resource
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
    parser.add_argument("--cold", action="store_true")
    parser.add_argument("--slides", type=int, help="of a cohort made of links to the bags")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        paths = _write_bags(Path(folder), options.bags, options.instances)
        features = read_bag(paths[0]).features
        size = sum(path.stat().st_size for path in paths) / len(paths) / 1e6
        if options.slides:
            _read_large_cohort(paths, size / 1e3, options.slides)
            return
        print(f"streaming, {len(paths)} bags of {size:.0f} MB, milliseconds a bag")
        found = [find_stored_features(path, read_bag(path).features) for path in paths]
        stored = [each for each in found if each]
        assert len(stored) == len(paths)
        threads = ThreadPoolExecutor(options.workers)
        processes = ProcessPoolExecutor(options.workers, mp_context=get_context("spawn"))
        loader = _make_loader(paths)
        calls: dict[str, Callable[[], object]] = {
            "the bytes of the files": lambda: [_read_bytes(path) for path in paths],
            "through the layout": lambda: [_read_layout(path) for path in paths],
            "through the layout, threads": lambda: _map(threads, _read_layout, paths),
            "through the layout, processes": lambda: _map(processes, _read_layout, paths),
            "stored features": lambda: [_read_stored(each, len(features)) for each in stored],
            "stored features, threads": lambda: _map(threads, _read_stored_alike, stored),
            "as training reads, one thread": lambda: _read_epoch(loader),
        }
        base = 0.0
        for name, call in calls.items():
            call()
            if options.cold:
                _evict(paths)
            began = time.perf_counter()
            call()
            seconds = (time.perf_counter() - began) / len(paths)
            base = base or seconds
            print(f"  {name:32}{1e3 * seconds:8.2f} ms{seconds / base:8.2f} x", flush=True)
        processes.shutdown()


def _read_large_cohort(paths: list[Path], gigabytes: float, count: int) -> None:
    """Print what two epochs of a cohort take that is made of links to these bags."""
    links = [paths[0].parent / f"slide-{number}.h5" for number in range(count)]
    for number, link in enumerate(links):
        link.symlink_to(paths[number % len(paths)])
    began = time.perf_counter()
    for link in links:
        _read_bytes(link)
    base = time.perf_counter() - began
    total = count * gigabytes
    print(f"streaming, {count:,} slides, {total:.0f} GB, {len(paths)} files behind them")
    print(f"  {'the bytes of the files':32}{base:8.1f} s{1:8.2f} x{total / base:8.1f} GB/s")
    loader = _make_loader(links)
    for epoch in (1, 2):
        before, began = _read_resident(), time.perf_counter()
        highest = _read_epoch(loader)
        seconds = time.perf_counter() - began
        name, memory = f"epoch {epoch}, as training reads", f"{before / 1e6:.0f} MB"
        print(
            f"  {name:32}{seconds:8.1f} s{seconds / base:8.2f} x{total / seconds:8.1f} GB/s, "
            f"memory {memory}, at most {(highest - before) / 1e6:.0f} MB more",
            flush=True,
        )


def _make_loader(paths: list[Path]) -> SampleLoader:
    model = create_model("sac_mil_near_far", in_dim=WIDTH, num_classes=2)
    return SampleLoader(model, paths, [0] * len(paths), cache="none")


def _read_epoch(loader: SampleLoader) -> int:
    """Read every bag once; return the most memory the process took, in bytes."""
    highest = 0
    for number, _ in enumerate(loader):
        if number % 50 == 0:
            highest = max(highest, _read_resident())
    return highest


def _read_resident() -> int:
    """Return the memory of this process in bytes, on Linux; 0 elsewhere."""
    try:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
    except OSError:
        return 0
    return int(pages) * resource.getpagesize()


def _write_bags(folder: Path, count: int, instances: int) -> list[Path]:
    block = np.random.default_rng(0).standard_normal((instances, WIDTH), dtype=np.float32)
    bag = Bag("slide", block.astype(np.float16), make_tissue_coords(instances, 0) * 512, 512)
    paths = [folder / f"{number}.h5" for number in range(count)]
    for path in paths:
        write_bag(path, bag)
    return paths


def _map(pool: Executor, function: Callable[..., object], items: list) -> None:
    list(pool.map(function, items))


def _evict(paths: list[Path]) -> None:
    """Remove files from the cache of the system, on Linux."""
    for path in paths:
        with path.open("rb+") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


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
