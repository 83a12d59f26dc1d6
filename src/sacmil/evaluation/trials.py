"""What a model answered on the test part of a fold, seed by seed: what statistics are made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from sacmil.errors import RunError
from sacmil.evaluation.metrics import METRICS
from sacmil.evaluation.units import in_order, to_units
from sacmil.results import Predictions


@dataclass(frozen=True, eq=False)
class Trial:
    """A model on the test part of one fold."""

    model: str
    fold: int
    units: npt.NDArray[np.str_]
    """(n,), ids of patients, or of slides where a patient's slides differ in label."""
    patients: npt.NDArray[np.str_]
    """(n,), whose they are."""
    labels: npt.NDArray[np.int64]
    """(n,)."""
    probabilities: npt.NDArray[np.float64]
    """(seeds, n, C)."""

    def value(self, metric: str) -> float:
        """The metric, mean over the seeds."""
        return float(np.mean([METRICS[metric](self.labels, p) for p in self.probabilities]))


def trials_of(predictions: Predictions) -> dict[str, list[Trial]]:
    """The trials of each model in the order of folds, models by name; validation rows are left out.

    Raises:
        RunError: nothing was tested, a slide was tested twice, or seeds saw different slides.
    """
    tested = predictions.where(predictions.split == "test")
    if not len(tested):
        found = ", ".join(sorted({*predictions.split.tolist()})) or "no rows"
        raise RunError(
            f"nothing was tested: expected rows of the split 'test', found {found}; "
            "run sacmil crossval to its end"
        )
    _check_once(in_order(tested))
    units = in_order(to_units(tested))
    return {
        model: [_trial(rows.where(rows.fold == fold)) for fold in np.unique(rows.fold)]
        for model in np.unique(units.model).tolist()
        for rows in [units.where(units.model == model)]
    }


def values_of(trials: Sequence[Trial], metric: str) -> npt.NDArray[np.float64]:
    """The metric in each fold: (folds,)."""
    return np.array([trial.value(metric) for trial in trials])


def difference(one: Trial, other: Trial) -> str | None:
    """How the units of two trials differ, in words for an error; None when they do not."""
    odd = sorted({unit for _, unit in _owned(one) ^ _owned(other)})
    if odd:
        return f"different slides or patients ({_some(odd)} in one only)"
    relabelled = one.units[one.labels != other.labels].tolist()  # both in order
    return f"different labels ({_some(relabelled)})" if relabelled else None


def _owned(trial: Trial) -> set[tuple[str, str]]:
    return set(zip(trial.patients.tolist(), trial.units.tolist(), strict=True))


def _trial(rows: Predictions) -> Trial:
    seeds = np.unique(rows.seed)
    first, *others = [_of_seed(rows.where(rows.seed == seed)) for seed in seeds]
    for seed, other in zip(seeds[1:], others, strict=True):
        if differs := difference(first, other):
            raise RunError(
                f"{first.model}, fold {first.fold}: seeds {seeds[0]} and {seed} were tested on "
                f"{differs}; expected the same for every seed, run sacmil crossval to its end"
            )
    together = [first.probabilities, *(other.probabilities for other in others)]
    return replace(first, probabilities=np.concatenate(together))


def _of_seed(rows: Predictions) -> Trial:
    return Trial(
        model=str(rows.model[0]),
        fold=int(rows.fold[0]),
        units=rows.slide_id,
        patients=rows.patient_id,
        labels=rows.label,
        probabilities=rows.probabilities[None],
    )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _check_once(rows: Predictions) -> None:
    columns = [rows.model, rows.seed, rows.fold, rows.patient_id, rows.slide_id]
    again = np.all([column[1:] == column[:-1] for column in columns], axis=0)
    if again.any():
        row = int(np.flatnonzero(again)[0])
        raise RunError(
            f"slide {rows.slide_id[row]} was tested twice by {rows.model[row]} in fold "
            f"{rows.fold[row]}, seed {rows.seed[row]}; expected one row each: were two runs joined "
            "whose models have the same name?"
        )
