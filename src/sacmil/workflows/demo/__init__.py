"""The demonstration: the whole pipeline on synthetic slides, up to a report."""

from sacmil.workflows.demo.run import DemoResult, run_demo
from sacmil.workflows.demo.settings import DemoSettings

__all__ = ["DemoResult", "DemoSettings", "run_demo"]
