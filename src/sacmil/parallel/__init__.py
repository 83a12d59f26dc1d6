"""The same function over many items, in processes that may die without harm: here, or on Ray."""

from sacmil.parallel.local import Outcome, Workers, run_each

__all__ = ["Outcome", "Workers", "run_each"]
