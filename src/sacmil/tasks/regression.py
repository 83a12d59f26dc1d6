"""Regression: one or more numbers, learned on the scale of the training set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from sacmil.errors import CohortError, OptionError
from sacmil.metrics import regression as formulas
from sacmil.metrics.label_density import density_weight, fit_density
from sacmil.metrics.metric import Formula, Metric
from sacmil.tasks._cells import find_constant_columns, parse_numbers
from sacmil.tasks._checks import check_column_names, check_loss, check_settings
from sacmil.tasks._constants import make_constant
from sacmil.tasks._explanation import VALUE_CAUTION, format_number
from sacmil.tasks._task import Choice, Floats, HasValues, Summary, Targets, Task

if TYPE_CHECKING:
    import pandas
    from torch import Tensor

RegressionLoss = Literal["huber", "mse", "l1"]
LOSSES = ("huber", "mse", "l1")
STRATA = 5
"""Groups of equal size that folds are stratified by."""
_LEAST_VARIATION = 1e-5
"""Least standard deviation as a share of the largest number, as models predict in float32."""


def _is_finite(value: object) -> bool:
    return isinstance(value, float | int) and math.isfinite(value)


def _mean_over_targets(formula: Formula) -> Formula:
    """Return the formula of a metric, averaged over the target columns."""

    def compute(targets: Floats, values: Floats, weights: Floats) -> Floats:
        each = [formula(t, v, weights) for t, v in zip(targets.T, values.T, strict=True)]
        return np.asarray(np.mean(each, axis=0))

    return compute


def _select_target(formula: Formula, number: int) -> Formula:
    """Return the formula of a metric of one target column."""

    def compute(targets: Floats, values: Floats, weights: Floats) -> Floats:
        return formula(targets[:, number], values[:, number], weights)

    return compute


_spread = partial(Metric, skips_undefined=True, is_centered=True)
_error = partial(Metric, lower_is_better=True, is_share=False)
_METRICS = {
    "r2": _spread(
        "R²",
        formulas.weighted_r2,
        is_additive=True,
        useless_from=0.0,
        useless_text="neither is better than predicting the mean for everyone",
    ),
    "mae": _error("MAE", formulas.weighted_mae, is_additive=True, fold_weight="rows"),
    "rmse": _error("RMSE", formulas.weighted_rmse),
    "pearson": _spread("Pearson", formulas.weighted_pearson),
    "spearman": _spread("Spearman", formulas.weighted_spearman),
}
"""Of one target."""


@dataclass(frozen=True)
class Regression(Task):
    """One or more numbers, such as a Ki-67 index.

    A model predicts them on the standardised scale of its training set. With
    ``class_weights=balanced`` rare values weigh more (label distribution smoothing).

    Args:
        targets: columns of the table, one or several.
        loss: huber, mse or l1, of the standardised targets.
        mean: of each target in the training set.
        std: likewise, the standard deviation.
        density: edges and weights of bins for each target, if rare values weigh more.

    Example:
        >>> Regression("ki67").prediction_columns, Regression(("ki67", "er")).prediction_columns
        (('value',), ('value_ki67', 'value_er'))
    """

    kind: ClassVar[str] = "regression"
    missing_hint: ClassVar[str] = ": the columns of the numbers"
    breakdown_of: ClassVar[str] = "target"
    headline: ClassVar[str] = "r2"
    default_metrics: ClassVar[tuple[str, ...]] = ("r2", "mae", "rmse", "pearson", "spearman")
    are_probabilities: ClassVar[bool] = False
    caution: ClassVar[str] = VALUE_CAUTION
    diverging_scores: ClassVar[bool] = True
    plots: ClassVar[tuple[str, ...]] = ("scatter", "residuals")
    targets: str | Sequence[str]
    loss_name: RegressionLoss = "huber"
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    density: tuple[tuple[tuple[float, ...], tuple[float, ...]], ...] = ()

    def __post_init__(self) -> None:
        names = (self.targets,) if isinstance(self.targets, str) else tuple(self.targets)
        if not names or len(set(names)) < len(names):
            raise OptionError(f"`targets` is {names}; expected one or more different columns")
        check_loss(self.loss_name, LOSSES)
        object.__setattr__(self, "targets", names)
        check_column_names("targets", names, self.prediction_columns)
        counts = {len(self.mean), len(self.std)}
        if counts not in ({0}, {len(names)}) or not all(map(_is_finite, self.mean + self.std)):
            raise OptionError(
                f"`mean` is {self.mean}, `std` is {self.std}; expected a number for each of "
                f"{', '.join(names)}"
            )
        if not all(value > 0 for value in self.std):
            raise OptionError(f"`std` is {self.std}; expected numbers above 0")

    @property
    def metrics(self) -> Mapping[str, Metric]:
        """Means over the targets; of several, then those of each."""
        found = {
            name: replace(metric, formula=_mean_over_targets(metric.formula))
            for name, metric in _METRICS.items()
        }
        for number, target in enumerate(self.target_columns if self.outputs > 1 else ()):
            for name, metric in _METRICS.items():
                formula = _select_target(metric.formula, number)
                title = f"{metric.title}, {target}"
                found[f"{name}_{target}"] = replace(metric, title=title, formula=formula)
        return found

    @property
    def breakdown(self) -> Mapping[str, Mapping[str, str]]:
        """The metrics of each target, if there are several."""
        names = self.target_columns if self.outputs > 1 else ()
        return {
            target: {metric.title: f"{name}_{target}" for name, metric in _METRICS.items()}
            for target in names
        }

    @property
    def target_columns(self) -> tuple[str, ...]:
        """The columns of the table."""
        return tuple(self.targets)

    @property
    def prediction_columns(self) -> tuple[str, ...]:
        """The value, or that of each target."""
        names = self.target_columns
        return ("value",) if len(names) == 1 else tuple(f"value_{name}" for name in names)

    @property
    def score_names(self) -> tuple[str, ...]:
        """The targets."""
        return self.target_columns

    @property
    def outputs(self) -> int:
        """One for each target."""
        return len(self.target_columns)

    @property
    def settings(self) -> dict[str, Any]:
        """The targets, the loss, and the scale of the training set."""
        found = {"targets": list(self.target_columns), "loss": self.loss_name}
        learned = {"mean": list(self.mean), "std": list(self.std)} if self.mean else {}
        return found | learned

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the task of these settings."""
        check_settings(cls.kind, settings, ("targets", "loss"), ("mean", "std"))
        return cls(
            settings["targets"],
            settings.get("loss", "huber"),
            tuple(settings.get("mean", ())),
            tuple(settings.get("std", ())),
        )

    def read(self, rows: pandas.DataFrame) -> Targets:
        """Return the numbers; text and empty cells are errors."""
        parsed = [parse_numbers(rows[name]) for name in self.target_columns]
        targets = np.stack([values for values, _ in parsed], axis=1)
        problems = [text for _, texts in parsed for text in texts]
        if problems:
            raise CohortError("table", problems)
        return targets

    def find_training_problems(self, targets: Targets) -> list[str]:
        """Return the targets with one value only, or with too small differences for float32."""
        if problems := find_constant_columns(self.target_columns, targets):
            return problems
        sizes, std = np.abs(targets).max(axis=0), targets.std(axis=0)
        return [
            f"{name} varies by {deviation:.3g} only, in numbers up to {size:.3g}, which models "
            "predict with seven digits; subtract a constant from the column"
            for name, size, deviation in zip(self.target_columns, sizes, std, strict=True)
            if deviation < _LEAST_VARIATION * size
        ]

    def find_fitting_problems(self, targets: Targets) -> list[str]:
        """Return the targets of which a training set has one value only."""
        return [
            f"the training set has one value of {name} only; expected several: use fewer folds, or "
            "other ones"
            for name, values in zip(self.target_columns, targets.T, strict=True)
            if len(np.unique(values)) < 2
        ]

    def fitted(
        self, targets: Targets, *, label_smoothing: float = 0.0, class_weights: str = "none"
    ) -> Self:
        """Return the task with mean and standard deviation, and the density of values."""
        # of equal values rounding leaves a tiny deviation
        std = np.where(np.ptp(targets, axis=0) > 0, targets.std(axis=0), 0.0)
        density = [fit_density(values) for values in targets.T] if class_weights != "none" else []
        return replace(
            self,
            mean=tuple(targets.mean(axis=0).tolist()),
            std=tuple(np.where(std > 0, std, 1.0).tolist()),
            density=tuple((tuple(edges.tolist()), tuple(w.tolist())) for edges, w in density),
        )

    def strata(self, targets: Targets) -> npt.NDArray[np.int64]:
        """Return groups of equal size, by the first target."""
        values = targets[:, 0]
        edges = np.quantile(values, np.arange(1, STRATA) / STRATA)
        return np.searchsorted(edges, values, side="right")

    def prepare(self, target: npt.NDArray[Any]) -> Tensor:
        """Return the standardised values and their weights, (2, T)."""
        import torch

        mean, std = self._scale()
        pairs = zip(self.density, target, strict=bool(self.density))
        weights = [1 + float(density_weight(y, *map(np.array, found))) for found, y in pairs]
        standardised = (target - mean) / std
        listed = np.stack([standardised, np.array(weights or np.ones_like(target))])
        return torch.tensor(listed, dtype=torch.float32)

    def prepared_loss(self, outputs: Tensor, prepared: Tensor) -> Tensor:
        """Return the mean over the targets."""
        each = self._compare(outputs, prepared[0])
        weighted = each * prepared[1] if self.density else each
        return weighted.mean()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean over the standardised targets."""
        import torch

        rows = targets.detach().cpu().double().numpy()
        prepared = torch.stack([self.prepare(row) for row in rows], dim=1)
        standardised, weights = prepared.unbind(0)
        each = self._compare(outputs, standardised.to(outputs.device))
        weighted: Tensor = each * weights.to(each)
        return weighted.mean(-1)

    def _compare(self, outputs: Tensor, standardised: Tensor) -> Tensor:
        """Return the loss of each value on the standardised scale."""
        import torch
        from torch.nn import functional as F

        kind = torch.promote_types(outputs.dtype, torch.float32)
        found, wanted = outputs.to(kind), standardised.to(kind)
        each: Tensor
        if self.loss_name == "huber":
            each = F.huber_loss(found, wanted, reduction="none")
        elif self.loss_name == "mse":
            each = F.mse_loss(found, wanted, reduction="none")
        else:
            each = F.l1_loss(found, wanted, reduction="none")
        return each

    def _scale(self) -> tuple[Floats, Floats]:
        """Return mean and standard deviation of the training set; 0 and 1 before it is known."""
        count = self.outputs
        return np.array(self.mean or (0.0,) * count), np.array(self.std or (1.0,) * count)

    def activate(self, outputs: Tensor) -> Tensor:
        """Return the values on their own scale."""
        mean, std = (make_constant(tuple(v.tolist()), outputs.device) for v in self._scale())
        return outputs.float() * std.float() + mean.float()

    def validation_loss(self, targets: Targets, predictions: Floats) -> float:
        """Return the mean loss on the standardised scale."""
        error = np.abs(predictions - targets) / self._scale()[1]
        if self.loss_name == "huber":
            error = np.where(error < 1, error**2 / 2, error - 0.5)
        elif self.loss_name == "mse":
            error = error**2
        if self.density:
            pairs = zip(self.density, targets.T, strict=True)
            each = [density_weight(y, *map(np.array, density)) for density, y in pairs]
            error = error * (1 + np.stack(each, axis=1))
        return float(error.mean())

    def find_untestable(self, targets: Targets) -> str:
        """Return whether all values are equal."""
        is_constant = any(len(np.unique(values)) < 2 for values in targets.T)
        return "holds one value only" if is_constant else ""

    def combine_scores(self, class_scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return what an instance adds to each value, on its own scale."""
        return class_scores * self._scale()[1].astype(np.float32)

    @property
    def value_titles(self) -> tuple[str, ...]:
        """The targets."""
        return self.target_columns

    def describe(self, prediction: HasValues) -> Summary:
        """Return the values."""
        pairs = zip(self.target_columns, map(float, prediction.values), strict=True)
        choices = tuple(Choice(*pair) for pair in pairs)
        predicted = ", ".join(format_number(value) for _, value in choices)
        headline = ", ".join(f"{name} {format_number(value)}" for name, value in choices)
        return Summary(predicted, headline, choices, 0)
