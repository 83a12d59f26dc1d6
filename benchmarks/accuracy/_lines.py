"""Results on disk: a CSV file, a line per job, appended whole; a torn last line is dropped."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.accuracy._job import Job, to_json

COLUMNS = (
    *("key", "study", "role", "task", "variant", "fold", "seed"),
    *("model", "options", "arrangement", "training", "source", "split"),
    *("val_auc", "val_loss", "auc", "accuracy", "log_loss", "localisation", "ceiling"),
    *("epochs", "chosen", "parameters", "seconds", "device", "torch"),
    *("more", "labels", "answers", "units", "failure"),
)
"""labels, answers (log-odds) and units are of the test bags, a word each; no units are numbers."""

Line = dict[str, str]


class Lines:
    """The results of a study.

    Args:
        path: of the CSV file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._mend()
        self.lines = self._read()

    def done(self) -> set[str]:
        """Keys of jobs that need not be done again; those that failed are tried again."""
        return {line["key"] for line in self.lines if not line["failure"]}

    def append(self, job: Job, found: Mapping[str, Any]) -> Line:
        """Keep what came of a job, on disk before this returns."""
        line = to_line(job, found)
        text = io.StringIO()
        csv.DictWriter(text, COLUMNS, lineterminator="\n").writerow(line)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = not self.path.exists()
        with self.path.open("a", encoding="utf-8") as file:
            file.write((",".join(COLUMNS) + "\n" if fresh else "") + text.getvalue())
            file.flush()
            os.fsync(file.fileno())
        self.lines.append(line)
        return line

    def _mend(self) -> None:
        """Cut off what a writer that was killed began."""
        if self.path.exists():
            held = self.path.read_bytes()
            whole = held.rfind(b"\n") + 1
            if whole < len(held):
                with self.path.open("r+b") as file:
                    file.truncate(whole)

    def _read(self) -> list[Line]:
        if not self.path.exists():
            return []
        usual = csv.field_size_limit(2**24)
        try:
            with self.path.open(newline="", encoding="utf-8") as file:
                return [dict(line) for line in csv.DictReader(file)]
        finally:
            csv.field_size_limit(usual)  # which is that of the whole process


def to_line(job: Job, found: Mapping[str, Any]) -> Line:
    """A job and what came of it, column by column."""
    known = {key: _text(value) for key, value in found.items() if value is not None}
    return dict.fromkeys(COLUMNS, "") | _told(job) | known


def _told(job: Job) -> Line:
    return {
        "key": job.key,
        "study": job.study,
        "role": job.role,
        "task": job.task,
        "variant": job.variant,
        "fold": str(job.fold),
        "seed": str(job.seed),
        "model": job.model,
        "options": to_json(dict(job.options)),
        "arrangement": job.arrangement,
        "training": to_json(dict(job.training)),
        "source": to_json(dict(job.source)),
        "split": to_json(dict(job.split)),
    }


def _text(value: Any) -> str:
    """Numbers with as many digits as they are worth."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, Mapping):
        return to_json(value)
    if isinstance(value, list | tuple):
        return " ".join(_text(one) for one in value)
    return str(value)
