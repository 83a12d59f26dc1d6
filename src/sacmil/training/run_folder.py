"""The run folder's records of how it was made: config.yaml, splits, provenance.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from sacmil.atomic import atomic_write, exclusive
from sacmil.cohorts.cohort import Cohort
from sacmil.cohorts.split_cohort import write_splits
from sacmil.cohorts.splits import Fold
from sacmil.environment import list_devices, list_versions
from sacmil.errors import ConfigError, RunError, shorten_value
from sacmil.training.config import TrainingConfig, read_config

CONFIG_FILE = "config.yaml"
PROVENANCE_FILE = "provenance.json"
_MISMATCH_WORDS = {"cohort": "another cohort or for another task", "folds": "other folds"}
"""How an error describes each mismatch."""

Facts = dict[str, Any]


@contextmanager
def open_run(
    out: Path, cohort: Cohort, folds: Sequence[Fold], command: str, seeds: Sequence[int] = ()
) -> Iterator[None]:
    """Open a run folder: a new one, or an existing one of the same command, cohort and folds.

    Models and seeds may be added to a run; its slides, labels and folds cannot change. Two
    commands cannot use one run folder at the same time.
    """
    _check_is_run_folder(out)
    with exclusive(out, purpose="run"):
        before = _read_provenance(out)
        recorded = before.get("command", command)
        if recorded != command:  # both use the same file names
            raise RunError(
                f"{out}: is a run of sacmil {recorded}, not of sacmil {command}; choose another "
                "`out`"
            )
        request = {"command": command, "seeds": sorted({*before.get("seeds", ()), *seeds})}
        _write_provenance(out, cohort, folds, before, request)
        yield


def _check_is_run_folder(out: Path) -> None:
    """Reject a folder of something else, but accept what a run killed at its start left."""
    if (out / PROVENANCE_FILE).is_file() or not out.exists():
        return
    foreign = [file.name for file in out.iterdir() if not _is_of_start(file.name)]
    if foreign:
        raise RunError(
            f"{out}: holds {foreign[0]} and is no run folder (no {PROVENANCE_FILE}); choose "
            "another `out`"
        )


def _is_of_start(name: str) -> bool:
    """Whether a file is what a run writes first."""
    return name in ("splits", ".run.lock") or name.startswith(f".{PROVENANCE_FILE}.")


def _write_provenance(
    out: Path, cohort: Cohort, folds: Sequence[Fold], recorded: Facts, request: Facts
) -> None:
    listed = json.dumps([list(map(list, fold)) for fold in folds])
    facts = {"cohort": cohort.sha256, "folds": hashlib.sha256(listed.encode()).hexdigest()}
    for name, value in facts.items():
        if recorded and recorded.get(name) != value:
            raise RunError(
                f"{out}: is a run over {_MISMATCH_WORDS[name]} (by {PROVENANCE_FILE} there); "
                "choose another `out`"
            )
    write_splits(out / "splits", folds, cohort, overwrite=not recorded)
    with atomic_write(out / PROVENANCE_FILE) as partial:
        provenance = request | facts | {"versions": list_versions(), "devices": list_devices()}
        partial.write_text(json.dumps(provenance, indent=2) + "\n", encoding="utf-8")


def _read_provenance(out: Path) -> Facts:
    try:
        found: Any = json.loads((out / PROVENANCE_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise RunError(
            f"{out / PROVENANCE_FILE}: cannot be read ({error}); restore it, or choose another "
            "`out`"
        ) from error
    seeds = found.get("seeds", []) if isinstance(found, dict) else None
    if not isinstance(seeds, list) or not all(isinstance(seed, int) for seed in seeds):
        raise RunError(
            f"{out / PROVENANCE_FILE}: seeds are {shorten_value(seeds)}; expected a list of "
            "integers: restore the file, or choose another `out`"
        )
    return dict(found)


def write_configs(out: Path, configs: Mapping[str, TrainingConfig]) -> None:
    """Write configurations by name; those of other models in the file stay."""
    path = out / CONFIG_FILE
    try:
        known = read_config(path) if path.is_file() else {}
    except ConfigError as error:
        raise RunError(
            f"{error}. The file belongs to the run; restore it, or move it away and run again"
        ) from error
    known |= {name: config.to_dict() for name, config in configs.items()}
    with atomic_write(path) as partial:
        partial.write_text(yaml.safe_dump(known, sort_keys=False), encoding="utf-8")
