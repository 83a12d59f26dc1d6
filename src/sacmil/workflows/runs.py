"""Reads the predictions, localisation and settings of several runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sacmil.card import CARD_FILE
from sacmil.errors import OptionError, RunError, check_type, shorten_value
from sacmil.results import (
    LOCALIZATION_FILE,
    PREDICTIONS_FILE,
    Predictions,
    Run,
    SlideLocalization,
    read_localization,
    read_predictions,
)

RunPath = str | Path | Run
"""A run, its folder, or its predictions.csv."""


def to_path(run: RunPath) -> Path:
    """Return the path of a run."""
    if isinstance(run, Run):
        return run.folder
    check_type("runs", run, (str, Path), "a run, its path, or a list of these")
    return Path(run)


def list_runs(runs: RunPath | Sequence[RunPath]) -> list[RunPath]:
    """Return one or several runs as a list."""
    if isinstance(runs, str | Path | Run):
        return [runs]
    if not isinstance(runs, Iterable):
        raise OptionError(f"`runs` is {shorten_value(runs)}; expected a run, or a list of runs")
    if not (found := list(runs)):
        raise OptionError("`runs` is empty; expected at least one run or model")
    return found


def read_runs(paths: Sequence[RunPath]) -> Predictions:
    """Read the predictions of several runs, with a distinct name for every model.

    Args:
        paths: run folders or files like predictions.csv; their classes must have the same names.
    """
    found = [read_predictions(to_path(path)) for path in paths]
    folders = [_find_run_folder(to_path(path)) for path in paths]
    names = _make_distinct_models(folders, found)
    first = found[0].classes
    return Predictions.concatenate(
        _rename_models(reorder_classes(predictions, first), folder, names)
        for folder, predictions in zip(folders, found, strict=True)
    )


def read_run_localization(paths: Sequence[RunPath]) -> list[SlideLocalization]:
    """Read the localisation of several runs, with the model names of read_runs; empty if none.

    Args:
        paths: run folders, or predictions.csv of run folders.
    """
    folders = [_find_run_folder(to_path(path)) for path in paths]
    names = _make_distinct_models(folders, [read_predictions(to_path(path)) for path in paths])
    return [
        row._replace(model=names[folder, row.model])
        for folder in folders
        for row in read_localization(folder / LOCALIZATION_FILE)
        if (folder, row.model) in names
    ]


def _make_distinct_models(
    folders: Sequence[Path], runs: Sequence[Predictions]
) -> dict[tuple[Path, str], str]:
    models = [
        (folder, str(model))
        for folder, predictions in zip(folders, runs, strict=True)
        for model in np.unique(predictions.model)
    ]
    return dict(zip(models, make_distinct_names(models), strict=True))


def _find_run_folder(path: Path) -> Path:
    """Return the run folder of a file; another file's path without suffix serves as one."""
    if path.is_file():
        return path.parent if path.name == PREDICTIONS_FILE else path.with_suffix("")
    return path


def read_run_settings(paths: Sequence[RunPath]) -> dict[str, str]:
    """Return the text of the files with settings and versions of runs or models, by path."""
    texts = {}
    for path in map(to_path, paths):
        folder = path.parent if path.is_file() else path
        for file in (folder / name for name in _SETTINGS_FILES):
            if file.is_file():
                texts[str(file)] = file.read_text(encoding="utf-8", errors="replace")
    return texts


_SETTINGS_FILES = ("config.yaml", "provenance.json", CARD_FILE)


def make_distinct_names(models: Sequence[tuple[Path, str]]) -> list[str]:
    """Return distinct names of models; equal names get as much of their folder as needed.

    >>> make_distinct_names([(Path("a"), "abmil"), (Path("b"), "abmil"), (Path("b"), "dsmil")])
    ['a/abmil', 'b/abmil', 'dsmil']
    """
    counted = Counter(name for _, name in models)
    folders = [folder.resolve().parts for folder, _ in models]
    for depth in range(max(map(len, folders), default=0) + 1):
        names = [
            _prefix_folder(parts[len(parts) - depth :], name) if counted[name] > 1 else name
            for parts, (_, name) in zip(folders, models, strict=True)
        ]
        if len(set(names)) == len(names):
            return names
    duplicate = next(str(folder) for folder, name in models if counted[name] > 1)
    raise RunError(f"{duplicate}: is given twice; expected every run or model once")


def _prefix_folder(parts: tuple[str, ...], name: str) -> str:
    """Join folder and name, without repeating a folder that is named like the model."""
    return "/".join(parts if parts and parts[-1] == name else (*parts, name))


def reorder_classes(predictions: Predictions, classes: tuple[str, ...]) -> Predictions:
    """Return the predictions with their classes in another order."""
    if set(predictions.classes) != set(classes):
        raise RunError(
            f"the runs have different classes: {', '.join(classes)}; and "
            f"{', '.join(predictions.classes)}; expected runs of the same classes"
        )
    columns = [predictions.classes.index(name) for name in classes]
    new_labels = np.argsort(columns)
    return replace(
        predictions,
        classes=classes,
        label=new_labels[predictions.label],
        probabilities=predictions.probabilities[:, columns],
    )


def _rename_models(
    predictions: Predictions, folder: Path, names: Mapping[tuple[Path, str], str]
) -> Predictions:
    renamed = [names[folder, str(model)] for model in predictions.model]
    return replace(predictions, model=np.array(renamed, dtype=np.str_))
