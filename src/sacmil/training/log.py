"""The training log: metrics.csv, and TensorBoard files if TensorBoard is installed."""

from __future__ import annotations

import csv
import importlib.util
import time
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from sacmil.atomic import atomic_write
from sacmil.training.checkpoint import EpochMetrics

METRICS_FILE = "metrics.csv"
COLUMNS = tuple(field.name for field in fields(EpochMetrics))

_MIN_WRITE_INTERVAL_S = 1.0
"""Minimum time between two writes; epochs on a GPU can be shorter."""


class TrainingLog:
    """Logs the epochs of one job; leaving its ``with`` block writes everything to disk.

    Args:
        folder: of the job.
        tensorboard: also write for TensorBoard, if it is installed.
    """

    def __init__(self, folder: Path, *, tensorboard: bool = True) -> None:
        self._path = folder / METRICS_FILE
        self._lines: list[EpochMetrics] = []
        self._written_at = -_MIN_WRITE_INTERVAL_S
        self._board: Any = _open_tensorboard(folder / "tensorboard") if tensorboard else None

    def __enter__(self) -> TrainingLog:
        return self

    def __exit__(self, *_: object) -> None:
        if self._lines:
            self._write_csv()
        if self._board:
            self._board.close()

    def log_epoch(self, metrics: EpochMetrics) -> None:
        """Log one epoch."""
        self._lines.append(metrics)
        if self._board:
            for name in ("loss", "lr", "val_loss", "val_auc"):
                value = getattr(metrics, name)
                if value is not None:
                    self._board.add_scalar(f"stage {metrics.stage}/{name}", value, metrics.epoch)
        if time.monotonic() - self._written_at >= _MIN_WRITE_INTERVAL_S:
            self._write_csv()

    def _write_csv(self) -> None:
        with atomic_write(self._path) as partial, partial.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(_format_row(line) for line in self._lines)
        self._written_at = time.monotonic()


def _format_row(metrics: EpochMetrics) -> list[str]:
    return [
        "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
        for value in astuple(metrics)
    ]


def read_last_epoch(folder: Path) -> dict[str, str] | None:
    """Return the newest epoch of a job's metrics.csv, as text by column; None before the first."""
    try:
        with (folder / METRICS_FILE).open(newline="", encoding="utf-8") as file:
            lines = list(csv.DictReader(file))
    except OSError:
        return None
    return lines[-1] if lines else None


def _open_tensorboard(folder: Path) -> Any:
    if importlib.util.find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    # A resumed run logs the epochs before the interruption again.
    return SummaryWriter(str(folder), purge_step=0)
