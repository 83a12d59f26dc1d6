"""What a run or a model predicts, as plain data; ``sacmil.tasks`` makes a task of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from sacmil.atomic import atomic_write
from sacmil.errors import RunError

TASK_FILE = "task.json"
"""Beside predictions.csv, unless classes are predicted."""
CLASSIFICATION = "classification"
PROBABILITY_PREFIX = "p_"
"""A column of this name is the probability of the class or label named after it."""
EXPECTED_COLUMN = "expected"
"""After the probabilities of levels: the mean level, counted from 0."""


@dataclass(frozen=True)
class TaskCard:
    """A kind of target with its settings, and the columns of its tables."""

    kind: str
    """classification, regression, …"""
    target_columns: tuple[str, ...]
    """Of the true values."""
    prediction_columns: tuple[str, ...]
    levels: tuple[str, ...] = ()
    """Names of the target's values 0, 1, …; empty if the target is a number."""
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """Everything else the task needs, as JSON can hold it."""

    @classmethod
    def of_classes(cls, classes: Iterable[str]) -> Self:
        """Return that of a classification."""
        names = tuple(classes)
        columns = tuple(PROBABILITY_PREFIX + name for name in names)
        return cls(CLASSIFICATION, ("label",), columns, names, {"classes": list(names)})

    @property
    def is_classification(self) -> bool:
        """Whether classes are predicted, which needs no file of its own."""
        return self.kind == CLASSIFICATION

    @property
    def description(self) -> str:
        """For messages."""
        names = self.levels or self.target_columns
        return f"{self.kind} of {', '.join(names)}"


def write_task_card(folder: Path, card: TaskCard) -> None:
    """Write task.json; a classification has none.

    Raises:
        RunError: the folder holds a table of another task.
    """
    known = read_task_card(folder)
    if known is not None and known != card:
        raise RunError(
            f"{folder}: holds predictions of {known.description} (by {TASK_FILE}); expected "
            f"those of {card.description}, choose another folder"
        )
    if card.is_classification:
        return
    with atomic_write(folder / TASK_FILE) as partial:
        partial.write_text(json.dumps(asdict(card), indent=2) + "\n", encoding="utf-8")


def read_task_card(folder: Path) -> TaskCard | None:
    """Read task.json; None if there is none.

    Raises:
        RunError: it cannot be read.
    """
    file = folder / TASK_FILE
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return parse_task_card(found)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise RunError(f"{file}: cannot be read ({error}); restore it") from error


def parse_task_card(found: Mapping[str, Any]) -> TaskCard:
    """Return the card of a JSON object; ValueError, TypeError or LookupError if it is none."""
    names = {}
    for key in ("target_columns", "prediction_columns", "levels"):
        if not isinstance(found[key], list | tuple):
            raise TypeError(f"{key} are no list")
        names[key] = tuple(found[key])
        if not all(isinstance(name, str) for name in names[key]):
            raise ValueError(f"{key} are not text")
    kind, settings = found["kind"], found["settings"]
    if not isinstance(kind, str) or not isinstance(settings, dict):
        raise TypeError("kind or settings")
    if not names["target_columns"] or not names["prediction_columns"]:
        raise ValueError("no columns")
    return TaskCard(kind, **names, settings=settings)
