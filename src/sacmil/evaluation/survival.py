"""Risk groups of a survival run, and all metrics of survival.

A patient is of high risk if its predicted risk is above the median of the training patients'. Test
patients have no influence on that.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt

from sacmil.errors import RunError
from sacmil.evaluation.fold_results import (
    FoldResult,
    collect_fold_results,
    find_unit,
    find_unit_by_model,
    select_test_rows,
)
from sacmil.evaluation.table_format import (
    UNDEFINED,
    Cell,
    ResultTable,
    TableStyle,
    format_p_value,
)
from sacmil.metrics.survival import *  # noqa: F403
from sacmil.metrics.survival import (
    HazardRatio,
    KaplanMeier,
    LogRank,
    MedianSurvival,
    hazard_ratio,
    kaplan_meier,
    log_rank,
)
from sacmil.results import Predictions
from sacmil.tasks import Task, from_card
from sacmil.tasks.survival import CURVE, EVENT, PERCENTILE, RISK, TIME, Survival

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
GROUPS = ("low", "high")
NOT_REACHED = "not reached"
_PERCENTILE_DIGITS = 6
"""Percentiles are of single precision: a mean of exactly one half must stay one half."""


@dataclass(frozen=True, eq=False)
class PatientRisks:
    """Test patients of all folds, each once; predictions are means over seeds and folds."""

    units: npt.NDArray[np.str_]
    """(n,), ids of patients, or of slides where a patient's slides differ in their target."""
    fold: npt.NDArray[np.int64]
    """(n,), the first one that tested the patient, if cross-validation was repeated."""
    times: Floats
    """(n,)."""
    events: Floats
    """(n,), 1 if the event happened."""
    risk: Floats
    """(n,); risks of different folds have different scales."""
    percentile: Floats
    """(n,), share of training patients of lower risk."""
    survival: Floats
    """(n, m), predicted at each time of the task's curve."""

    @property
    def is_high(self) -> Flags:
        """Whether the risk is above the median of the training patients, (n,)."""
        return self.percentile > 0.5


@dataclass(frozen=True, eq=False)
class RiskGroup:
    """The patients of low or of high risk."""

    times: Floats
    """(n,)."""
    events: Floats
    """(n,)."""
    curve: KaplanMeier

    @property
    def num_patients(self) -> int:
        """Number of patients."""
        return len(self.times)

    @property
    def num_events(self) -> int:
        """Number of patients with the event."""
        return int(self.events.sum())

    @property
    def median(self) -> MedianSurvival:
        """Time that half of the group survives: inf if not reached, NaN without patients."""
        return self.curve.median()


@dataclass(frozen=True, eq=False)
class RiskGroups:
    """Test patients of a model in two groups, and how far their survival differs.

    Both comparisons are stratified by fold. They are NaN if a group is empty or nobody has the
    event; the hazard ratio also if every event is in one group while both are observed.
    """

    patients: PatientRisks
    low: RiskGroup
    high: RiskGroup
    log_rank: LogRank
    hazard_ratio: HazardRatio
    """Of high against low risk."""


def risk_groups(predictions: Predictions) -> dict[str, RiskGroups]:
    """Return the risk groups of each model, of the test patients of all folds.

    Args:
        predictions: of survival; rows of other splits than test change nothing.
    """
    to_survival(from_card(predictions.task))
    tested = select_test_rows(place_patients(predictions))
    return {
        model: split_by_risk(pool_folds(folds))
        for model, folds in collect_fold_results(tested).items()
    }


def place_patients(predictions: Predictions) -> Predictions:
    """Return the rows with the percentile of the patient where a patient has several slides.

    It is that of the mean risk among the mean risks of the training patients, which the mean of the
    slides' percentiles is not. Without rows of the training set that mean stays.
    """
    values = predictions.values.copy()
    units = find_unit_by_model(predictions)
    keys = [predictions.model, predictions.fold, predictions.seed]
    _, group = np.unique(np.stack([each.astype(str) for each in keys]), axis=1, return_inverse=True)
    for number in range(group.max(initial=-1) + 1):
        rows = np.flatnonzero(group == number)
        is_training = predictions.split[rows] == "train"
        if not is_training.any() or units.get(str(predictions.model[rows[0]])) != "patient":
            continue
        known, _, _ = _average_risks(predictions, rows[is_training])
        quantiles = np.quantile(known, np.linspace(0, 1, 101))
        tested = rows[predictions.split[rows] == "test"]
        risks, patient, slides = _average_risks(predictions, tested)
        percentile = (risks[:, None] > quantiles).mean(axis=1)
        several = slides[patient] > 1
        values[tested[several], PERCENTILE] = percentile[patient[several]]
    return replace(predictions, values=values)


def _average_risks(
    predictions: Predictions, rows: npt.NDArray[np.intp]
) -> tuple[Floats, npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the mean risk of each patient, the patient of each row, and the slides of each."""
    _, patient = np.unique(predictions.patient_id[rows], return_inverse=True)
    slides = np.bincount(patient)
    return np.bincount(patient, predictions.values[rows, RISK]) / slides, patient, slides


def to_survival(task: Task) -> Survival:
    """Return the task if it is survival, reject others."""
    if not isinstance(task, Survival):
        raise RunError(f"predictions are of {task.card.description}; expected survival")
    return task


def pool_folds(folds: Sequence[FoldResult]) -> PatientRisks:
    """Return the test patients of all folds of a model."""
    every = np.concatenate([fold.units for fold in folds])
    units, first, index = np.unique(every, return_index=True, return_inverse=True)
    seeds_averaged = np.concatenate([fold.values.mean(axis=0) for fold in folds])
    values = np.zeros((len(units), seeds_averaged.shape[1]))
    np.add.at(values, index, seeds_averaged)
    values /= np.bincount(index)[:, None]
    targets = np.concatenate([fold.targets for fold in folds])[first]
    return PatientRisks(
        units=units,
        fold=np.repeat([fold.fold for fold in folds], [len(fold.units) for fold in folds])[first],
        times=targets[:, TIME],
        events=targets[:, EVENT],
        risk=values[:, RISK],
        percentile=values[:, PERCENTILE].round(_PERCENTILE_DIGITS),
        survival=values[:, CURVE:],
    )


def split_by_risk(patients: PatientRisks) -> RiskGroups:
    """Return the groups of low and high risk, compared within each fold."""
    times, events, is_high = patients.times, patients.events, patients.is_high
    return RiskGroups(
        patients,
        _make_group(times[~is_high], events[~is_high]),
        _make_group(times[is_high], events[is_high]),
        log_rank(times, events, is_high, patients.fold),
        hazard_ratio(times, events, is_high, patients.fold),
    )


def _make_group(times: Floats, events: Floats) -> RiskGroup:
    return RiskGroup(times, events, kaplan_meier(times, events))


# --- tables --------------------------------------------------------------------------------------


def risk_group_table(predictions: Predictions, style: TableStyle) -> ResultTable:
    """Return a table with a row per model: patients, survival and hazard ratio of both groups."""
    task, found = to_survival(from_card(predictions.task)), risk_groups(predictions)
    spread = style.shows_intervals
    rows = []
    for model, groups in found.items():
        both = (groups.low, groups.high)
        digits = choose_digits(groups.patients.times)
        texts = (
            model,
            " / ".join(f"{group.num_patients:,}" for group in both),
            " / ".join(f"{group.num_events:,}" for group in both),
            *(format_median(group.median, digits, with_interval=spread) for group in both),
            format_hazard_ratio(groups.hazard_ratio, with_interval=spread),
            format_p_value(groups.log_rank.p),
        )
        rows.append(tuple(map(Cell, texts)))
    header = (
        "model",
        f"{find_unit(select_test_rows(predictions))}s",
        "events",
        "median, low risk",
        "median, high risk",
        "hazard ratio",
        "log-rank p",
    )
    records = tuple(_make_record(model, groups) for model, groups in found.items())
    return ResultTable(
        _make_caption(found, task.unit, with_interval=spread), header, tuple(rows), records
    )


def _make_record(model: str, groups: RiskGroups) -> dict[str, object]:
    record: dict[str, object] = {"model": model}
    for name, group in zip(GROUPS, (groups.low, groups.high), strict=True):
        median = group.median
        record |= {f"patients_{name}": group.num_patients, f"events_{name}": group.num_events}
        record[f"median_{name}"] = median.median
        record |= {f"median_{name}_from": median.low, f"median_{name}_to": median.high}
    ratio, test = groups.hazard_ratio, groups.log_rank
    record |= {"hazard_ratio": ratio.ratio, "hazard_ratio_from": ratio.low}
    record |= {"hazard_ratio_to": ratio.high, "hazard_ratio_p": ratio.p}
    return record | {"log_rank_chi2": test.chi2, "log_rank_p": test.p}


def _make_caption(found: dict[str, RiskGroups], unit: str, *, with_interval: bool) -> str:
    """Return what the groups are, and the words and signs that the cells have."""
    halves = [each for groups in found.values() for each in (groups.low, groups.high)]
    ratios = [groups.hazard_ratio.ratio for groups in found.values()]
    shown = [time for half in halves for time in half.median[: 3 if with_interval else 1]]
    sentences = (
        describe_cut(found.values()),
        "Counts: low / high risk",
        f"Median: survival{f' in {unit}' if unit else ''}",
        "Hazard ratio: of high to low risk",
        "Brackets: 95 % interval" if with_interval else "",
        f"{NOT_REACHED.capitalize()}: more than half of the group survives the observed time"
        if any(map(math.isinf, shown))
        else "",
        f"{UNDEFINED}: a group is empty, or its events allow no finite estimate"
        if any(map(math.isnan, [*shown, *ratios]))
        else "",
    )
    return " ".join(f"{sentence}." for sentence in sentences if sentence)


def describe_cut(found: Iterable[RiskGroups]) -> str:
    """Return how patients are divided, for captions and notes."""
    text = "High risk: above the median risk of the training patients"
    if max(len(np.unique(groups.patients.fold)) for groups in found) < 2:
        return text
    return (
        f"{text} of the fold. Test patients of all folds are pooled; hazard ratio and log-rank "
        "test are stratified by fold"
    )


def risk_by_patient_table(predictions: Predictions, style: TableStyle) -> ResultTable:
    """Return a table with a row per model and test patient: target, prediction and group."""
    task, records = to_survival(from_card(predictions.task)), list[dict[str, object]]()
    unit = find_unit(select_test_rows(predictions))
    for model, groups in risk_groups(predictions).items():
        columns = asdict(groups.patients)
        for row in np.lexsort([groups.patients.units, groups.patients.fold]):
            record: dict[str, object] = {
                unit: str(columns["units"][row]),
                "model": model,
                "fold": int(columns["fold"][row]),
                "time": float(columns["times"][row]),
                "event": int(columns["events"][row]),
                "risk": float(columns["risk"][row]),
                "risk_percentile": float(columns["percentile"][row]),
                "group": GROUPS[int(groups.patients.is_high[row])],
            }
            survival = columns["survival"][row].tolist()
            records.append(
                record | dict(zip(task.prediction_columns[CURVE:], survival, strict=True))
            )
    rows = tuple(tuple(Cell(_format_value(v)) for v in one.values()) for one in records)
    caption = "Means over slides and seeds. Risks of different folds have different scales."
    return ResultTable(caption, tuple(records[0]), rows, tuple(records))


# --- numbers -------------------------------------------------------------------------------------


def choose_digits(times: Floats) -> int:
    """Return how many decimals of times are shown, by the largest.

    >>> [choose_digits(np.array([largest])) for largest in (0.03, 8.0, 120.0, 4000.0)]
    [4, 2, 1, 0]
    """
    largest = float(times.max(initial=0))
    if largest >= 20:
        return 0 if largest >= 1000 else 1
    return 2 - min(0, math.floor(math.log10(largest or 1)))


def format_median(median: MedianSurvival, digits: int, *, with_interval: bool = True) -> str:
    """Return the median time with its interval.

    >>> format_median(MedianSurvival(21.04, 12, math.inf), 1)
    '21.0 [12.0, not reached]'
    """
    texts = [
        NOT_REACHED if math.isinf(time) else UNDEFINED if math.isnan(time) else f"{time:.{digits}f}"
        for time in median
    ]
    is_known = any(map(math.isfinite, median))
    return f"{texts[0]} [{texts[1]}, {texts[2]}]" if with_interval and is_known else texts[0]


def format_hazard_ratio(found: HazardRatio, *, with_interval: bool = True) -> str:
    """Return the ratio with its interval.

    >>> format_hazard_ratio(HazardRatio(2, 1.5, 2.7, 0.01))
    '2.00 [1.50, 2.70]'
    """
    if math.isnan(found.ratio):
        return UNDEFINED
    texts = [f"{n:.2f}" if n < 100 else f"{n:.3g}" for n in (found.ratio, found.low, found.high)]
    return f"{texts[0]} [{texts[1]}, {texts[2]}]" if with_interval else texts[0]


def _format_value(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
