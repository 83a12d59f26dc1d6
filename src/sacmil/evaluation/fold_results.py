"""Predictions of a model on the test set of each fold, by seed.

The unit of metrics is the patient, or the slide if a patient's slides differ in label.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from sacmil.errors import RunError
from sacmil.metrics.metric import Metric
from sacmil.results import Predictions
from sacmil.tasks import Task, from_card

Floats = npt.NDArray[np.float64]
Unit = Literal["patient", "slide"]

_DIGITS = 12
_SORT_COLUMNS = ("slide_id", "patient_id", "split", "fold", "seed", "model")
"""Columns to sort by, least important first."""


@dataclass(frozen=True, eq=False)
class FoldResult:
    """Predictions of a model on the test set of one fold."""

    model: str
    fold: int
    units: npt.NDArray[np.str_]
    """(n,), ids of patients, or of slides where a patient's slides differ in label."""
    patients: npt.NDArray[np.str_]
    """(n,), patient of each unit."""
    task: Task
    targets: npt.NDArray[np.float64]
    """(n, T)."""
    values: npt.NDArray[np.float64]
    """(seeds, n, P)."""
    training: npt.NDArray[np.float64] | None = None
    """(m, T), targets of the training patients, if the predictions have them."""

    @property
    def groups(self) -> npt.NDArray[np.int64]:
        """(n,), of which each resample must keep a unit."""
        return self.task.resampling_groups(self.targets)

    def compute_metric(self, metric: str | Metric) -> float:
        """Return the metric, by itself or by its name, averaged over seeds."""
        found = self.bind(metric)
        return float(np.mean([found.compute(self.targets, values) for values in self.values]))

    def bind(self, metric: str | Metric) -> Metric:
        """Return a metric, by itself or by its name, with the formula for this fold."""
        found = self.task.get_metric(metric) if isinstance(metric, str) else metric
        return found.bind(self.targets if self.training is None else self.training)

    def measure_size(self, metric: str | Metric, weights: npt.NDArray[Any]) -> Floats:
        """Return how much the fold counts in the mean over folds: (B,) for weights (B, n)."""
        found = self.task.get_metric(metric) if isinstance(metric, str) else metric
        if found.fold_size is None:
            return np.ones(len(weights))
        return found.fold_size(self.targets, weights.astype(np.float64))


def collect_fold_results(predictions: Predictions) -> dict[str, list[FoldResult]]:
    """Return the fold results of each model, sorted by model and fold, from the test rows.

    Raises:
        RunError: nothing was tested, a slide was tested twice, or seeds have different slides.
    """
    tested = select_test_rows(predictions)
    if not len(tested):
        found = ", ".join(sorted({*predictions.split.tolist()})) or "no rows"
        raise RunError(
            f"there are no test predictions: found {found}, expected rows of the split 'test'; "
            "finish the run, or see why its slides failed"
        )
    _check_no_duplicates(sort_rows(tested))
    units = sort_rows(average_by_patient(tested))
    training = _collect_training_targets(predictions)
    return {
        model: [
            _merge_seeds(rows_of_fold, training.get((model, fold)))
            for fold, rows_of_fold in group_rows(rows, "fold").items()
        ]
        for model, rows in group_rows(units, "model").items()
    }


def _collect_training_targets(predictions: Predictions) -> dict[tuple[str, int], Floats]:
    """Return the targets of the training patients by model and fold, where rows have them."""
    rows = predictions.select(predictions.split == "train")
    found = {}
    for model, of_model in group_rows(rows, "model").items():
        for fold, of_fold in group_rows(of_model, "fold").items():
            first = np.unique(of_fold.patient_id, return_index=True)[1]
            found[model, fold] = of_fold.targets[first]
    return found


def average_folds(
    fold_results: Sequence[FoldResult], metric: str | Metric, values: Floats
) -> float:
    """Return the mean of a value of each fold, weighted as the metric asks.

    Where folds have weights, those without a value are left out, as those without a pair are.

    Args:
        fold_results: of a model.
        metric: or its name.
        values: (folds,); NaN where undefined.
    """
    shares = share_folds(fold_results, metric, ~np.isnan(values))
    if shares is None:
        return float(values.mean())
    return float(np.sum(np.where(shares, shares * values, 0.0)))


def share_folds(
    fold_results: Sequence[FoldResult],
    metric: str | Metric,
    is_defined: npt.NDArray[np.bool_] | None = None,
) -> Floats | None:
    """Return the share of each fold in the mean, (folds,); None if all have the same.

    Args:
        fold_results: of a model.
        metric: or its name.
        is_defined: whether each fold has a value; None means all.
    """
    if fold_results[0].bind(metric).fold_size is None:
        return None
    each = [one.measure_size(metric, np.ones((1, len(one.units))))[0] for one in fold_results]
    sizes = np.array(each) * (1 if is_defined is None else is_defined)
    total = sizes.sum()
    return sizes / (total if total > 0 else np.nan)


def compute_fold_metrics(
    fold_results: Sequence[FoldResult], metric: str
) -> npt.NDArray[np.float64]:
    """Return the metric in each fold: (folds,)."""
    return np.array([result.compute_metric(metric) for result in fold_results])


def describe_difference(one: FoldResult, other: FoldResult) -> str | None:
    """Return how the units of two fold results differ, for an error; None if they are equal."""
    units = [set(zip(r.patients.tolist(), r.units.tolist(), strict=True)) for r in (one, other)]
    if odd := sorted({unit for _, unit in units[0] ^ units[1]}):
        return f"different slides or patients ({_format_names(odd)} in one only)"
    relabelled = one.units[_differ(one.targets, other.targets)].tolist()  # both in order
    return f"different labels ({_format_names(relabelled)})" if relabelled else None


def select_test_rows(predictions: Predictions) -> Predictions:
    """Return the rows of test sets."""
    return predictions.select(predictions.split == "test")


def group_rows(predictions: Predictions, column: str) -> dict[Any, Predictions]:
    """Return the rows of each value of a column, sorted by the value."""
    values, group = np.unique(getattr(predictions, column), return_inverse=True)
    order = np.argsort(group, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(group[order])) + 1)  # one if there are no rows
    return {
        value: predictions.select(rows) for value, rows in zip(values.tolist(), parts, strict=False)
    }


def sort_rows(predictions: Predictions) -> Predictions:
    """Return the rows sorted by model, seed, fold, split, patient and slide."""
    return predictions.select(np.lexsort([getattr(predictions, name) for name in _SORT_COLUMNS]))


def find_unit(predictions: Predictions) -> Unit:
    """Return "slide" if a model was tested on a patient with slides of different labels."""
    return "slide" if "slide" in find_unit_by_model(predictions).values() else "patient"


def find_unit_by_model(predictions: Predictions) -> dict[str, Unit]:
    """Return the unit of each model, so that other models do not change a model's metrics."""
    found: dict[str, Unit] = {}
    for model, rows in group_rows(predictions, "model").items():
        patients = rows.patient_id.tolist()
        pairs = {*zip(patients, map(repr, rows.targets.tolist()), strict=True)}
        found[model] = "patient" if len(pairs) == len(set(patients)) else "slide"
    return found


def average_by_patient(predictions: Predictions) -> Predictions:
    """Average the slides' probabilities of each patient, for models whose unit is the patient.

    These rows are sorted by model, seed, fold, split and patient. A patient's row has the patient's
    id as its slide_id. Rows of models whose unit is the slide stay.
    """
    by_patient = [m for m, unit in find_unit_by_model(predictions).items() if unit == "patient"]
    chosen = np.isin(predictions.model, by_patient)
    if not chosen.any():
        return predictions
    return Predictions.concatenate(
        [_average_slides(predictions.select(chosen)), predictions.select(~chosen)]
    )


def _average_slides(predictions: Predictions) -> Predictions:
    rows = sort_rows(predictions)
    is_next = _repeats_previous(rows, [name for name in _SORT_COLUMNS if name != "slide_id"])
    begins = np.flatnonzero(np.append(True, ~is_next))
    slides = np.diff(begins, append=len(rows))
    means = np.add.reduceat(rows.values, begins, axis=0) / slides[:, None]
    # Sums of the same numbers in another order differ in their last digits; ties must stay ties.
    return replace(
        rows.select(begins), slide_id=rows.patient_id[begins], values=means.round(_DIGITS)
    )


def _differ(one: npt.NDArray[np.float64], other: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return which rows of targets differ, (n,); unknown equals unknown."""
    equal = (one == other) | (np.isnan(one) & np.isnan(other))
    differs: npt.NDArray[np.bool_] = ~np.all(equal, axis=1)
    return differs


def _repeats_previous(rows: Predictions, columns: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Return whether each row but the first has the previous row's values: (n - 1,)."""
    values = [getattr(rows, name) for name in columns]
    repeats: npt.NDArray[np.bool_] = np.all([v[1:] == v[:-1] for v in values], axis=0)
    return repeats


def _check_no_duplicates(rows: Predictions) -> None:
    again = np.flatnonzero(_repeats_previous(rows, _SORT_COLUMNS))
    if len(again):
        row = int(again[0])
        raise RunError(
            f"slide {rows.slide_id[row]} was tested twice by {rows.model[row]} in fold "
            f"{rows.fold[row]}, seed {rows.seed[row]}; expected one row per slide: rename the "
            "models if two runs with the same model name were joined"
        )


def _merge_seeds(rows: Predictions, training: Floats | None) -> FoldResult:
    task = from_card(rows.task)
    by_seed = {
        seed: FoldResult(
            model=str(part.model[0]),
            fold=int(part.fold[0]),
            units=part.slide_id,
            patients=part.patient_id,
            task=task,
            targets=part.targets,
            values=part.values[None],
            training=training,
        )
        for seed, part in group_rows(rows, "seed").items()
    }
    first_seed, first = next(iter(by_seed.items()))
    for seed, other in by_seed.items():
        if differs := describe_difference(first, other):
            raise RunError(
                f"{first.model}, fold {first.fold}: seeds {first_seed} and {seed} were tested on "
                f"{differs}; expected the same for every seed: finish the run with sacmil crossval"
            )
    return replace(first, values=np.concatenate([each.values for each in by_seed.values()]))


def _format_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more
