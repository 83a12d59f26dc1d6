"""Reads runs, and holds what evaluations and comparisons of them share."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from sacmil.card import CARD_FILE
from sacmil.errors import RunError, RunWarning
from sacmil.evaluation.fold_results import select_test_rows
from sacmil.evaluation.localization import summarize_localization
from sacmil.evaluation.operating_points import AppliedCalibration, operating_points_table
from sacmil.evaluation.report import Report, make_task_tables
from sacmil.evaluation.summary import MetricEstimate, summarize
from sacmil.evaluation.table_format import ResultTable, TableStyle
from sacmil.evaluation.tables import breakdown_table, localization_table
from sacmil.results import (
    LOCALIZATION_FILE,
    PREDICTIONS_FILE,
    Predictions,
    Run,
    SlideLocalization,
    TaskCard,
    read_localization,
    read_predictions,
)
from sacmil.tasks import from_card

RunPath = str | Path | Run
"""A run, its folder, or its predictions.csv (compressed: .csv.gz)."""
LOCALIZATION_HEADING = "Localisation"
"""Heading of the table of localisation."""
OPERATING_POINTS_HEADING = "Operating points"
"""Heading of the table of thresholds and what they achieve."""
"""Heading of the table of single labels."""
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
    warnings: list[str] = field(default_factory=list)
    """Reasons why metrics may mislead; each is also a CohortWarning or a RunWarning."""
    calibration: AppliedCalibration | None = None
    """If the predictions are calibrated: what was done to them."""
    metrics: tuple[str, ...] | None = None
    """None means those of the task's tables."""
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
        tables = make_task_tables(self.predictions, style)
        tables |= self._make_localization_tables(style)
        if parts := breakdown_table(self.predictions, **self._resampling, style=style):
            heading = f"{from_card(self.predictions.task).breakdown_of.capitalize()}s"
            tables = {heading: parts, **tables}
        if self.calibration is not None:
            settings = {**self._resampling, "style": style}
            points = operating_points_table(self.predictions, self.calibration, **settings)
            tables = {OPERATING_POINTS_HEADING: points, **tables}
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
    found = [read_predictions(path) for path in paths]
    predictions, localization = join_runs(paths, found)
    texts = [text for run in zip(paths, found, strict=True) if (text := describe_unfinished(*run))]
    for text in texts:
        warnings.warn(text, RunWarning, stacklevel=3)
    content = {"predictions": predictions, "localization": localization, "warnings": texts}
    return content | describe_runs(kind, paths, ", ".join(map(str, paths)))


def describe_unfinished(path: Path, predictions: Predictions) -> str:
    """Return how many models of a run are trained and evaluated, if not all; or nothing.

    Args:
        path: of a run, or of its predictions.csv.
        predictions: its predictions.
    """
    folder = find_run_folder(path)
    folds = len(list((folder / "splits").glob("splits_*.csv")))
    if not folds or (folder / CARD_FILE).is_file():  # not of cross_validate
        return ""
    columns = predictions.model.tolist(), predictions.seed.tolist(), predictions.fold.tolist()
    done = set(zip(*columns, strict=True))
    run = Run(folder)
    seeds = {*run.seeds, *(seed for _, seed, _ in done)}
    names = {*run.models, *(model for model, _, _ in done)}
    wanted = len(names) * len(seeds) * folds
    if len(done) >= wanted:
        return ""
    return (
        f"{folder}: {len(done)} of {wanted} models are trained, and only these are used; to train "
        "the others, repeat the command of the run"
    )


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
    return join_runs(paths, [read_predictions(path) for path in paths])


def join_runs(
    paths: Sequence[Path], found: Sequence[Predictions]
) -> tuple[Predictions, list[SlideLocalization]]:
    """Join the predictions of runs, and read their localisation; as read_runs.

    Args:
        paths: of the runs.
        found: their predictions.
    """
    names, folders = name_models(paths, found), list(map(find_run_folder, paths))
    runs = list(zip(folders, found, strict=True))
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


def name_models(paths: Sequence[Path], found: Sequence[Predictions]) -> dict[tuple[Path, str], str]:
    """Return a distinct name for each model of several runs, by run folder and its own name."""
    runs = zip(map(find_run_folder, paths), found, strict=True)
    models = [(folder, str(name)) for folder, one in runs for name in np.unique(one.model)]
    return dict(zip(models, make_distinct_names(models), strict=True))


def find_run_folder(path: Path) -> Path:
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
    if not (predictions.task.is_classification and classes):
        return predictions  # joining them compares the tasks
    if set(predictions.classes) != set(classes):
        raise RunError(
            f"the runs have different classes: {', '.join(classes)}; and "
            f"{', '.join(predictions.classes)}; expected runs of the same classes"
        )
    columns = [predictions.classes.index(name) for name in classes]
    new_labels = np.argsort(columns)
    return replace(
        predictions,
        task=TaskCard.of_classes(classes),
        targets=new_labels[predictions.label][:, None].astype(np.float64),
        values=predictions.values[:, columns],
    )
