"""Call a function with many items in worker processes, on this machine or on Ray.

A worker that crashes fails its task only.
"""

from sacmil.parallel.local import TaskOutcome, WorkerPool, run_each

__all__ = ["TaskOutcome", "WorkerPool", "run_each"]
