"""Ordinal: one of several classes in an order, such as a grade."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from sacmil.errors import CohortError, OptionError
from sacmil.metrics import ordinal as formulas
from sacmil.metrics.metric import Metric
from sacmil.results import StoredPrediction
from sacmil.results.task_card import EXPECTED_COLUMN, PROBABILITY_PREFIX
from sacmil.tasks._cells import parse_levels
from sacmil.tasks._checks import check_loss, check_settings
from sacmil.tasks._explanation import VALUE_CAUTION
from sacmil.tasks._task import Choice, Floats, HasValues, Summary, Targets, Task
from sacmil.tasks.losses import coral_loss as coral_loss
from sacmil.tasks.losses import coral_row_losses, corn_row_losses, prepare_terms, sum_terms
from sacmil.tasks.losses import corn_loss as corn_loss

if TYPE_CHECKING:
    import pandas
    from torch import Tensor, nn

OrdinalLoss = Literal["corn", "coral"]
LOSSES = ("corn", "coral")


@dataclass(frozen=True)
class Ordinal(Task):
    """One of several classes in an order.

    With CORN a model has a logit for each step upwards; with CORAL one score that is compared with
    a threshold for each step. ``class_weights=balanced`` weighs rare levels more.

    Args:
        order: the levels, lowest first.
        column: of the table, with the levels.
        loss_name: corn or coral.
        class_weights: factor of the loss by level; empty means one.

    Example:
        >>> Ordinal(("low", "mid", "high")).prediction_columns
        ('p_low', 'p_mid', 'p_high', 'expected')
    """

    kind: ClassVar[str] = "ordinal"
    missing_hint: ClassVar[str] = ": the levels, lowest first, such as low,mid,high"
    headline: ClassVar[str] = "kappa"
    target_columns: ClassVar[tuple[str, ...]] = ("label",)
    diverging_scores: ClassVar[bool] = True
    level_noun: ClassVar[str] = "level"
    caution: ClassVar[str] = VALUE_CAUTION
    plots: ClassVar[tuple[str, ...]] = ("confusion",)

    order: Sequence[str]
    column: str = "label"
    loss_name: OrdinalLoss = "corn"
    class_weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        given = (self.order,) if isinstance(self.order, str) else self.order
        names = tuple(map(str, given))  # in YAML a grade may be a number
        if len(names) < 2 or len(set(names)) < len(names):
            raise OptionError(
                f"`order` is {', '.join(names)}; expected two or more different levels, lowest "
                "first"
            )
        check_loss(self.loss_name, LOSSES)
        object.__setattr__(self, "order", names)

    @property
    def levels(self) -> tuple[str, ...]:
        """Lowest first."""
        return tuple(self.order)

    @property
    def source_columns(self) -> tuple[str, ...]:
        """The column of the levels."""
        return (self.column,)

    def with_label_column(self, column: str) -> Self:
        """Return the task that reads its levels from another column."""
        return replace(self, column=column)

    @property
    def prediction_columns(self) -> tuple[str, ...]:
        """The probability of each level, and the expected one, counted from 0."""
        return (*(PROBABILITY_PREFIX + name for name in self.levels), EXPECTED_COLUMN)

    @property
    def score_names(self) -> tuple[str, ...]:
        """One score: what an instance adds to the level."""
        return (self.column,)

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Kappa, the mean error, and the AUC of each step."""
        found = {
            "kappa": Metric(
                "Quadratic kappa", self._compute_kappa, skips_undefined=True, is_centered=True
            ),
            "mae": Metric(
                "MAE",
                _compute_mae,
                lower_is_better=True,
                is_share=False,
                is_additive=True,
                fold_weight="rows",
            ),
        }
        for k, name in enumerate(self.levels[:-1]):
            formula, title = _compute_threshold_auc(k), f"AUC above {name}"
            found[f"auc_above_{name}"] = Metric(title, formula, skips_undefined=True)
        return found

    def _compute_kappa(self, targets: Floats, values: Floats, weights: Floats) -> Floats:
        labels, predicted = targets[:, 0].astype(np.int64), predict_levels(values)
        return formulas.weighted_quadratic_kappa(labels, predicted, weights, len(self.levels))

    @property
    def outputs(self) -> int:
        """A logit for each step upwards, or one score for all."""
        return len(self.levels) - 1 if self.loss_name == "corn" else 1

    @property
    def settings(self) -> dict[str, Any]:
        """The levels, their column and the loss."""
        return {"order": list(self.levels), "column": self.column, "loss": self.loss_name}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the task of these settings."""
        check_settings(cls.kind, settings, ("order", "column", "loss"))
        given = (settings.get("column", "label"), settings.get("loss", "corn"))
        return cls(settings["order"], *given)

    def read(self, rows: pandas.DataFrame) -> Targets:
        """Return the index of each level."""
        numbers, problems = parse_levels(rows[self.column], self.levels)
        if problems:
            raise CohortError("table", problems)
        return numbers[:, None]

    def find_training_problems(self, targets: Targets) -> list[str]:
        """Return whether there is only one level."""
        found = [self.levels[level] for level in np.unique(targets).astype(np.int64)]
        if len(found) > 1:
            return []
        name = repr(found[0]) if found else "empty"
        return [f"{self.column} is {name} in every row; expected different levels"]

    def describe_absent(self, targets: Targets) -> str:
        """Return the levels without a row."""
        found = self._find_absent(targets)
        if not found:
            return ""
        names = ", ".join(map(repr, found))
        return f"{self.column} is nowhere {names}, so no model can learn it; check `order`"

    def find_fold_problems(self, training: Targets, everything: Targets) -> list[str]:
        """Return the levels that only other sets of the fold have."""
        nowhere = self._find_absent(everything)
        return [
            f"no slide of level {name!r} is in the training set; expected one, join the level to "
            "another or leave out its slides"
            for name in self._find_absent(training)
            if name not in nowhere
        ]

    def _find_absent(self, targets: Targets) -> list[str]:
        found = set(self.strata(targets).tolist())
        return [name for number, name in enumerate(self.levels) if number not in found]

    def fitted(
        self, targets: Targets, *, label_smoothing: float = 0.0, class_weights: str = "none"
    ) -> Self:
        """Return the task with weights of levels that are inverse to their frequency."""
        if class_weights == "none":
            return replace(self, class_weights=())
        counts = np.bincount(self.strata(targets), minlength=len(self.levels))
        weights = len(targets) / (np.count_nonzero(counts) * np.maximum(counts, 1))
        return replace(self, class_weights=tuple(weights.tolist()))

    def strata(self, targets: Targets) -> npt.NDArray[np.int64]:
        """Return the levels."""
        return targets[:, 0].astype(np.int64)

    def prepare(self, target: npt.NDArray[Any]) -> Tensor:
        """Return the sign and the weight of each step in the loss, (2, K−1)."""
        level, steps = int(target[0]), np.arange(len(self.levels) - 1)
        counts = np.ones(len(steps))
        if self.loss_name == "corn":  # a step counts if the level below it is reached
            counts = (level >= steps) / np.sum(level >= steps)
        weight = self.class_weights[level] if self.class_weights else 1.0
        return prepare_terms(np.where(level > steps, -1.0, 1.0), weight * counts)

    def prepared_loss(self, outputs: Tensor, prepared: Tensor) -> Tensor:
        """Return the loss of the logits of the steps (K−1,)."""
        return sum_terms(outputs, prepared)

    def make_head(self) -> nn.Module | None:
        """Return CORAL's thresholds; CORN needs none."""
        from sacmil.nn.thresholds import Thresholds

        return None if self.loss_name == "corn" else Thresholds(len(self.levels) - 1)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each bag, from the logits of the steps (B, K−1)."""
        rows = corn_row_losses if self.loss_name == "corn" else coral_row_losses
        return rows(outputs, targets.reshape(len(outputs)))

    def activate(self, outputs: Tensor) -> Tensor:
        """Return the probability of each level and the expected level."""
        import torch
        from torch.nn.functional import logsigmoid

        log_passed = logsigmoid(outputs.float())
        if self.loss_name == "corn":  # above this level and all before
            log_passed = log_passed.cumsum(-1)
        above = log_passed.exp()
        one = torch.ones_like(above[..., :1])
        p = torch.cat([one, above], -1) - torch.cat([above, torch.zeros_like(one)], -1)
        return torch.cat([p, above.sum(-1, keepdim=True)], -1)

    def validation_loss(self, targets: Targets, predictions: Floats) -> float:
        """Return the mean negative logarithm of the true level's probability."""
        own = predictions[np.arange(len(targets)), self.strata(targets)]
        return float(-np.log(np.maximum(own, np.finfo(np.float32).tiny)).mean())

    def find_untestable(self, targets: Targets) -> str:
        """Return whether there is only one level."""
        return "holds one level only" if len(np.unique(targets)) < 2 else ""

    def predict_levels(self, predictions: Floats) -> npt.NDArray[np.int64]:
        """Return the median of each row's distribution."""
        return predict_levels(predictions)

    def describe(self, prediction: HasValues) -> Summary:
        """Return the predicted level first, then the others by probability.

        The expected level comes with the ends of its scale, as it is counted from 0.
        """
        values = np.asarray(prediction.values, dtype=np.float64)
        level = int(predict_levels(values[None])[0])
        pairs = zip(self.levels, values[:-1].tolist(), strict=True)
        choices = [Choice(*pair) for pair in pairs]
        first = choices.pop(level)
        others = sorted(choices, key=lambda one: -one.value)
        low, high = (f"{number} ({self.levels[number]})" for number in (0, len(self.levels) - 1))
        text = f"{first.name}, expected level from {low} to {high}: {values[-1]:.2f}"
        return Summary(first.name, text, (first, *others), 0)

    def find_spread(self, prediction: StoredPrediction) -> float | None:
        """Return that of the expected level."""
        return prediction.spread[-1] if prediction.spread else None

    def combine_scores(self, class_scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return what an instance adds to the level: the mean over the steps."""
        mean: npt.NDArray[np.float32] = class_scores.mean(axis=1, keepdims=True)
        return mean

    @property
    def value_names(self) -> tuple[str, ...]:
        """The levels and the expected one."""
        return (*self.levels, EXPECTED_COLUMN)

    @property
    def value_titles(self) -> tuple[str, ...]:
        """Probabilities of the levels, and the expected one."""
        return (*(f"the probability of {name}" for name in self.levels), "the expected level")


def predict_levels(values: Floats) -> npt.NDArray[np.int64]:
    """Return the level of each row of predictions: the median of its distribution."""
    p = values[:, :-1]
    above = 1 - np.cumsum(p, axis=1)[:, :-1]
    return formulas.predict_level(above)


def _compute_mae(targets: Floats, values: Floats, weights: Floats) -> Floats:
    return formulas.weighted_mae(targets[:, 0].astype(np.int64), predict_levels(values), weights)


def _compute_threshold_auc(k: int) -> Callable[[Floats, Floats, Floats], Floats]:
    """Return the formula of the AUC of "above level k"."""

    def compute(targets: Floats, values: Floats, weights: Floats) -> Floats:
        above = values[:, k + 1 : -1].sum(axis=1)
        return formulas.weighted_threshold_auc(targets[:, 0].astype(np.int64), above, weights, k)

    return compute
