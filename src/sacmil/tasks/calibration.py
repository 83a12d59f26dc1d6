"""Calibration after training: a temperature and thresholds, both chosen on the validation set.

Temperature scaling (Guo et al. 2017) divides the logits of a trained model by one number. The order
of predictions stays, so AUC does not change. Logits are those of the predicted probabilities::

    classes    softmax(log p / T), one T for all
    labels     sigmoid(logit(p) / T), one T for each

A threshold is for the calibrated probability of class 1, or of a label. Of more than two classes
the most probable one stays the predicted one.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import TypeAdapter, ValidationError

from sacmil.card import Card
from sacmil.errors import (
    CohortError,
    ModelFolderError,
    OptionError,
    explain_validation_error,
    format_count,
    format_subject,
)
from sacmil.results import Prediction
from sacmil.results.prediction import combine_hashes
from sacmil.tasks._registry import get_model_task
from sacmil.tasks._task import Floats, Targets, Task

Rule = Literal["youden", "sensitivity"]
"""How a threshold is chosen: by Youden's index, or the largest that reaches a sensitivity."""

MIN_PATIENTS = 20
"""Least number of validation patients; of ten, the temperature of a calibrated model varied from
0.3 to 3 in simulations."""
MIN_PATIENTS_PER_VALUE = 2
"""Of them, least number with and without what a threshold is for."""
_TEMPERATURE_RANGE = (0.1, 100.0)
_GRID_STEPS = 61
_DIGITS = 12
"""Means over a patient's slides are rounded, as evaluation does: ties must stay ties."""
_LEAST = float(np.finfo(np.float32).smallest_subnormal)
"""Probabilities are of float32: this is the smallest above zero,"""
_MOST = 1 - 2.0**-25
"""and this is between the largest below one and one."""


@dataclass(frozen=True)
class Calibration:
    """How the probabilities of a trained model are corrected, and where it draws the line.

    Example:
        >>> calibration = Calibration((2.0,), (0.4,), "youden")
        >>> calibration.apply([[0.1, 0.9]]).round(2).tolist(), calibration.decide([[0.55, 0.45]])
        ([[0.25, 0.75]], array([1]))
    """

    temperatures: tuple[float, ...]
    """One for all classes, or one for each label."""
    thresholds: tuple[float, ...]
    """Of class 1 or of each label: it is predicted from there on; empty for more classes."""
    rule: Rule
    sensitivity: float | None = None
    """The sensitivity that was wanted; None for another rule."""
    patients: int = 0
    """Number of validation patients it was fitted on."""
    slides: int = 0
    """Number of their slides."""
    reached: tuple[tuple[float, float], ...] = ()
    """Sensitivity and specificity on the validation set, at each threshold."""
    log_loss: tuple[float, float] = (math.nan, math.nan)
    """On the validation set, before and after."""

    def __post_init__(self) -> None:
        if not self.temperatures or not all(0 < t < math.inf for t in self.temperatures):
            raise OptionError(f"`temperatures` is {self.temperatures}; expected numbers above 0")
        if not all(map(math.isfinite, self.thresholds)):
            raise OptionError(f"`thresholds` is {self.thresholds}; expected finite numbers")

    @classmethod
    def from_card(cls, card: Card, source: str | Path) -> Self:
        """Return the calibration of a model.

        Args:
            card: of the model.
            source: its folder, for messages.

        Raises:
            OptionError: what the model predicts cannot be calibrated.
            ModelFolderError: the card has none, or it is damaged.
        """
        check_can_calibrate(get_model_task(card))
        if card.calibration is None:
            raise ModelFolderError(
                f"{source}: is not calibrated; calibrate its run with sacmil.calibrate or sacmil "
                "calibrate, and export it again if it is an export. Or leave out `calibrated`"
            )
        try:
            return TypeAdapter(cls).validate_python(card.calibration)
        except ValidationError as error:
            raise ModelFolderError(
                f"{source}: its calibration cannot be read ({explain_validation_error(error)}); "
                "calibrate the run again"
            ) from None

    def to_dict(self) -> dict[str, Any]:
        """Return the entry of a card."""
        return asdict(self)

    def combine_hash(self, weights: str) -> str:
        """Return the SHA-256 of a calibrated model, by that of its weights."""
        content = json.dumps([self.temperatures, self.thresholds])
        return combine_hashes([weights, hashlib.sha256(content.encode()).hexdigest()])

    @property
    def description(self) -> str:
        """For pages and messages."""
        temperatures = ", ".join(f"{value:.3g}" for value in self.temperatures)
        text = f"temperature {temperatures}"
        if self.thresholds:
            thresholds = ", ".join(f"{value:.3f}" for value in self.thresholds)
            text += f", threshold {thresholds} ({self.rule_description})"
        return f"{text}; fitted on {format_count(self.patients, 'validation patient')}"

    @property
    def rule_description(self) -> str:
        """How thresholds were chosen."""
        if self.sensitivity is None:
            return "Youden's index"
        return f"sensitivity of at least {self.sensitivity:g}"

    def apply(self, values: npt.ArrayLike) -> Floats:
        """Return calibrated probabilities.

        Args:
            values: (…, P), probabilities of classes or labels as the model predicts them.
        """
        p = np.asarray(values, dtype=np.float64)
        temperatures = np.array(self.temperatures)
        if p.shape[-1] == len(temperatures):
            return _scale_labels(p, temperatures)
        return _scale_classes(p, float(temperatures[0]))

    def decide(self, values: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Return what is predicted: the class of each row (…,), or 0 and 1 for labels (…, L).

        Args:
            values: (…, P), calibrated.
        """
        p, thresholds = np.asarray(values, dtype=np.float64), np.array(self.thresholds)
        if p.shape[-1] == len(thresholds):
            return (p >= thresholds).astype(np.int64)
        if not len(thresholds):
            return np.asarray(p.argmax(axis=-1), dtype=np.int64)
        return np.asarray(p[..., 1] >= thresholds[0], dtype=np.int64)

    def calibrate(self, prediction: Prediction, task: Task) -> Prediction:
        """Return a model's prediction with calibrated probabilities, and scores to match.

        Args:
            prediction: of the model itself, not of an ensemble.
            task: what the model predicts.
        """
        values = self.apply(prediction.values)
        found = replace(prediction, values=values, thresholds=self.thresholds)
        if found.class_scores is None:
            return found
        column = task.describe(found).score_column
        return replace(found, scores=found.class_scores[:, column], score_class=column)


def fit_calibration(
    task: Task,
    targets: Targets,
    values: Floats,
    *,
    patients: npt.ArrayLike | None = None,
    by_slide: bool = False,
    sensitivity: float | None = None,
) -> Calibration:
    """Return the calibration that fits a validation set best.

    Args:
        task: what is predicted.
        targets: (n, T), NaN where a label is missing.
        values: (n, P), predicted for the slides of the validation set.
        patients: (n,), the patient of each slide; None means one each.
        by_slide: whether slides count, as some patient has slides of different targets. Otherwise
            the calibrated probabilities of a patient's slides are averaged, as in evaluations.
        sensitivity: the wanted one, which the largest threshold that reaches it gets; None means
            the threshold with the largest sensitivity + specificity - 1 (Youden's index).

    Raises:
        OptionError: such a task cannot be calibrated, or the sensitivity is none.
        CohortError: lists what the validation set lacks.
    """
    check_can_calibrate(task)
    if sensitivity is not None and not 0 < sensitivity <= 1:
        raise OptionError(f"`sensitivity` is {sensitivity}; expected a share up to 1, such as 0.95")
    ids = np.arange(len(targets)) if patients is None else np.asarray(patients)
    units = _Units.make(task, targets, ids, by_slide=by_slide)
    if problems := units.find_problems():
        raise CohortError("validation set", problems)
    labels = task.calibrated_as == "labels"
    columns = [[c] for c in range(values.shape[1])] if labels else [list(range(values.shape[1]))]
    temperatures = tuple(units.fit_temperature(values, column) for column in columns)
    unscaled = Calibration((1.0,) * len(columns), (), "youden")
    fitted = replace(unscaled, temperatures=temperatures)
    before, after = (units.average(one.apply(values)) for one in (unscaled, fitted))
    thresholds = {
        column: choose_threshold(*units.select(after, column), sensitivity)
        for column in list_threshold_columns(task)
    }
    return Calibration(
        temperatures,
        tuple(thresholds.values()),
        "youden" if sensitivity is None else "sensitivity",
        sensitivity,
        patients=len(np.unique(ids)),
        slides=len(targets),
        reached=tuple(_measure(*units.select(after, c), t) for c, t in thresholds.items()),
        log_loss=(units.compute_log_loss(before), units.compute_log_loss(after)),
    )


def check_can_calibrate(task: Task) -> None:
    """Reject a task whose predictions are no probabilities to calibrate."""
    if not task.calibrated_as:
        raise OptionError(
            f"a model for {task.kind} cannot be calibrated; expected one of classes or labels"
        )


def list_threshold_columns(task: Task) -> list[int]:
    """Return the prediction columns with a threshold: class 1 of two classes, or each label."""
    count = len(task.prediction_columns)
    if task.calibrated_as == "labels":
        return list(range(count))
    return [1] if task.calibrated_as and count == 2 else []


def mark_positives(task: Task, targets: Targets, column: int) -> Floats:
    """Return 1 for rows that truly are of a prediction column's class or label, 0, or NaN: (n,)."""
    is_label = task.calibrated_as == "labels"
    return np.asarray(targets[:, column] if is_label else targets[:, 0] == column, np.float64)


def choose_threshold(
    positive: npt.NDArray[np.bool_], scores: Floats, sensitivity: float | None = None
) -> float:
    """Return a threshold midway between two neighboring scores; positive from there on.

    >>> choose_threshold(np.array([False, True, False, True]), np.array([0.1, 0.3, 0.5, 0.9]))
    0.7

    Args:
        positive: (n,), the truth; at least one is, and one is not.
        scores: (n,), from 0 to 1.
        sensitivity: to be reached by the largest such threshold; None means Youden's index, of
            equals the one with the higher specificity.
    """
    levels, index = np.unique(scores, return_inverse=True)
    # counts of positives and negatives from each score on, and from none
    hits = _count_from(index[positive], len(levels))
    alarms = _count_from(index[~positive], len(levels))
    if sensitivity is None:
        gain = hits * alarms[0] - alarms * hits[0]  # Youden's index in whole numbers: ties are ties
        chosen = int(np.flatnonzero(gain == gain.max())[-1])
    else:
        chosen = int(np.flatnonzero(hits >= math.ceil(sensitivity * hits[0] - 1e-9))[-1])
    edges: list[float] = [0.0, *levels.tolist(), 1.0]
    lower, upper = edges[chosen : chosen + 2]
    middle = (lower + upper) / 2
    if middle > lower or chosen == 0:
        return middle
    return upper if chosen < len(levels) else math.nextafter(lower, math.inf)


def _count_from(index: npt.NDArray[np.intp], levels: int) -> npt.NDArray[np.int64]:
    counts = np.bincount(index, minlength=levels + 1)
    return np.asarray(counts[::-1].cumsum()[::-1], dtype=np.int64)


def _measure(
    positive: npt.NDArray[np.bool_], scores: Floats, threshold: float
) -> tuple[float, float]:
    """Return sensitivity and specificity."""
    above = scores >= threshold
    return float(above[positive].mean()), float((~above)[~positive].mean())


def _scale_classes(p: Floats, temperature: float) -> Floats:
    logits = np.log(np.maximum(p, _LEAST)) / temperature
    odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
    scaled: Floats = odds / odds.sum(axis=-1, keepdims=True)
    return scaled


def _scale_labels(p: Floats, temperatures: Floats) -> Floats:
    clipped = np.clip(p, _LEAST, _MOST)
    logits = (np.log(clipped) - np.log1p(-clipped)) / temperatures
    scaled: Floats = np.exp(-np.logaddexp(0, -logits))
    return scaled


def _minimize(loss: Callable[[float], float]) -> float:
    """Return the temperature with the lowest loss; 1 if no other is better.

    If the loss falls as far as the temperature may, the validation set is separated without an
    error and says nothing about the temperature: it stays 1.
    """
    from scipy.optimize import minimize_scalar

    low, high = map(math.log, _TEMPERATURE_RANGE)
    grid = np.linspace(low, high, _GRID_STEPS).tolist()
    losses = [loss(math.exp(x)) for x in grid]
    best = losses.index(min(losses))
    if losses[best] >= losses[0]:
        return 1.0
    bounds = grid[best - 1], grid[min(best + 1, _GRID_STEPS - 1)]
    found = minimize_scalar(
        lambda x: loss(math.exp(x)), bounds=bounds, method="bounded", options={"xatol": 1e-8}
    )
    return min((1.0, math.exp(grid[best]), math.exp(found.x)), key=loss)


@dataclass(frozen=True, eq=False)
class _Units:
    """What counts once in a validation set: patients, or slides."""

    task: Task
    noun: str
    first: npt.NDArray[np.intp]
    """(units,), a row of each."""
    unit_of_row: npt.NDArray[np.intp]
    """(n,), the unit of each row."""
    targets: Targets
    """(units, T)."""

    @classmethod
    def make(
        cls, task: Task, targets: Targets, patients: npt.NDArray[Any], *, by_slide: bool
    ) -> Self:
        ids = np.arange(len(targets)) if by_slide else patients
        _, first, index = np.unique(ids, return_index=True, return_inverse=True)
        return cls(task, "slide" if by_slide else "patient", first, index, targets[first])

    def average(self, values: Floats) -> Floats:
        """Return the mean of each patient's rows: (units, P)."""
        if self.noun == "slide":
            return values
        sums = np.zeros((len(self.first), values.shape[1]))
        np.add.at(sums, self.unit_of_row, values)
        counts = np.bincount(self.unit_of_row)[:, None]
        return np.asarray((sums / counts).round(_DIGITS))

    def select(self, values: Floats, column: int) -> tuple[npt.NDArray[np.bool_], Floats]:
        """Return the truth and the values of a column, where it is known."""
        positive = mark_positives(self.task, self.targets, column)
        known = ~np.isnan(positive)
        return positive[known] == 1, values[known, column]

    def fit_temperature(self, values: Floats, columns: Sequence[int]) -> float:
        chosen = values[:, columns]

        def compute_loss(temperature: float) -> float:
            scaled = self.average(Calibration((temperature,), (), "youden").apply(chosen))
            return self.compute_log_loss(scaled, columns)

        return _minimize(compute_loss)

    def compute_log_loss(self, values: Floats, columns: Sequence[int] | None = None) -> float:
        """Return the mean negative logarithm of the true value's probability.

        Args:
            values: (units, P), or those of some columns.
            columns: which of the prediction columns these are; None means all.
        """
        chosen = range(values.shape[1]) if columns is None else columns
        marks = np.stack([mark_positives(self.task, self.targets, c) for c in chosen], axis=1)
        if self.task.calibrated_as == "labels":
            own = np.where(marks == 1, values, 1 - values)[~np.isnan(marks)]
        else:
            own = values[marks == 1]
        return float(-np.log(np.maximum(own, np.finfo(np.float64).tiny)).mean())

    def find_problems(self) -> list[str]:
        """Return what is missing."""
        problems, task = [], self.task
        if len(self.targets) < MIN_PATIENTS:
            problems.append(
                f"it has {format_count(len(self.targets), self.noun)}; expected at least "
                f"{MIN_PATIENTS}"
            )
        names = task.value_names
        if len(found := np.unique(self.targets[:, 0])) == 1 and task.calibrated_as == "classes":
            problems.append(f"all are {names[int(found[0])]}; expected patients of other classes")
            return problems
        for column in list_threshold_columns(task):
            positive = mark_positives(task, self.targets, column)
            yes, no = int((positive == 1).sum()), int((positive == 0).sum())
            if min(yes, no) < MIN_PATIENTS_PER_VALUE:
                problems.append(
                    f"{format_subject(yes, self.noun)} {names[column]} and {no} "
                    f"{'is' if no == 1 else 'are'} not; expected at least "
                    f"{MIN_PATIENTS_PER_VALUE} of both"
                )
        return problems
