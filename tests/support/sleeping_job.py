"""Stands for a training job whose epochs take a given time, whatever else runs."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple


class Config(NamedTuple):
    """Stands for that of a job's device, which loads torch."""

    device: str
    cache: str
    threads: int


class SleepingJob(NamedTuple):
    """A job, as far as those that run jobs know it."""

    folder: Path
    epochs: int = 20
    name: str = "sleeping"

    @property
    def task(self) -> Any:
        """Nobody asks for it."""
        raise NotImplementedError


def run(job: SleepingJob, config: Config) -> None:
    """Write a line for each epoch, and when the job began and ended."""
    job.folder.mkdir()
    began, lines = time.time(), ["epoch,loss,seconds"]
    for epoch in range(1, job.epochs + 1):
        time.sleep(0.05)
        lines.append(f"{epoch},0.5,0.1")
        partial = job.folder / "partial"
        partial.write_text("\n".join(lines))
        partial.rename(job.folder / "metrics.csv")
    (job.folder / "span").write_text(f"{began} {time.time()} {config.device}")
