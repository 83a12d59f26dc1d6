"""Predictions of a model on the test set of each fold, by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sacmil.errors import RunError
from sacmil.evaluation.metrics import METRICS
from sacmil.evaluation.patient_level import average_by_patient, sort_rows
from sacmil.results import Predictions


@dataclass(frozen=True, eq=False)
class FoldResult:
    """Predictions of a model on the test set of one fold."""

    model: str
    fold: int
    units: npt.NDArray[np.str_]
    """(n,), ids of patients, or of slides where a patient's slides differ in label."""
    patients: npt.NDArray[np.str_]
    """(n,), patient of each unit."""
    labels: npt.NDArray[np.int64]
    """(n,)."""
    probabilities: npt.NDArray[np.float64]
    """(seeds, n, C)."""

    def compute_metric(self, metric: str) -> float:
        """Return the metric, averaged over seeds."""
        return float(np.mean([METRICS[metric](self.labels, p) for p in self.probabilities]))


def collect_fold_results(predictions: Predictions) -> dict[str, list[FoldResult]]:
    """Return the fold results of each model, sorted by model and fold, from the test rows.

    Raises:
        RunError: nothing was tested, a slide was tested twice, or seeds have different slides.
    """
    tested = predictions.select(predictions.split == "test")
    if not len(tested):
        found = ", ".join(sorted({*predictions.split.tolist()})) or "no rows"
        raise RunError(
            f"there are no test predictions: found {found}, expected rows of the split 'test'; "
            "finish the run, or see why its slides failed"
        )
    _check_no_duplicates(sort_rows(tested))
    units = sort_rows(average_by_patient(tested))
    return {
        model: [_merge_seeds(rows.select(rows.fold == fold)) for fold in np.unique(rows.fold)]
        for model in np.unique(units.model).tolist()
        for rows in [units.select(units.model == model)]
    }


def compute_fold_metrics(
    fold_results: Sequence[FoldResult], metric: str
) -> npt.NDArray[np.float64]:
    """Return the metric in each fold: (folds,)."""
    return np.array([result.compute_metric(metric) for result in fold_results])


def describe_difference(one: FoldResult, other: FoldResult) -> str | None:
    """Return how the units of two fold results differ, for an error; None if they are equal."""
    odd = sorted({unit for _, unit in _collect_patient_units(one) ^ _collect_patient_units(other)})
    if odd:
        return f"different slides or patients ({_format_names(odd)} in one only)"
    relabelled = one.units[one.labels != other.labels].tolist()  # both in order
    return f"different labels ({_format_names(relabelled)})" if relabelled else None


def _collect_patient_units(result: FoldResult) -> set[tuple[str, str]]:
    return set(zip(result.patients.tolist(), result.units.tolist(), strict=True))


def _merge_seeds(rows: Predictions) -> FoldResult:
    seeds = np.unique(rows.seed)
    first, *others = [_make_fold_result(rows.select(rows.seed == seed)) for seed in seeds]
    for seed, other in zip(seeds[1:], others, strict=True):
        if differs := describe_difference(first, other):
            raise RunError(
                f"{first.model}, fold {first.fold}: seeds {seeds[0]} and {seed} were tested on "
                f"{differs}; expected the same for every seed: finish the run with sacmil crossval"
            )
    probabilities = [first.probabilities, *(other.probabilities for other in others)]
    return replace(first, probabilities=np.concatenate(probabilities))


def _make_fold_result(rows: Predictions) -> FoldResult:
    return FoldResult(
        model=str(rows.model[0]),
        fold=int(rows.fold[0]),
        units=rows.slide_id,
        patients=rows.patient_id,
        labels=rows.label,
        probabilities=rows.probabilities[None],
    )


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _check_no_duplicates(rows: Predictions) -> None:
    columns = [rows.model, rows.seed, rows.fold, rows.patient_id, rows.slide_id]
    again = np.all([column[1:] == column[:-1] for column in columns], axis=0)
    if again.any():
        row = int(np.flatnonzero(again)[0])
        raise RunError(
            f"slide {rows.slide_id[row]} was tested twice by {rows.model[row]} in fold "
            f"{rows.fold[row]}, seed {rows.seed[row]}; expected one row per slide: rename the "
            "models if two runs with the same model name were joined"
        )
