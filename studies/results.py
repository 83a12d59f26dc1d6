"""Results on disk: finished jobs while a round runs, then two kinds of compressed tables.

``RESULTS/STUDY/ROUND/runs.csv.gz`` has a row per trained model, ``…/TASK.csv.gz`` the predictions
on the test set as the product writes them, so ``sacmil compare FILE`` reads them.
``RESULTS/manifest.csv`` lists every file with its SHA-256, rows, commit, date, torch and device.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from sacmil.atomic import write_file
from sacmil.errors import RunError
from sacmil.results import Predictions, read_predictions, write_predictions
from sacmil.results.task_card import TASK_FILE, parse_task_card
from studies.data import CLASSES
from studies.study import FOLDER, Job, Study, Tuning, dump_json

RESULTS = FOLDER / "results"
RUN_COLUMNS = (
    *("key", "role", "task", "model", "fold", "seed", "training"),
    *("val_auc", "val_loss", "auc", "accuracy", "log_loss", "localization", "oracle"),
    *("epochs", "best_epoch", "parameters", "seconds", "device", "torch", "further", "failure"),
)
MANIFEST_COLUMNS = ("file", "sha256", "rows", "commit", "date", "torch", "device")

Row = dict[str, str]


class FinishedJobs:
    """The finished jobs of a round, a file each, so that a stopped round can be resumed.

    Args:
        folder: of the round.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def read(self) -> dict[str, dict[str, Any]]:
        """Return what was found, by key; failed jobs are tried again."""
        if not self.folder.is_dir():
            return {}
        files = sorted(self.folder.glob("*.json"))
        found = {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}
        return {key: one for key, one in found.items() if not one["found"].get("failure")}

    def write(self, job: Job, found: Mapping[str, Any]) -> None:
        """Keep what a job found; it is on disk before this returns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        content = json.dumps({"job": asdict(job), "found": found})
        write_file(self.folder / f"{job.key}.json", content)


def write_round(
    folder: Path, jobs: Sequence[Job], finished: Mapping[str, Mapping[str, Any]]
) -> list[Path]:
    """Write the tables of a finished round; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    found = {job.key: finished[job.key]["found"] for job in jobs}
    rows = [_make_run_row(job, found[job.key]) for job in jobs]
    paths = [folder / "runs.csv.gz"]
    write_file(paths[0], compress(_to_csv(RUN_COLUMNS, rows)))
    for task in sorted({job.task for job in jobs if job.role == "run"}):
        of_task = [job for job in jobs if job.task == task and job.role == "run"]
        paths.append(folder / f"{make_file_name(task)}.csv.gz")
        write_predictions(paths[-1], _to_predictions(of_task, found))
    return [*paths, *folder.glob(TASK_FILE)]


def make_file_name(task: str) -> str:
    """Return a task as a file name.

    >>> make_file_name("cluster, 100 slides")
    'cluster-100-slides'
    """
    return re.sub(r"[^a-z0-9_]+", "-", task.lower()).strip("-")


def compress(text: str) -> bytes:
    """Return gzip bytes that are the same for the same text."""
    return gzip.compress(text.encode(), 9, mtime=0)


def _to_csv(columns: Sequence[str], rows: Iterable[Mapping[str, str]]) -> str:
    stream = io.StringIO()
    writer = csv.DictWriter(stream, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def _make_run_row(job: Job, found: Mapping[str, Any]) -> Row:
    known = {
        "key": job.key,
        "role": job.role,
        "task": job.task,
        "model": job.model,
        "fold": job.fold,
        "seed": job.seed,
        "training": dump_json(dict(job.recipe)),
        **found,
    }
    return {name: _to_text(known.get(name)) for name in RUN_COLUMNS}


def _to_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:.6g}"
    return dump_json(value) if isinstance(value, Mapping) else str(value)


def _to_predictions(jobs: Sequence[Job], found: Mapping[str, Mapping[str, Any]]) -> Predictions:
    rows, values = [], []
    for job in jobs:
        for slide_id, patient, target, *predicted in found[job.key]["predictions"]:
            rows.append((slide_id, patient, "test", job.fold, job.seed, job.model, target))
            values.append(predicted)
    card = found[jobs[0].key].get("task_card")
    return Predictions.from_rows(parse_task_card(card) if card else CLASSES, rows, values)


def read_runs(results: Path, study: str, round_id: str) -> list[Row]:
    """Return the rows of runs.csv.gz; none where the round has no results."""
    path = results / study / round_id / "runs.csv.gz"
    if not path.exists():
        return []
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as stream:
            return list(csv.DictReader(stream))
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise RunError(f"{path}: cannot be read as a table ({error})") from error


def select_complete_models(path: Path) -> Predictions:
    """Return the predictions of the models that have all folds and seeds that any has."""
    found = read_predictions(path)
    parts: dict[str, set[tuple[int, int]]] = {}
    for model, fold, seed in zip(found.model, found.fold, found.seed, strict=True):
        parts.setdefault(str(model), set()).add((int(fold), int(seed)))
    most = max(map(len, parts.values()))
    return found.select(np.array([len(parts[str(model)]) == most for model in found.model]))


def choose_settings(
    tuning: Tuning, rows: Iterable[Mapping[str, Any]], recipe: Mapping[str, Any]
) -> dict[str, float] | None:
    """Return the settings with the best validation AUC, then the lowest loss.

    Args:
        tuning: of the study.
        rows: of one task and model, those that tune.
        recipe: whose settings are kept where nothing was learned.
    """
    known = [row for row in rows if not row.get("failure")]
    if len(known) < len(tuning.list_settings()):
        return None
    best = max(known, key=lambda row: (float(row["val_auc"]), -float(row["val_loss"])))
    has_learned = float(best["val_auc"]) >= tuning.min_auc
    training = json.loads(best["training"]) if has_learned else recipe
    return {name: float(training[name]) for name in tuning.grid}


def update_manifest(
    results: Path, paths: Sequence[Path], *, commit: str, date: str, runs: Sequence[Row]
) -> None:
    """Add files to the manifest, or replace their rows."""
    held = {row["file"]: row for row in read_manifest(results)}
    common = {
        "commit": commit,
        "date": date,
        **{
            key: "; ".join(sorted({row[key] for row in runs} - {""})) for key in ("torch", "device")
        },
    }
    for path in paths:
        name, content = path.relative_to(results).as_posix(), path.read_bytes()
        rows = gzip.decompress(content).count(b"\n") - 1 if path.suffix == ".gz" else 0
        digest = hashlib.sha256(content).hexdigest()
        held[name] = {"file": name, "sha256": digest, "rows": str(rows), **common}
    text = _to_csv(MANIFEST_COLUMNS, [held[name] for name in sorted(held)])
    write_file(results / "manifest.csv", text)


def read_manifest(results: Path) -> list[Row]:
    """Return the rows of the manifest."""
    path = results / "manifest.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def list_rounds_with_results(study: Study, results: Path) -> list[str]:
    """Return the rounds whose results are there, in the order of the study."""
    return [one.id for one in study.rounds if (results / study.name / one.id).is_dir()]
