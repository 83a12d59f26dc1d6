"""The experiments by name, and what can be requested of them: data, protocol, resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Literal, NamedTuple

from sacmil.arguments import ProgressCallback, ignore_progress
from sacmil.errors import ConfigError
from sacmil.reproduce._paper import TABLES

FIGURES = {"ecl": "effective_context", "heatmaps": "heatmaps"}
"""Modules of this folder with ``run(out, request)``, which are imported when they run."""


class DatasetPaths(NamedTuple):
    """Paths of a user's copy of a dataset."""

    table: Path
    bags: Path


@dataclass(frozen=True, kw_only=True)
class SyntheticSettings:
    """The synthetic cohort that is used if no data are given."""

    task: str | None = None
    """None: for each dataset the task most like it."""
    difficulty: str = "medium"
    slides: int = 200
    instances: tuple[int, int] = (500, 5000)
    """Minimum and maximum number per slide."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class ReproduceRequest:
    """A requested experiment; by default, the paper's protocol on synthetic cohorts."""

    data: Mapping[str, DatasetPaths] = field(default_factory=dict)
    """By dataset; if any is given, only those are run."""
    only: tuple[str, ...] = ()
    """Datasets to run; empty means all."""
    synthetic: SyntheticSettings = SyntheticSettings()
    epochs: int | None = None
    """None: as many as in the recipe."""
    folds: int = 5
    seeds: int = 1
    devices: tuple[str, ...] = ("auto",)
    workers: int = 1
    """Jobs at once on each device."""
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    """Ray cluster to use; None uses a running one or starts one."""
    truth: Path | None = None
    """Annotations of the slides, a file or a folder: for heatmaps."""
    images: Path | None = None
    """Folder of the slides: for heatmaps."""
    progress: ProgressCallback = field(default=ignore_progress, compare=False)

    def is_requested(self, dataset: str) -> bool:
        """Whether a dataset is requested."""
        return not self.only or dataset in self.only

    def check_no_options(self, experiment: str) -> None:
        """Reject options for an experiment that trains nothing and would ignore them."""
        if self != ReproduceRequest():
            raise ConfigError(f"{experiment} trains nothing; expected no options except `out`")


def list_experiments() -> list[str]:
    """List the names of experiments: the paper's tables and figures."""
    return sorted([*TABLES, *FIGURES])


def run_experiment(name: str, out: Path, request: ReproduceRequest) -> Iterator[Path]:
    """Run an experiment, and yield each file that it wrote."""
    if name in TABLES:
        from sacmil.reproduce._table import reproduce_table

        return reproduce_table(out, name, TABLES[name], request)
    figure: Iterator[Path] = import_module(f"sacmil.reproduce.{FIGURES[name]}").run(out, request)
    return figure
