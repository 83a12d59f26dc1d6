"""Runs a round: jobs side by side until they are done or the time is up; each is kept at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from sacmil.errors import ConfigError, RunError
from sacmil.parallel import WorkerPool
from studies.data import Place, check_data
from studies.results import (
    FinishedJobs,
    choose_settings,
    read_runs,
    update_manifest,
    write_round,
)
from studies.study import FOLDER, Job, Round, Study, dump_json, list_jobs
from studies.train import free_memory, run_job

NO_LIMIT = float("inf")
"""For a single job: the time for all of them is what is limited."""
MEMORY_SIGNS = ("out of memory", "ALLOC_FAILED")

Chosen = dict[tuple[str, str], Mapping[str, float] | None]


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a round is run."""

    place: Place
    results: Path
    workers: int = 1
    minutes: float = 9.0
    tiny: bool = False
    commit: str = ""


def choose_round(study: Study, round_id: str | None, *, tiny: bool = False) -> Round:
    """Return the named round, or the first that is planned; to try it out, the last."""
    if round_id or tiny:
        return study.get_round(round_id or study.rounds[-1].id)
    planned = [one for one in study.rounds if one.status == "planned"]
    if not planned:
        raise ConfigError(
            f"study {study.name}: every round is done; name one with --round and another folder "
            "with --results to repeat it"
        )
    return planned[0]


def run_round(study: Study, this: Round, settings: RunSettings) -> bool:
    """Do all jobs of a round that are not done yet; return whether all are.

    Args:
        study: the study.
        this: one of its rounds.
        settings: where and how.
    """
    _check_not_done(study, this, settings)
    commit = settings.commit or _find_commit(this, tiny=settings.tiny)
    folder = settings.place.scratch / study.name / (this.id + "-tiny" * settings.tiny)
    finished = FinishedJobs(folder)
    deadline = time.monotonic() + 60 * settings.minutes
    while True:
        done = finished.read()
        chosen = _choose_all(study, this, settings, done)
        jobs = list_jobs(study, this, chosen, tiny=settings.tiny)
        todo = [job for job in jobs if job.key not in done]
        log(f"{study.name}, {this.id}: {len(jobs) - len(todo)} of {len(jobs)} jobs are done")
        if not todo:
            break
        _check_place(todo, settings)
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # workers share the cores: a thread each
        with WorkerPool(settings.workers, memory_limit=0) as pool:
            if not _do_jobs(pool, todo, finished, settings, deadline):
                return False
    paths = write_round(settings.results / study.name / this.id, jobs, done)
    today = datetime.now(UTC).date().isoformat()
    runs = read_runs(settings.results, study.name, this.id)
    update_manifest(settings.results, paths, commit=commit, date=today, runs=runs)
    devices = sorted({row["device"] for row in runs})
    log(f"finished; write into {study.name}.yaml, round {this.id}: status: done, ")
    log(f"  commit: {commit or 'none'}, date: {today}, device: {', '.join(devices)}")
    return True


def log(text: str) -> None:
    """Print one line with the time."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def _check_not_done(study: Study, this: Round, settings: RunSettings) -> None:
    if not settings.tiny and (settings.results / study.name / this.id).exists():
        raise RunError(
            f"{settings.results / study.name / this.id}: this round has results; a second look "
            "proves nothing. Give another folder with --results to repeat it"
        )


def _check_place(jobs: Sequence[Job], settings: RunSettings) -> None:
    """Report once what would make every job fail."""
    if settings.workers < 1:
        raise ConfigError(f"{settings.workers} workers; expected at least 1")
    if settings.place.device != "cpu" and not torch.cuda.is_available():
        raise ConfigError(f"device {settings.place.device}: torch finds no GPU; expected cpu")
    for data in {dump_json(job.data): job.data for job in jobs}.values():
        check_data(data, settings.place)


def _find_commit(this: Round, *, tiny: bool) -> str:
    """Return the commit of the code; a round that confirms needs one without changes."""

    def run_git(*arguments: str) -> str:
        command = ["git", "-C", str(FOLDER), *arguments]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        return ended.stdout.strip()

    commit, changed = run_git("rev-parse", "HEAD"), run_git("status", "--porcelain", "-uno")
    if this.purpose == "confirmation" and not tiny and (changed or not commit):
        found = "uncommitted changes" if changed else "no git repository"
        raise ConfigError(
            f"round {this.id} confirms, and its code must be known: found {found}; commit first, "
            "or give the commit with --commit"
        )
    return commit


def _choose_all(
    study: Study, this: Round, settings: RunSettings, done: Mapping[str, Mapping[str, Any]]
) -> Chosen:
    """Return the settings chosen by tuning, in this round or in the one it names."""
    tuning = this.tuning or study.tuning
    if tuning is None or not (this.tunes or this.tuned_in):
        return {}
    if this.tunes:
        rows = [_to_row(one) for one in done.values() if one["job"]["role"] == "tune"]
    else:
        found = read_runs(settings.results, study.name, this.tuned_in)
        found = found or read_runs(FOLDER / "results", study.name, this.tuned_in)
        rows = [row for row in found if row["role"] == "tune"]
        other = study.get_round(this.tuned_in)
        tuning = other.tuning or tuning
    by_pair: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        by_pair.setdefault((row["task"], row["model"]), []).append(row)
    chosen: Chosen = {
        pair: choose_settings(tuning, of, {**study.recipe, **study.models[pair[1]].recipe})
        for pair, of in by_pair.items()
        if pair[1] in study.models
    }
    if this.tuned_in and not chosen:
        raise RunError(f"round {this.tuned_in} has no results to take settings from; run it first")
    return chosen


def _to_row(one: Mapping[str, Any]) -> dict[str, Any]:
    job, found = one["job"], one["found"]
    return {
        **found,
        "task": job["task"],
        "model": job["model"],
        "training": dump_json(job["recipe"]),
    }


def _do_jobs(
    pool: WorkerPool,
    todo: Sequence[Job],
    finished: FinishedJobs,
    settings: RunSettings,
    deadline: float,
) -> bool:
    """Hand out a job only while there is time for one like it, and memory for one more."""
    waiting = list(todo)[::-1]
    running: dict[str, Job] = {}
    longest: dict[tuple[str, str], float] = {}
    failures, room = 0, settings.workers
    while (waiting or running) and (left := deadline - time.monotonic()) > 0:
        while waiting and len(running) < room and longest.get(_get_kind(waiting[-1]), 0) < left:
            job = waiting.pop()
            running[job.key] = job
            pool.submit(job.key, try_job, job, settings.place, limit_s=NO_LIMIT)
        if not running:
            break
        outcome = pool.next_outcome(timeout_s=min(left, 5))
        if outcome is None:
            continue
        job = running.pop(outcome.key)
        found = outcome.value or {"failure": outcome.failure}
        failure = str(found.get("failure") or "")
        if running and any(sign in failure for sign in MEMORY_SIGNS):
            room = len(running)
            waiting.append(job)
            log(f"{job.task}, {job.model}: no memory left; {room} at once from now on")
            continue
        finished.write(job, found)
        failures += bool(failure)
        kind = _get_kind(job)
        longest[kind] = max(longest.get(kind, 0), float(found.get("seconds", 0)))
        _log_job(job, found, len(waiting) + len(running))
    unfinished = len(waiting) + len(running)
    if unfinished or failures:
        log(f"{unfinished} jobs are left, {failures} failed; give the command again to go on")
    return not unfinished and not failures


def try_job(job: Job, place: Place) -> dict[str, Any]:
    """Do a job in a worker; an error becomes its result."""
    try:
        return run_job(job, place)
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({frame.name}, line {frame.lineno})"
        return {"failure": " ".join(text.split())[:500]}
    finally:
        free_memory()


def _get_kind(job: Job) -> tuple[str, str]:
    return job.task, job.model


def _log_job(job: Job, found: Mapping[str, Any], left: int) -> None:
    figures = [f"{name} {found[name]:.3f}" for name in ("val_auc", "auc") if found.get(name)]
    outcome = found.get("failure") or ", ".join([*figures, f"{found.get('seconds', 0):.1f} s"])
    where = f"{job.task}, {job.model}, fold {job.fold}, seed {job.seed}"
    log(f"{where}, {job.role}: {outcome}; {left} left")
