"""An exported model against torch, from a bag to a prediction on the CPU, as ratios.

On all threads by the clock, and on one by the processor's own time, which is what to look at while
other work runs on the machine.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from benchmarks.clock import best_times
from sacmil import Bag, create_model, predict, save_model
from sacmil.deploy.export import export_model
from sacmil.deploy.runtime import load
from sacmil.synthetic.tissue_shape import make_tissue_coords


def main(arguments: list[str] | None = None) -> None:
    """Print milliseconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=["sac_mil", "abmil", "transmil"])
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    threads = torch.get_num_threads()
    print(f"runtime, {options.instances:,} instances x 1024, plans included")
    for name in options.models:
        _compare(name, options.instances, options.repeats, threads)


def _compare(name: str, n: int, repeats: int, threads: int) -> None:
    torch.manual_seed(0)
    features = np.random.default_rng(0).standard_normal((n, 1024), dtype=np.float32)
    bag = Bag("made", features, make_tissue_coords(n, seed=0) * 256, 256)
    model = create_model(name, in_dim=1024, num_classes=2).eval()
    with tempfile.TemporaryDirectory() as folder:
        save_model(Path(folder) / "model", model)
        out = export_model(Path(folder) / "model", Path(folder) / "out", sizes=[70])
        parallel, single = load(out, threads=threads), load(out, threads=1)
    calls = {"torch": lambda: predict(model, bag), "runtime": lambda: parallel.predict(bag)}
    _print(name, f"{threads} threads", best_times(calls, repeats))
    torch.set_num_threads(1)
    calls["runtime"] = lambda: single.predict(bag)
    _print("", "CPU of one", _processor_times(calls, repeats))
    torch.set_num_threads(threads)


def _processor_times(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds of this process's own work in the best of some repeats, contestants taking turns."""
    best = dict.fromkeys(calls, float("inf"))
    for _ in range(repeats):
        for name, call in calls.items():
            start = time.process_time()
            call()
            best[name] = min(best[name], time.process_time() - start)
    return best


def _print(name: str, how: str, times: dict[str, float]) -> None:
    shown = "".join(f"  {who} {1e3 * seconds:8.1f} ms" for who, seconds in times.items())
    print(f"  {name:<10}{how:<12}{shown}{times['runtime'] / times['torch']:7.2f} x")


if __name__ == "__main__":
    main()
