"""The demonstration: from slides drawn on the spot to a report, through the product's functions."""

from sacmil.workflows.demo.run import Demonstration, run_demo
from sacmil.workflows.demo.settings import Settings

__all__ = ["Demonstration", "Settings", "run_demo"]
