"""The demonstration: from slides drawn on the spot to a report, through the product's functions."""

from sacmil.workflows.demo.run import DemoResult, run_demo
from sacmil.workflows.demo.settings import DemoSettings

__all__ = ["DemoResult", "DemoSettings", "run_demo"]
