"""Calibrates the models of a run on their validation sets, and applies that to its predictions."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sacmil.atomic import exclusive
from sacmil.card import CARD_FILE, read_card, update_card
from sacmil.errors import CohortError, CohortWarning, RunError, format_count
from sacmil.evaluation.fold_results import find_unit
from sacmil.evaluation.operating_points import AppliedCalibration, JobKey
from sacmil.evaluation.table_format import Cell, ResultTable, TableStyle
from sacmil.results import Predictions, Run, read_predictions
from sacmil.tasks import Task, from_card
from sacmil.tasks.calibration import (
    Calibration,
    check_can_calibrate,
    fit_calibration,
    list_threshold_columns,
)
from sacmil.workflows.runs import find_run_folder, join_runs, name_models

if TYPE_CHECKING:
    import pandas

_HOW_TO_VALIDATE = (
    "expected a run whose recipe keeps a validation set; train it with monitor=val_loss, "
    "val_metric or val_auc (monitor=last trains on those patients too), on splits that have one: "
    "make them by `validation=0.3`"
)


@dataclass(frozen=True)
class CalibratedModel:
    """The calibration of one trained model."""

    folder: Path
    model: str
    seed: int
    fold: int
    task: Task
    calibration: Calibration

    @property
    def records(self) -> list[dict[str, Any]]:
        """A row for each threshold, or for all classes together."""
        found, names = self.calibration, name_thresholds(self.task, self.calibration)
        rows = []
        for number, (name, threshold) in enumerate(names.items() or [("all", np.nan)]):
            of_label = min(number, len(found.temperatures) - 1)
            sensitivity, specificity = (*found.reached, (np.nan, np.nan))[number]
            rows.append(
                {
                    "model": self.model,
                    "seed": self.seed,
                    "fold": self.fold,
                    "of": name,
                    "temperature": found.temperatures[of_label],
                    "threshold": threshold,
                    "sensitivity": sensitivity,
                    "specificity": specificity,
                    "patients": found.patients,
                    "log_loss_before": found.log_loss[0],
                    "log_loss": found.log_loss[1],
                }
            )
        return rows


@dataclass(frozen=True)
class CalibrationSummary:
    """The calibrations that were written to a run."""

    models: tuple[CalibratedModel, ...]

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas frame with a row per trained model and threshold."""
        import pandas

        return pandas.DataFrame([row for one in self.models for row in one.records])

    @property
    def table(self) -> ResultTable:
        """The same as a table; sensitivity and specificity are of the validation set."""
        records = [row for one in self.models for row in one.records]
        style = TableStyle()
        rows = [
            tuple(
                Cell(style.format_number(value) if isinstance(value, float) else str(value))
                for value in row.values()
            )
            for row in records
        ]
        header = tuple(name.replace("_", " ") for name in records[0])
        caption = (
            "Of the validation set, on which temperatures and thresholds were chosen: sensitivity "
            "and specificity are optimistic. Measure them on test sets with sacmil evaluate."
        )
        return ResultTable(caption, header, tuple(rows), tuple(records))


def calibrate(
    run: str | os.PathLike[str] | Run, *, sensitivity: float | None = None
) -> CalibrationSummary:
    """Choose a temperature and thresholds for each trained model of a run, on its validation set.

    They are written to the models' cards, which exports copy. Predictions change only where
    ``calibrated`` is given. Test sets are not used. Another call replaces the calibrations.

    Args:
        run: a run, or its folder, trained with monitor=val_loss, val_metric or val_auc.
        sensitivity: to be reached by the largest such threshold, such as 0.95; None means the
            threshold with the largest sensitivity + specificity - 1 (Youden's index).

    Raises:
        RunError: the run has no trained models, or no validation sets.
        CohortError: lists what the validation sets lack; nothing is written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> import sacmil
        >>> from sacmil.results import Predictions, write_predictions
        >>> rows = [(f"s{n}", f"p{n}", "val", 0, 0, "mean_pool", n % 2) for n in range(20)]
        >>> of_tumor = [0.2, 0.9, 0.4, 0.8, 0.5, 0.3, 0.1, 0.9, 0.3, 0.8] * 2
        >>> model = sacmil.create_model("mean_pool", in_dim=4, num_classes=2)
        >>> with TemporaryDirectory() as folder:
        ...     run = f"{folder}/run"  # as train leaves it
        ...     sacmil.save_model(run, model, classes=["normal", "tumor"])
        ...     table = Predictions.from_rows(
        ...         ["normal", "tumor"], rows, [[1 - p, p] for p in of_tumor]
        ...     )
        ...     write_predictions(f"{run}/predictions.csv", table)
        ...     frame = calibrate(run).to_frame()
        >>> frame[["of", "temperature", "threshold", "sensitivity"]].round(2).values.tolist()
        [['tumor', 0.55, 0.71, 0.8]]
    """
    found = Run(Path(run))
    folders = found.model_folders()
    if not folders:
        raise RunError(f"{found.folder}: has no trained models (no {CARD_FILE}); finish the run")
    with exclusive(found.folder, purpose="run"):
        validation = {folder: _read_validation_rows(folder) for folder in folders}
        _check_has_validation(found.folder, validation)
        models, problems = [], []
        for folder, rows in validation.items():
            try:
                models.append(_fit_model(folder, rows, sensitivity))
            except CohortError as error:
                name = os.path.relpath(folder, found.folder)
                problems += [f"{name}: {text}" for text in error.problems]
        if problems:
            raise CohortError(f"validation sets of {found.folder}", problems)
        for one in models:
            update_card(one.folder, calibration=one.calibration.to_dict())
    for one in models:
        _warn_of_weak_validation(one)
    return CalibrationSummary(tuple(models))


def _read_validation_rows(folder: Path) -> Predictions:
    predictions = read_predictions(folder)
    return predictions.select(predictions.split == "val")


def _check_has_validation(run: Path, rows: Mapping[Path, Predictions]) -> None:
    check_can_calibrate(from_card(next(iter(rows.values())).task))
    lacking = [folder for folder, found in rows.items() if not len(found)]
    if lacking:
        raise RunError(
            f"{run}: {len(lacking)} of {len(rows)} models have no validation predictions, such as "
            f"{lacking[0]}; {_HOW_TO_VALIDATE}"
        )


def _fit_model(folder: Path, rows: Predictions, sensitivity: float | None) -> CalibratedModel:
    task = from_card(rows.task)
    calibration = fit_calibration(
        task,
        rows.targets,
        rows.values,
        patients=rows.patient_id,
        by_slide=find_unit(rows) == "slide",
        sensitivity=sensitivity,
    )
    job = str(rows.model[0]), int(rows.seed[0]), int(rows.fold[0])
    return CalibratedModel(folder, *job, task, calibration)


def _warn_of_weak_validation(found: CalibratedModel) -> None:
    calibration, where = found.calibration, f"{found.folder}: of its validation set"
    if 1.0 in calibration.temperatures:
        count = format_count(calibration.patients, "patient")
        warnings.warn(
            f"{where} ({count}), no temperature improves the log loss, as when every prediction is "
            "right; it stays 1",
            CohortWarning,
            stacklevel=3,
        )
    names = name_thresholds(found.task, calibration)
    for name, (sensitivity, specificity) in zip(names, calibration.reached, strict=True):
        if sensitivity + specificity <= 1:
            warnings.warn(
                f"{where}, {name} is found no better than by chance at the threshold "
                f"{names[name]:.3f} (sensitivity {sensitivity:.2f}, specificity {specificity:.2f})",
                CohortWarning,
                stacklevel=3,
            )


def name_thresholds(task: Task, calibration: Calibration) -> dict[str, float]:
    """Return the thresholds by the name of their class or label."""
    names = [task.value_names[column] for column in list_threshold_columns(task)]
    return dict(zip(names, calibration.thresholds, strict=True))


# --- evaluations of runs -------------------------------------------------------------------------


def calibrate_runs(paths: Sequence[Path]) -> dict[str, Any]:
    """Return the predictions of runs, each job's with its own calibration, and what was done.

    Args:
        paths: of runs or their predictions.csv, with the trained models beside.

    Raises:
        ModelFolderError: a model is not calibrated.
    """
    raw = [read_predictions(path) for path in paths]
    names, calibrated, rules = name_models(paths, raw), [], set()
    thresholds: dict[JobKey, Mapping[str, float]] = {}
    for path, predictions in zip(paths, raw, strict=True):
        folder, task = find_run_folder(path), from_card(predictions.task)
        check_can_calibrate(task)
        values = predictions.values.copy()
        for job, rows in _group_by_job(predictions).items():
            (model, seed, fold), where = job, _find_job_folder(folder, *job)
            calibration = Calibration.from_card(read_card(where), where)
            values[rows] = calibration.apply(values[rows])
            thresholds[names[folder, model], seed, fold] = name_thresholds(task, calibration)
            rules.add(calibration.rule_description)
        calibrated.append(replace(predictions, values=values))
    applied = AppliedCalibration(join_runs(paths, raw)[0], thresholds, tuple(sorted(rules)))
    return {"predictions": join_runs(paths, calibrated)[0], "calibration": applied}


def _group_by_job(predictions: Predictions) -> dict[JobKey, list[int]]:
    """Return the rows of each model, seed and fold."""
    columns = predictions.model.tolist(), predictions.seed.tolist(), predictions.fold.tolist()
    rows: dict[JobKey, list[int]] = {}
    for row, job in enumerate(zip(*columns, strict=True)):
        rows.setdefault(job, []).append(row)
    return rows


def _find_job_folder(run: Path, model: str, seed: int, fold: int) -> Path:
    folder = run if (run / CARD_FILE).is_file() else run / model / f"seed_{seed}" / f"fold_{fold}"
    if not (folder / CARD_FILE).is_file():
        raise RunError(
            f"{run}: the model of its predictions is missing (no {folder / CARD_FILE}); expected "
            "the folder of a run with its trained models, or leave out `calibrated`"
        )
    return folder
