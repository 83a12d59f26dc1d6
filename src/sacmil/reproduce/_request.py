"""What can be asked of an experiment: on which data, how long, how often, with what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from sacmil.errors import ConfigError

if TYPE_CHECKING:
    from sacmil.training.cross_validate import ProgressCallback


class DatasetPaths(NamedTuple):
    """Where a user keeps a dataset."""

    table: Path
    bags: Path


@dataclass(frozen=True, kw_only=True)
class SyntheticSettings:
    """The cohort that stands in where no data are given."""

    task: str | None = None
    """None: for each dataset the task most like it."""
    difficulty: str = "medium"
    slides: int = 200
    instances: tuple[int, int] = (500, 5000)
    """Fewest and most of a slide."""
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class ReproduceRequest:
    """What was asked for; as it stands, the paper's protocol over synthetic cohorts."""

    data: Mapping[str, DatasetPaths] = field(default_factory=dict)
    """By dataset; where any is given, only those are run."""
    only: tuple[str, ...] = ()
    """The datasets wanted; all where none is named."""
    synthetic: SyntheticSettings = SyntheticSettings()
    epochs: int | None = None
    """None: as many as the recipe says."""
    folds: int = 5
    seeds: int = 1
    devices: tuple[str, ...] = ("auto",)
    workers: int = 1
    """Trainings at once on each device."""
    engine: Literal["local", "ray"] = "local"
    address: str | None = None
    """Of the Ray cluster; None uses one that runs here, or starts one."""
    truth: Path | None = None
    """Outlines of the slides, a file or a folder: for heatmaps."""
    images: Path | None = None
    """Folder of the slides themselves: for heatmaps."""
    progress: ProgressCallback | None = field(default=None, compare=False)

    def is_requested(self, dataset: str) -> bool:
        """Whether a dataset was asked for."""
        return not self.only or dataset in self.only

    def check_no_options(self, experiment: str) -> None:
        """Refuse what an experiment that trains nothing could not heed."""
        if self != ReproduceRequest():
            raise ConfigError(f"{experiment} trains nothing; expected no option but --out")
