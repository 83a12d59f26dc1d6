"""The base class of all tasks: what is predicted, how it is learned, and how it is judged.

Shape letters used throughout: B bags, O outputs of the head, T target columns, P prediction
columns, n rows. Torch is imported only inside ``loss`` and ``activate``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self

import numpy as np
import numpy.typing as npt

from sacmil.errors import ConfigError, OptionError, suggest_names
from sacmil.metrics.metric import Metric
from sacmil.results import Prediction, StoredPrediction, TaskCard
from sacmil.tasks._explanation import CAUTION, format_number

if TYPE_CHECKING:
    import pandas
    from torch import Tensor, nn

Floats = npt.NDArray[np.float64]
Targets = Floats
"""(n, T); a class or level is its index, NaN is missing."""
Losses = dict[str, "Tensor"]
"""A loss for each group of parameters."""


class Choice(NamedTuple):
    """A value to show, such as the probability of a class."""

    name: str
    value: float


class Summary(NamedTuple):
    """What a prediction says, for people."""

    predicted: str
    """In a word, for tables: "tumor", "23.1", "er, pr"."""
    headline: str
    """With its probability: "tumor 0.97", "ki67 23.1"."""
    values: tuple[Choice, ...]
    """Everything predicted, the most important first."""
    score_column: int
    """The column of scores by class that belongs to what is predicted."""
    is_undecided: bool = False
    """Whether no value stands out."""


class Curve(NamedTuple):
    """A predicted curve, to draw."""

    x_title: str
    y_title: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    """Between 0 and 1."""


class HasValues(Protocol):
    """A prediction, in memory or in a file."""

    @property
    def values(self) -> Any:
        """One number per prediction column."""

    @property
    def thresholds(self) -> tuple[float, ...] | None:
        """Of a calibrated prediction; see sacmil.tasks.calibration."""


class Task(ABC):
    """A kind of target. A task is immutable: what it learns makes a new one."""

    kind: ClassVar[str]
    """Its name on the command line and in cards."""
    missing_hint: ClassVar[str] = ", see its class in sacmil.tasks"
    """What to give if a setting is missing, after the message that says so."""
    min_batch: ClassVar[int] = 32
    """Fewest bags of a step if the loss needs several, and the training set has as many."""
    learns_by_patient: ClassVar[bool] = False
    """Whether ``fitted`` and what looks for problems before it take a row per patient; otherwise
    per slide."""
    needs_training_rows: ClassVar[bool] = False
    """Whether the trained model predicts its training set, for ``calibrated`` and for metrics."""
    has_classes: ClassVar[bool] = False
    """Whether the target is one of several classes without order. Each must occur in the training
    set of every fold, and some models can be trained for nothing else."""
    are_probabilities: ClassVar[bool] = True
    """Whether what is shown of a prediction lies between 0 and 1."""
    are_percentages: ClassVar[bool] = False
    """Whether it does without being the probability of what is predicted, such as a percentile."""
    calibrated_as: ClassVar[Literal["", "classes", "labels"]] = ""
    """How probabilities can be calibrated: of classes, which sum to one, or of labels, each by
    itself; empty if they cannot. A task that sets it has ``describe`` follow the thresholds."""
    diverging_scores: ClassVar[bool] = False
    """Whether instance scores add to or take from a value, and zero is the middle of colors."""
    score_effects: ClassVar[tuple[str, str]] = ("adds to {name}", "lowers {name}")
    """What an instance does whose score is above zero, and below; see ``describe_effects``."""
    zero_effect: ClassVar[str] = "does neither"
    """What one does whose score is zero."""
    level_noun: ClassVar[str] = "class"
    """What one of ``levels`` is called in plots and tables."""
    caution: ClassVar[str] = CAUTION
    """What to keep in mind about a prediction, for the page of a slide."""

    @property
    def needs_batch(self) -> bool:
        """Whether the loss is defined over several bags only; see ``batch_loss``."""
        return False

    # --- what is predicted

    @property
    @abstractmethod
    def target_columns(self) -> tuple[str, ...]:
        """Columns of the true values in predictions.csv."""

    @property
    @abstractmethod
    def prediction_columns(self) -> tuple[str, ...]:
        """Columns of the predictions there."""

    @property
    @abstractmethod
    def score_names(self) -> tuple[str, ...]:
        """What each column of an instance's scores belongs to."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """Width of a model's head."""

    @property
    def levels(self) -> tuple[str, ...]:
        """Names of the target's values 0, 1, …; empty if the target is a number."""
        return ()

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """What makes this task again, as JSON can hold it, with what it has learned."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the task of these settings."""
        return cls(**settings)

    @property
    def card(self) -> TaskCard:
        """This task as plain data."""
        return TaskCard(
            self.kind, self.target_columns, self.prediction_columns, self.levels, self.settings
        )

    @property
    def output_description(self) -> str:
        """What predictions and scores mean, in words; the models of an ensemble share it."""
        return self.card.description

    @abstractmethod
    def read(self, rows: pandas.DataFrame) -> Targets:
        """Return the targets of a table, (n, T).

        Args:
            rows: text cells; the index is the location of each row, for messages.

        Raises:
            CohortError: lists every problem with its rows.
        """

    @property
    def source_columns(self) -> tuple[str, ...]:
        """Columns of the user's table that ``read`` needs."""
        return self.target_columns

    def find_columns(self, columns: Sequence[str]) -> Self:
        """Return the task with the columns it was not given, found among those of a table."""
        return self

    left_out: ClassVar[str] = "without a target"
    """What is wrong with the rows that are left out, after their number."""

    def find_left_out(self, targets: Targets) -> npt.NDArray[np.bool_]:
        """Return which rows of a table are not used, (n,)."""
        unknown: npt.NDArray[np.bool_] = np.all(np.isnan(targets), axis=1)
        return unknown

    def complete(self, targets: Targets) -> Self:
        """Return the task with what its tables need to know of all targets.

        Nothing that a model learns belongs here: these are targets of test sets too.
        """
        return self

    def describe_targets(self, targets: Targets) -> str:
        """Return a line for people to check what was read, with a row per patient; or nothing."""
        return ""

    def with_label_column(self, column: str) -> Self | None:
        """Return the task that reads its levels from another column; None if it has none."""
        return None

    def format_source(self, target: Sequence[float]) -> list[str]:
        """Return the cells of ``source_columns`` that ``read`` makes a target of."""
        if self.levels:
            return [self.levels[int(target[0])]]
        return ["" if math.isnan(value) else repr(float(value)) for value in target]

    # --- what is learned

    def explain_difference(self, other: Task) -> str:
        """Return why predictions of this task say nothing about targets of another; or nothing."""
        if self.card == other.card:
            return ""
        return (
            f"predicts {self.card.description}, the table was read for {other.card.description}; "
            "expected the same: give the `task` of the model, and evaluate models of different "
            "tasks one after the other"
        )

    def find_training_problems(self, targets: Targets) -> list[str]:
        """Return why nothing can be learned from targets, such as one value in every row."""
        return []

    def find_fitting_problems(self, targets: Targets) -> list[str]:
        """Return why ``fitted`` would fail for a training set, such as too few events."""
        return []

    def describe_implausible(self, targets: Targets) -> str:
        """Return what is probably wrong with targets, for a warning; or nothing."""
        return ""

    def describe_absent(self, targets: Targets) -> str:
        """Return which values the target may have but no row has, for a warning; or nothing."""
        return ""

    def find_fold_problems(self, training: Targets, everything: Targets) -> list[str]:
        """Return why a fold cannot be used: what its training set lacks and the cohort has."""
        return []

    def find_fold_warnings(self, training: Targets, everything: Targets) -> list[str]:
        """Return why a fold misleads though it can be used; arguments as in find_fold_problems."""
        return []

    def check_training(self, *, label_smoothing: float, class_weights: str) -> None:
        """Reject settings of a recipe that make no sense for these targets."""
        if label_smoothing:
            raise ConfigError(
                f"label_smoothing={label_smoothing:g}; the task {self.kind} has no classes to "
                "smooth, expected 0"
            )

    def fitted(
        self, targets: Targets, *, label_smoothing: float = 0.0, class_weights: str = "none"
    ) -> Self:
        """Return the task with what it learns from targets: of the training set only.

        Args:
            targets: (n, T).
            label_smoothing: of the recipe.
            class_weights: of the recipe, none or balanced.
        """
        return self

    def calibrated(
        self,
        outputs: Floats,
        targets: Targets,
        patients: Sequence[str] | None = None,
        score_sums: Floats | None = None,
    ) -> Self:
        """Return the task with what a trained model teaches: of the training set only.

        Args:
            outputs: of the model's head for each training slide (n, O), in evaluation mode.
            targets: (n, T).
            patients: of each slide; None means that every row is one.
            score_sums: of each slide's instance scores (n, O); None if these do not add up to the
                outputs, but are outputs for an instance by itself, or are missing.
        """
        return self

    def mark_rows(self, targets: Targets) -> Mapping[str, npt.NDArray[np.bool_]]:
        """Return what is counted of a set besides its rows, by name: (n,), such as events."""
        return {}

    def explain_unlearned(self) -> str:
        """Return why a model of the task cannot predict: what its training set never taught."""
        return ""

    def strata(self, targets: Targets) -> npt.NDArray[np.int64]:
        """Return the group of each row that folds are stratified by, (n,)."""
        return np.zeros(len(targets), dtype=np.int64)

    def resampling_groups(self, targets: Targets) -> npt.NDArray[np.int64]:
        """Return groups of rows; each resample must keep a row of every group, (n,)."""
        return np.zeros(len(targets), dtype=np.int64)

    def prepare(self, target: npt.NDArray[Any]) -> Tensor:
        """Return the target of a bag, (T,), as ``prepared_loss`` takes it.

        It is made once, on the CPU: what depends on the target only costs a training step nothing.
        """
        import torch

        return torch.tensor(target, dtype=torch.float32)

    def prepared_loss(self, outputs: Tensor, prepared: Tensor) -> Tensor:
        """Return the loss of one bag, weights included: outputs (O,) to a scalar."""
        return self.loss(outputs[None], prepared[None])[0]

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each bag: outputs (B, O) and targets (B, T) to (B,)."""

    def batch_loss(self, outputs: Tensor, prepared: Tensor) -> Tensor:
        """Return the loss of several bags, a scalar: for a task that needs a batch.

        Args:
            outputs: of the model's head (B, O).
            prepared: targets as ``prepare`` returns them, stacked.
        """
        return self.loss(outputs, prepared).mean()

    def total_losses(self, compute: Callable[[Tensor], Losses], prepared: Tensor) -> Losses:
        """Return the losses of a bag.

        Args:
            compute: the model's losses for a prepared target.
            prepared: that of the bag.
        """
        return compute(prepared)

    def make_head(self) -> nn.Module | None:
        """Return a layer of the task's own after the model's head, or None."""
        return None

    # --- what comes out

    @abstractmethod
    def activate(self, outputs: Tensor) -> Tensor:
        """Return the prediction columns: outputs (…, O) to (…, P). Exported with the graph."""

    @abstractmethod
    def validation_loss(self, targets: Targets, predictions: Floats) -> float:
        """Return the mean loss of predictions (n, P), by which ``monitor=val_loss`` chooses."""

    def find_untestable(self, targets: Targets) -> str:
        """Return why the headline metric is undefined for targets; empty if it is defined."""
        return ""

    def find_true_column(self, target: Sequence[float]) -> int | None:
        """Return the column of instance scores that a slide's labelled instances should raise.

        None if there is none, so that localisation is not measured.
        """
        return 0

    def predict_levels(self, predictions: Floats) -> npt.NDArray[np.int64]:
        """Return the level of each row of predictions (n, P), for a task with levels."""
        found: npt.NDArray[np.int64] = predictions.argmax(axis=1)
        return found

    @abstractmethod
    def describe(self, prediction: HasValues) -> Summary:
        """Return what a prediction says, for people."""

    def get_curve(self, prediction: HasValues) -> Curve | None:
        """Return a curve that a prediction consists of, to draw; None if there is none."""
        return None

    def get_member_curves(self, prediction: StoredPrediction) -> tuple[Curve, ...]:
        """Return the curves of an ensemble's members; none if there is one member or no curve."""
        members = prediction.members if len(prediction.members) > 1 else ()
        curves = (self.get_curve(replace(prediction, values=one)) for one in members)
        return tuple(curve for curve in curves if curve is not None)

    def describe_effects(self, name: str) -> tuple[str, str] | None:
        """Return what instances with scores above and below zero do; None if scores have no sign.

        Args:
            name: of the scores, one of ``score_names``.
        """
        if not self.diverging_scores:
            return None
        above, below = (text.replace("{name}", name) for text in self.score_effects)
        return above, below

    names_title: ClassVar[str] = "Targets"
    """Heading of the score names on pages."""

    def explain(self, prediction: StoredPrediction) -> str:
        """Return a prediction in plain words, for the page of a slide."""
        count, spread = len(prediction.members), prediction.spread
        text = f"The model predicts {self.describe(prediction).headline}. "
        if count > 1 and spread is not None:
            column = max(range(len(spread)), key=spread.__getitem__)
            each = [one[column] for one in prediction.members]
            low, high = format_number(min(each)), format_number(max(each))
            name = self.value_titles[column]
            text += (
                f"Its {count} members predict {low} to {high} for {name} "
                f"(spread {format_number(spread[column])}). "
            )
        return text + self.caution

    def find_spread(self, prediction: StoredPrediction) -> float | None:
        """Return the standard deviation over members of what the headline states, if it is one."""
        return prediction.spread[0] if prediction.spread and len(prediction.values) == 1 else None

    def make_prediction(
        self,
        slide_id: str,
        values: npt.NDArray[np.float64],
        scores: npt.NDArray[np.float32],
        class_scores: npt.NDArray[np.float32] | None,
    ) -> Prediction:
        """Return the prediction of a model's output.

        Args:
            slide_id: of the bag.
            values: what ``activate`` returned.
            scores: (N,), the model's own scores of instances.
            class_scores: (N, O), or None.

        Raises:
            InputError: a number is NaN or infinite.
        """
        found = Prediction(slide_id, self.prediction_columns, values, scores)
        if class_scores is not None:
            by_name = self.combine_scores(class_scores)
            column = self.describe(found).score_column
            several = by_name if by_name.shape[1] > 1 else None
            found = replace(
                found,
                scores=by_name[:, column],
                class_scores=several,
                score_class=column,
                scores_add=self.diverging_scores,
            )
        found.check_is_finite()
        return found

    def combine_scores(self, class_scores: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return scores (N, S), one column per score name, of the head's (N, O)."""
        return class_scores

    @property
    def value_names(self) -> tuple[str, ...]:
        """Names of the prediction columns on pages and in files of predictions."""
        return self.prediction_columns

    @property
    def value_titles(self) -> tuple[str, ...]:
        """What the prediction columns are called in a sentence."""
        return self.value_names

    # --- metrics

    plots: ClassVar[tuple[str, ...]] = ()
    """Names in sacmil.evaluation.report.PLOTS, in the order of a report."""
    tables: ClassVar[tuple[str, ...]] = ()
    """Names in sacmil.evaluation.report.TABLES, in the order of a report."""

    fold_size_name: ClassVar[str] = "size"
    """By what of a fold means over folds are weighted, where a metric has ``fold_size``."""
    breakdown_of: ClassVar[str] = "label"
    """What the rows of ``breakdown`` are about."""
    breakdown_note: ClassVar[str] = ""
    """What to know about that table, as sentences after its caption."""

    @property
    def breakdown(self) -> Mapping[str, Mapping[str, str]]:
        """Rows of a further table: metrics by title, by the name of the row."""
        return {}

    @property
    @abstractmethod
    def metrics(self) -> Mapping[str, Metric]:
        """All metrics by name, in the order of columns in tables."""

    @property
    @abstractmethod
    def headline(self) -> str:
        """The metric that models are compared by."""

    @property
    def default_metrics(self) -> tuple[str, ...]:
        """Metrics of a table if none are named."""
        return tuple(self.metrics)

    def get_metric(self, name: str) -> Metric:
        """Return a metric; reject the name of another."""
        if name not in self.metrics:
            raise ConfigError(
                f"there is no metric {name!r} of the task {self.kind}; "
                f"{suggest_names(name, self.metrics)}"
            )
        return self.metrics[name]

    def list_metrics(self, names: str | Sequence[str] | None) -> tuple[str, ...]:
        """Return checked names of metrics, each once; "all" means all, None the default."""
        if names is None:
            return self.default_metrics
        if names == "all":
            return tuple(self.metrics)
        listed = [names] if isinstance(names, str) else list(names)
        if not listed:
            raise OptionError(f"`metrics` is empty; expected names among {', '.join(self.metrics)}")
        for name in listed:
            self.get_metric(name)
        return tuple(dict.fromkeys(listed))
