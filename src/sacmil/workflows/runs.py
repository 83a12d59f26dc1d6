"""Reads runs, and holds what evaluations and comparisons of them share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sacmil.card import CARD_FILE
from sacmil.errors import RunError
from sacmil.evaluation.fold_results import select_test_rows
from sacmil.evaluation.localization import summarize_localization
from sacmil.evaluation.report import Report
from sacmil.evaluation.summary import DEFAULT_METRICS, MetricEstimate, summarize
from sacmil.evaluation.table_format import ResultTable, TableStyle
from sacmil.evaluation.tables import localization_table
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
"""A run, its folder, or its predictions.csv (compressed: .csv.gz)."""
LOCALIZATION_HEADING = "Localisation"
"""Heading of the table of localisation."""
_REPORT_FIELDS = ("title", "predictions", "estimates", "settings", "data", "level", "draws")
"""Fields of reports that results have too."""
_SETTINGS_FILES = ("config.yaml", "provenance.json", CARD_FILE)


@dataclass(frozen=True, kw_only=True, eq=False)
class ModelResults:
    """Predictions of models, and their metrics.

    Metrics are computed on first use: intervals take a while.
    """

    predictions: Predictions
    """On another cohort: one test set, fold 0 and seed 0; a slide that failed has no row."""
    localization: list[SlideLocalization] = field(default_factory=list)
    """A row per model and slide with instance labels."""
    title: str = ""
    data: str = ""
    """Short description of the data."""
    settings: dict[str, str] = field(default_factory=dict)
    """Text of the files with settings and versions, by path."""
    metrics: tuple[str, ...] = DEFAULT_METRICS
    level: float = 0.95
    draws: int = 2000
    seed: int = 0

    @cached_property
    def estimates(self) -> dict[str, dict[str, MetricEstimate]]:
        """Estimates by model and metric."""
        return summarize(self.predictions, metrics=self.metrics, **self._resampling)

    @property
    def _resampling(self) -> dict[str, Any]:
        return {"level": self.level, "draws": self.draws, "seed": self.seed}

    def _build_report(self, style: TableStyle | None, **content: Any) -> Report:
        """Return a report of these results; its other fields are the content."""
        style = style or TableStyle()
        tables = self._make_localization_tables(style)
        shared = {name: getattr(self, name) for name in _REPORT_FIELDS}
        return Report(**shared, **content, extra_tables=tables, style=style)

    def _make_localization_tables(self, style: TableStyle) -> dict[str, ResultTable]:
        """Return the table by its heading; none unless slides have both kinds of instances."""
        found = summarize_localization(self.localization, **self._resampling)
        if not found:
            return {}
        # Instance labels may exist in one fold only, so folds are counted in the predictions.
        test = select_test_rows(self.predictions)
        tested = set(zip(test.model.tolist(), test.fold.tolist(), strict=True))
        folds = max(Counter(model for model, _ in tested).values(), default=0)
        shown: dict[str, Any] = {"level": self.level, "draws": self.draws, "style": style}
        return {LOCALIZATION_HEADING: localization_table(found, folds=folds, **shown)}


def read_run_results(kind: str, paths: Sequence[Path]) -> dict[str, Any]:
    """Return the fields of ModelResults that are read from runs; arguments as of describe_runs."""
    predictions, localization = read_runs(paths)
    described = describe_runs(kind, paths, ", ".join(map(str, paths)))
    return {"predictions": predictions, "localization": localization, **described}


def describe_runs(kind: str, paths: Sequence[Path], data: str) -> dict[str, Any]:
    """Return title, data and settings of results.

    Args:
        kind: what the results are, such as Evaluation.
        paths: of runs or models.
        data: short description of the data.
    """
    names = ", ".join(path.name or str(path) for path in paths)
    return {"title": f"{kind} of {names}", "data": data, "settings": read_run_settings(paths)}


def read_runs(paths: Sequence[Path]) -> tuple[Predictions, list[SlideLocalization]]:
    """Read predictions and localisation of several runs, with a distinct name for every model.

    Args:
        paths: run folders or tables (.csv, .csv.gz); their classes must have the same names.
    """
    found = [read_predictions(path) for path in paths]
    folders = list(map(_find_run_folder, paths))
    runs = list(zip(folders, found, strict=True))
    models = [(folder, str(name)) for folder, one in runs for name in np.unique(one.model)]
    names = dict(zip(models, make_distinct_names(models), strict=True))
    predictions = Predictions.concatenate(
        replace(
            reorder_classes(one, found[0].classes),
            model=np.array([names[folder, str(name)] for name in one.model], dtype=np.str_),
        )
        for folder, one in runs
    )
    localization = [
        row._replace(model=names[folder, row.model])
        for folder in folders
        for row in read_localization(folder / LOCALIZATION_FILE)
        if (folder, row.model) in names
    ]
    return predictions, localization


def _find_run_folder(path: Path) -> Path:
    """Return the run folder of a file; another file's path without suffix serves as one."""
    if not path.is_file():
        return path
    name = path.name.removesuffix(".gz")
    return path.parent if name == PREDICTIONS_FILE else path.with_name(name).with_suffix("")


def read_run_settings(paths: Sequence[Path]) -> dict[str, str]:
    """Return the text of the files with settings and versions of runs or models, by path."""
    texts = {}
    for path in paths:
        folder = path.parent if path.is_file() else path
        for file in (folder / name for name in _SETTINGS_FILES):
            if file.is_file():
                texts[str(file)] = file.read_text(encoding="utf-8", errors="replace")
    return texts


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
