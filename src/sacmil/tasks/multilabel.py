"""Multi-label: several findings, each present or absent; some may be unknown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from sacmil.errors import CohortError, OptionError
from sacmil.metrics import multilabel as formulas
from sacmil.metrics.metric import Metric
from sacmil.results.task_card import PROBABILITY_PREFIX
from sacmil.tasks._cells import find_constant_columns, list_locations
from sacmil.tasks._checks import check_column_names, check_settings
from sacmil.tasks._constants import make_constant
from sacmil.tasks._task import Choice, Floats, HasValues, Summary, Targets, Task
from sacmil.tasks.losses import multilabel_loss, prepare_terms, sum_terms

if TYPE_CHECKING:
    import pandas
    from torch import Tensor

_VALUES = {
    **dict.fromkeys(("1", "1.0", "yes", "y", "true", "positive", "pos", "+", "present"), 1.0),
    **dict.fromkeys(("0", "0.0", "no", "n", "false", "negative", "neg", "-", "absent"), 0.0),
    **dict.fromkeys(("", "na", "nan", "n/a", "unknown"), np.nan),
}


@dataclass(frozen=True)
class MultiLabel(Task):
    """Several findings, each present or absent; an empty cell is unknown and trains nothing.

    With ``class_weights=balanced`` the positives of a rare label weigh more.

    Args:
        labels: columns of the table.
        label_smoothing: share of labels taken as random in training.
        pos_weight: factor of the loss of each label's positives; empty means one.

    Example:
        >>> MultiLabel(("er", "pr")).prediction_columns
        ('p_er', 'p_pr')
    """

    kind: ClassVar[str] = "multilabel"
    missing_hint: ClassVar[str] = ": the columns of the findings"
    calibrated_as: ClassVar[Literal["", "classes", "labels"]] = "labels"
    headline: ClassVar[str] = "auc"
    plots: ClassVar[tuple[str, ...]] = ("label_roc",)
    default_metrics: ClassVar[tuple[str, ...]] = ("auc", "average_precision", "f1")
    fold_size_name: ClassVar[str] = "labels with both values"
    breakdown_note: ClassVar[str] = (
        "Its mean is over the test sets that have it both present and absent, and the summary is "
        "the mean over all these pairs of label and test set; a label with – is in none."
    )

    labels: Sequence[str]
    label_smoothing: float = 0.0
    pos_weight: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        names = (self.labels,) if isinstance(self.labels, str) else tuple(self.labels)
        if not names or len(set(names)) < len(names):
            raise OptionError(f"`labels` is {names}; expected one or more different columns")
        object.__setattr__(self, "labels", names)
        check_column_names("labels", names, self.prediction_columns)

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Means over the labels that have both values, then the metrics of each label.

        Over folds, a label's mean is over those in which it has both values, and the mean over the
        labels is over all these pairs of label and fold: the same ones in both.
        """
        ranks = partial(Metric, scale="ranks")
        found = {
            "auc": ranks("AUC", formulas.weighted_macro_auc),
            "average_precision": ranks(
                "Average precision", formulas.weighted_macro_average_precision
            ),
            "f1": Metric("F1", formulas.weighted_macro_f1),
        }
        count = formulas.weighted_label_count
        found = {key: replace(one, fold_size=count) for key, one in found.items()}
        for number, name in enumerate(self.target_columns):
            for key, formula, title in _BY_LABEL:
                found[f"{key}_{name}"] = replace(
                    found[key],
                    title=f"{title}, {name}",
                    formula=_select_label(formula, number),
                    fold_size=_count_label(number),
                )
        return {key: replace(one, skips_undefined=True) for key, one in found.items()}

    @property
    def breakdown(self) -> Mapping[str, Mapping[str, str]]:
        """The metrics of each label."""
        return {
            name: {title: f"{key}_{name}" for key, _, title in _BY_LABEL} for name in self.labels
        }

    @property
    def target_columns(self) -> tuple[str, ...]:
        """The labels."""
        return tuple(self.labels)

    @property
    def prediction_columns(self) -> tuple[str, ...]:
        """The probability of each label."""
        return tuple(PROBABILITY_PREFIX + name for name in self.labels)

    @property
    def score_names(self) -> tuple[str, ...]:
        """The labels."""
        return self.target_columns

    @property
    def outputs(self) -> int:
        """A logit for each label."""
        return len(self.labels)

    @property
    def settings(self) -> dict[str, Any]:
        """The labels."""
        return {"labels": list(self.labels)}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the task of these labels."""
        check_settings(cls.kind, settings, ("labels",))
        return cls(settings["labels"])

    def read(self, rows: pandas.DataFrame) -> Targets:
        """Return 0, 1, or NaN for an empty cell; other text is an error."""
        columns, problems = [], []
        for name in self.target_columns:
            texts = rows[name].astype(str).str.strip()
            columns.append([_VALUES.get(text.lower(), np.inf) for text in texts])
            wrong = texts[np.isinf(columns[-1])]
            problems += [
                f"{name} is {text!r} in {list_locations(wrong.index[wrong == text].tolist())}; "
                "expected 1, 0 or nothing"
                for text in dict.fromkeys(wrong)
            ]
        if problems:
            raise CohortError("table", problems)
        return np.array(columns, dtype=np.float64).T

    def find_training_problems(self, targets: Targets) -> list[str]:
        """Return the labels with one value only."""
        return find_constant_columns(self.target_columns, targets)

    def find_fold_warnings(self, training: Targets, everything: Targets) -> list[str]:
        """Return the labels of which the training set lacks a value that the cohort has."""
        texts = {1.0: "no slide with {}", 0.0: "no slide known to be without {}"}
        return [
            f"{text.format(name)} is in the training set, so no model can learn it"
            for name, own, every in zip(self.labels, training.T, everything.T, strict=True)
            for value, text in texts.items()
            if value in every and value not in own
        ]

    def check_training(self, *, label_smoothing: float, class_weights: str) -> None:
        """Accept all."""

    def fitted(
        self, targets: Targets, *, label_smoothing: float = 0.0, class_weights: str = "none"
    ) -> Self:
        """Return the task with the ratio of negatives to positives of each label."""
        changed = replace(self, label_smoothing=label_smoothing, pos_weight=())
        if class_weights == "none":
            return changed
        positives, negatives = (targets == 1).sum(axis=0), (targets == 0).sum(axis=0)
        has_both = (positives > 0) & (negatives > 0)
        weights = np.where(has_both, negatives / np.maximum(positives, 1), 1.0)
        return replace(changed, pos_weight=tuple(weights.tolist()))

    def mark_rows(self, targets: Targets) -> dict[str, npt.NDArray[np.bool_]]:
        """Return where each label is present."""
        return {name: column == 1 for name, column in zip(self.labels, targets.T, strict=True)}

    def strata(self, targets: Targets) -> npt.NDArray[np.int64]:
        """Return the rarest label that is present, or the number of labels if none is."""
        positive = targets == 1
        rarest_first = np.argsort(positive.sum(axis=0), kind="stable")
        first = rarest_first[positive[:, rarest_first].argmax(axis=1)]
        found: npt.NDArray[np.int64] = np.where(positive.any(axis=1), first, targets.shape[1])
        return found

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy over the labels a bag has."""
        weights = make_constant(self.pos_weight, outputs.device) if self.pos_weight else None
        return multilabel_loss(outputs, targets, weights)

    def prepare(self, target: npt.NDArray[Any]) -> Tensor:
        """Return the sign and the weight of each term of the loss, (2, L) or smoothed (2, 2 L)."""
        share, known = self.label_smoothing, ~np.isnan(target)
        present = np.nan_to_num(target) * (1 - share) + share / 2
        mean = known / max(known.sum(), 1)
        for_present = mean * present * np.array(self.pos_weight or 1.0)
        for_absent = mean * (1 - present)
        if share:
            return prepare_terms(
                np.repeat([-1.0, 1.0], len(target)), np.concatenate([for_present, for_absent])
            )
        return prepare_terms(np.where(present > 0.5, -1.0, 1.0), for_present + for_absent)

    def prepared_loss(self, outputs: Tensor, prepared: Tensor) -> Tensor:
        """Return the mean cross-entropy over the labels a bag has."""
        return sum_terms(outputs.repeat(2) if self.label_smoothing else outputs, prepared)

    def activate(self, outputs: Tensor) -> Tensor:
        """Return the probability of each label."""
        return outputs.sigmoid()

    def validation_loss(self, targets: Targets, predictions: Floats) -> float:
        """Return the mean cross-entropy over all known labels."""
        least = np.finfo(np.float32).tiny
        own = np.where(targets == 1, predictions, 1 - predictions)
        return float(-np.log(np.maximum(own, least))[~np.isnan(targets)].mean())

    def find_untestable(self, targets: Targets) -> str:
        """Return whether no label has both values."""
        has_both = [{0.0, 1.0} <= set(column.tolist()) for column in targets.T]
        return "" if any(has_both) else "holds no label with both values"

    def find_true_column(self, target: Sequence[float]) -> int | None:
        """Return the column of the only label; of several, instance labels do not say which."""
        return 0 if len(self.labels) == 1 else None

    def describe(self, prediction: HasValues) -> Summary:
        """Return the labels, those present first, then by probability."""
        pairs = zip(self.target_columns, map(float, prediction.values), strict=True)
        choices = tuple(sorted((Choice(*pair) for pair in pairs), key=lambda one: -one.value))
        thresholds = prediction.thresholds or (0.5,) * len(choices)
        lines = dict(zip(self.target_columns, thresholds, strict=True))
        present = [one for one in choices if one.value >= lines[one.name]]
        choices = tuple(sorted(choices, key=lambda one: one not in present))
        first = choices[0]
        names = ", ".join(one.name for one in present) or "none"
        found = ", ".join(f"{one.name} {one.value:.2f}" for one in present)
        headline = found or f"none ({first.name} {first.value:.2f})"
        return Summary(names, headline, choices, self.target_columns.index(first.name))

    @property
    def value_names(self) -> tuple[str, ...]:
        """The labels."""
        return self.target_columns


_BY_LABEL = (
    ("auc", formulas.weighted_label_auc, "AUC"),
    ("average_precision", formulas.weighted_label_average_precision, "Average precision"),
    ("f1", formulas.weighted_label_f1, "F1"),
)


def _select_label(formula: Callable[..., Floats], number: int) -> Callable[..., Floats]:
    """Return the formula of one label."""

    def compute(targets: Floats, values: Floats, weights: Floats) -> Floats:
        column = slice(number, number + 1)
        return formula(targets[:, column], values[:, column], weights)[:, 0]

    return compute


def _count_label(number: int) -> Callable[[Floats, Floats], Floats]:
    """Return what counts a fold as one if it has both values of a label, otherwise zero."""

    def count(targets: Floats, weights: Floats) -> Floats:
        return formulas.weighted_label_count(targets[:, number : number + 1], weights)

    return count
