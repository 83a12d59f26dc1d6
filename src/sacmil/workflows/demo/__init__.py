"""The demonstration: the whole pipeline on synthetic slides, up to a report."""

from sacmil.workflows.demo.result import DemoResult
from sacmil.workflows.demo.run import run_demo
from sacmil.workflows.demo.settings import DemoSettings

__all__ = ["DemoResult", "DemoSettings", "run_demo"]
