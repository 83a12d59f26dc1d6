"""Metrics of survival over the resamples of an interval, as a share of counting each resample.

Run: OMP_NUM_THREADS=1 python -m benchmarks.survival_intervals --patients 5000 --resamples 2000
"""

from __future__ import annotations

import argparse
import os
import tracemalloc
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from benchmarks.clock import best_times
from sacmil.metrics.survival import (
    weighted_cumulative_auc,
    weighted_harrell_terms,
    weighted_integrated_brier,
    weighted_uno_terms,
)

Floats = npt.NDArray[np.float64]
PLAIN = "plain count, one resample"


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--patients", type=int, default=5_000)
    parser.add_argument("--resamples", type=int, default=2_000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    random = np.random.default_rng(0)
    n, resamples = options.patients, options.resamples
    times = random.exponential(30, n).round(1) + 0.1  # months, with ties; half are censored
    events, risks = random.random(n) < 0.5, random.standard_normal(n) - times / 50
    weights = random.multinomial(n, np.full(n, 1 / n), size=resamples).astype(np.float64)
    at = np.linspace(5, 60, 9)
    survival = np.exp(-np.exp(risks)[:, None] * at / 60)
    train = (times, events)
    calls: dict[str, Callable[[], object]] = {
        "c": lambda: weighted_harrell_terms(times, events, risks, weights),
        "c, weights not whole": lambda: weighted_harrell_terms(times, events, risks, weights / 3),
        "Uno's c": lambda: weighted_uno_terms(*train, times, events, risks, 60, weights),
        "mean AUC of 9 times": lambda: weighted_cumulative_auc(
            *train, times, events, risks, at, weights
        ),
        "integrated Brier score": lambda: weighted_integrated_brier(
            *train, times, events, survival, at, weights
        ),
    }
    rows = np.repeat(np.arange(n), weights[0].astype(int))
    counted = [term.item() for term in weighted_harrell_terms(times, events, risks, weights[:1])]
    assert counted == list(count_plainly(times[rows], events[rows], risks[rows]))
    calls[PLAIN] = lambda: count_plainly(times[rows], events[rows], risks[rows])
    best = best_times(calls, options.repeats)
    plain = best.pop(PLAIN)
    threads = os.environ.get("OMP_NUM_THREADS", "all")
    print(f"survival_intervals, numpy {np.__version__}, {threads} thread(s)")
    print(f"{n:,} patients, {resamples:,} resamples, best of {options.repeats}")
    print(f"{PLAIN:28}{plain:9.3f} s; of all: {plain * resamples:,.0f} s")
    for name, seconds in best.items():
        share = seconds / (plain * resamples)
        megabytes = measure_memory(calls[name])
        print(f"{name:28}{seconds:9.3f} s{share:9.4f} of plain{megabytes:7.0f} MB of arrays")


def count_plainly(times: Floats, events: npt.NDArray[np.bool_], risks: Floats) -> tuple[float, int]:
    """Return the pairs in the right order and all pairs, an event at a time."""
    right, total = 0.0, 0
    for i in np.flatnonzero(events):
        compared = (times > times[i]) | ((times == times[i]) & ~events)
        excess = risks[i] - risks[compared]
        right += (excess > 1e-8).sum() + (np.abs(excess) <= 1e-8).sum() / 2
        total += len(excess)
    return right, total


def measure_memory(call: Callable[[], object]) -> float:
    """Return the megabytes that a call holds at most, without its arguments."""
    tracemalloc.start()
    call()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak / 1e6


if __name__ == "__main__":
    main()
