"""What a training job writes as it runs: its checkpoint, metrics.csv and TensorBoard files.

A killed run resumes from the checkpoint, one safetensors file. The randomness of an epoch follows
from the seed, the stage and the epoch's number, so no state of a random generator is stored.
"""

from __future__ import annotations

import csv
import importlib.util
import json
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, astuple, dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sacmil.atomic import atomic_write

METRICS_FILE = "metrics.csv"
_MIN_WRITE_INTERVAL_S = 1.0
"""Minimum time between two writes of it; epochs on a GPU can be shorter."""

State = dict[str, Tensor]


@dataclass(frozen=True)
class EpochMetrics:
    """One row of metrics.csv."""

    stage: int
    epoch: int
    """From 1."""
    loss: float
    """Mean over the bags, summed over the model's losses."""
    lr: float
    val_loss: float | None
    val_metric: float | None
    """The headline metric of the task; val_auc for classes."""
    seconds: float


@dataclass
class TrainingState:
    """Everything that training needs to resume after an epoch."""

    fingerprint: str
    """Identifies model, settings and data; another checkpoint is not resumed."""
    stage: int = 0
    epoch: int = 0
    """Epochs done in this stage."""
    weights: State = field(default_factory=dict)
    optimizers: State = field(default_factory=dict)
    best: State = field(default_factory=dict)
    """Weights of the best epoch so far."""
    best_epoch: int = 0
    finished: State = field(default_factory=dict)
    """Weights of earlier stages, ``<stage>/<name>``."""
    history: list[EpochMetrics] = field(default_factory=list)

    @property
    def best_metrics(self) -> EpochMetrics | None:
        """Metrics of the best epoch so far."""
        of_stage = (line for line in self.history if line.stage == self.stage)
        return next((line for line in of_stage if line.epoch == self.best_epoch), None)


_READ_ERRORS = (OSError, SafetensorError, KeyError, TypeError, ValueError)
"""Raised for a file that is missing, truncated or of another kind."""

_TENSOR_FIELDS = {"optimizers": "optimisers"} | {n: n for n in ("weights", "best", "finished")}
"""Fields that hold tensors, and how the file calls them."""


class Checkpoint:
    """A checkpoint file, written in a background thread.

    Args:
        path: of the file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._writing: Future[None] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.wait_for_write()

    def read(self, fingerprint: str) -> TrainingState | None:
        """Return the stored state with this fingerprint; None if there is none."""
        try:
            with safe_open(self.path, "pt") as file:
                facts = json.loads(file.metadata()["progress"])
                if facts["fingerprint"] != fingerprint:
                    return None
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return _deserialize_state(facts, tensors)
        except _READ_ERRORS:
            return None

    def read_fingerprint(self) -> str | None:
        """Return the fingerprint of the stored state; None if there is none."""
        try:
            with safe_open(self.path, "pt") as file:
                return str(json.loads(file.metadata()["progress"])["fingerprint"])
        except _READ_ERRORS:
            return None

    def write(self, state: TrainingState) -> None:
        """Write the state; skip it if the one before is still being written."""
        if self._writing is None or self._writing.done():
            self.wait_for_write()
            self._writing = self._writer.submit(_write_file, self.path, *_serialize_state(state))

    def wait_for_write(self) -> None:
        """Wait for the writing thread, and raise its error if it failed."""
        if self._writing is not None:
            self._writing.result()
            self._writing = None

    def remove(self) -> None:
        """Remove the file after training."""
        self.wait_for_write()
        self.path.unlink(missing_ok=True)


def copy_to_cpu(state: Mapping[str, Tensor]) -> State:
    """Copy tensors to the CPU, so that later steps do not change them."""
    return {name: value.detach().to("cpu", copy=True) for name, value in state.items()}


def _serialize_state(state: TrainingState) -> tuple[State, str]:
    tensors = {
        f"{kind}:{name}": value.contiguous()
        for field_name, kind in _TENSOR_FIELDS.items()
        for name, value in getattr(state, field_name).items()
    }
    names = ("fingerprint", "stage", "epoch", "best_epoch")
    facts = {name: getattr(state, name) for name in names}
    facts["history"] = [asdict(line) for line in state.history]
    return tensors, json.dumps(facts)


def _deserialize_state(facts: dict[str, Any], tensors: State) -> TrainingState:
    fields_by_kind = {kind: name for name, kind in _TENSOR_FIELDS.items()}
    states: dict[str, Any] = {name: {} for name in _TENSOR_FIELDS}
    for key, value in tensors.items():
        kind, _, name = key.partition(":")
        states[fields_by_kind[kind]][name] = value
    history = [_parse_epoch(line) for line in facts["history"]]
    return TrainingState(**facts | {"history": history}, **states)


def _parse_epoch(line: dict[str, Any]) -> EpochMetrics:
    """Return one line of the history; earlier versions knew only the AUC."""
    if "val_auc" in line:
        line = {**line, "val_metric": line["val_auc"]}
        del line["val_auc"]
    return EpochMetrics(**line)


def _write_file(path: Path, tensors: State, facts: str) -> None:
    # save_file would write a temporary file of its own, readable by the user only.
    content = save(tensors, metadata={"progress": facts})
    with atomic_write(path) as partial:
        partial.write_bytes(content)


class TrainingLog:
    """Logs the epochs of one job; leaving its ``with`` block writes everything to disk.

    Args:
        folder: of the job.
        headline: name of the metric on the validation set.
    """

    def __init__(self, folder: Path, headline: str = "auc") -> None:
        self._path = folder / METRICS_FILE
        self._names = {"val_metric": f"val_{headline}"}
        self._lines: list[EpochMetrics] = []
        self._written_at = -_MIN_WRITE_INTERVAL_S
        self._board: Any = _open_tensorboard(folder / "tensorboard")

    def __enter__(self) -> Self:
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
            for name in ("loss", "lr", "val_loss", "val_metric"):
                value = getattr(metrics, name)
                if value is not None:
                    tag = f"stage {metrics.stage}/{self._names.get(name, name)}"
                    self._board.add_scalar(tag, value, metrics.epoch)
        if time.monotonic() - self._written_at >= _MIN_WRITE_INTERVAL_S:
            self._write_csv()

    def _write_csv(self) -> None:
        with atomic_write(self._path) as partial, partial.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            names = [field.name for field in fields(EpochMetrics)]
            writer.writerow([self._names.get(name, name) for name in names])
            for line in self._lines:
                values = astuple(line)  # csv writes None as an empty cell
                writer.writerow([f"{v:.6g}" if isinstance(v, float) else v for v in values])
        self._written_at = time.monotonic()


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
