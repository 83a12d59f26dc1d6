"""The same function over many items, in processes that may die without harm: here, or on Ray."""

from sacmil.parallel.local import TaskOutcome, WorkerPool, run_each

__all__ = ["TaskOutcome", "WorkerPool", "run_each"]
