"""Classification: one of several classes, the softmax of a logit for each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from sacmil.errors import CohortError
from sacmil.metrics.classification import CLASSIFICATION_METRICS
from sacmil.metrics.metric import Metric
from sacmil.results import Prediction, StoredPrediction, TaskCard
from sacmil.tasks._cells import parse_levels
from sacmil.tasks._checks import check_settings
from sacmil.tasks._constants import make_constant
from sacmil.tasks._explanation import LEANING_PROBABILITY, describe_prediction
from sacmil.tasks._task import Choice, Floats, HasValues, Losses, Summary, Targets, Task

if TYPE_CHECKING:
    import pandas
    from torch import Tensor


@dataclass(frozen=True)
class Classification(Task):
    """One of several classes.

    Args:
        classes: their names, in the order of a model's outputs.
        label_smoothing: share of labels taken as random in training.
        class_weights: factor of the loss by class; empty means one.

    Example:
        >>> Classification(("normal", "tumor")).prediction_columns
        ('p_normal', 'p_tumor')
    """

    kind: ClassVar[str] = "classification"
    metrics: ClassVar[Mapping[str, Metric]] = CLASSIFICATION_METRICS
    has_classes: ClassVar[bool] = True
    calibrated_as: ClassVar[Literal["", "classes", "labels"]] = "classes"
    names_title: ClassVar[str] = "Classes"
    plots: ClassVar[tuple[str, ...]] = ("roc", "calibration", "confusion")
    headline: ClassVar[str] = "auc"
    default_metrics: ClassVar[tuple[str, ...]] = ("accuracy", "auc", "f1")
    """The metrics of the paper's tables, in their order."""
    target_columns: ClassVar[tuple[str, ...]] = ("label",)

    classes: tuple[str, ...]
    label_smoothing: float = 0.0
    class_weights: tuple[float, ...] = ()

    @property
    def outputs(self) -> int:
        """A logit for each class."""
        return len(self.classes)

    @property
    def levels(self) -> tuple[str, ...]:
        """The classes."""
        return self.classes

    @property
    def prediction_columns(self) -> tuple[str, ...]:
        """The probability of each class."""
        return TaskCard.of_classes(self.classes).prediction_columns

    @property
    def score_names(self) -> tuple[str, ...]:
        """The classes."""
        return self.classes

    @property
    def settings(self) -> dict[str, Any]:
        """The classes."""
        return {"classes": list(self.classes)}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the task of these classes."""
        check_settings(cls.kind, settings, ("classes",))
        return cls(tuple(settings["classes"]))

    def read(self, rows: pandas.DataFrame) -> Targets:
        """Return the index of each class."""
        numbers, problems = parse_levels(rows["label"], self.classes)
        if problems:
            raise CohortError("table", problems)
        return numbers[:, None]

    def check_training(self, *, label_smoothing: float, class_weights: str) -> None:
        """Accept all."""

    def fitted(
        self, targets: Targets, *, label_smoothing: float = 0.0, class_weights: str = "none"
    ) -> Self:
        """Return the task with weights of classes that are inverse to their frequency."""
        changed = replace(self, label_smoothing=label_smoothing, class_weights=())
        if class_weights == "none":
            return changed
        counts = np.bincount(self.strata(targets), minlength=max(2, len(self.classes)))
        present = np.count_nonzero(counts)
        weights = len(targets) / (present * np.maximum(counts, 1))
        return replace(changed, class_weights=tuple(weights.tolist()))

    def strata(self, targets: Targets) -> npt.NDArray[np.int64]:
        """Return the classes."""
        return targets[:, 0].astype(np.int64)

    def resampling_groups(self, targets: Targets) -> npt.NDArray[np.int64]:
        """Return the classes: without one of them most metrics are undefined."""
        return self.strata(targets)

    def prepare(self, target: npt.NDArray[Any]) -> Tensor:
        """Return the index of the class, without axes."""
        import torch

        return torch.tensor(int(target[0]))

    def prepared_loss(self, outputs: Tensor, prepared: Tensor) -> Tensor:
        """Return the cross-entropy; smoothing and weights are in ``total_losses``."""
        from torch.nn import functional as F

        if outputs.shape[-1] == 1:
            wanted = prepared.to(outputs.dtype)
            return F.binary_cross_entropy_with_logits(outputs[0], wanted)
        return F.cross_entropy(outputs, prepared)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the cross-entropy; a single output has a sigmoid."""
        from torch.nn import functional as F

        labels = targets.reshape(len(outputs)).long()
        if outputs.shape[-1] == 1:
            wanted = labels.to(outputs.dtype)
            return F.binary_cross_entropy_with_logits(outputs[:, 0], wanted, reduction="none")
        return F.cross_entropy(outputs, labels, reduction="none")

    def total_losses(self, compute: Callable[[Tensor], Losses], prepared: Tensor) -> Losses:
        """Return the losses, smoothed and weighted by class."""
        losses = self._smooth(compute, prepared)
        if not self.class_weights:
            return losses
        weight = make_constant(self.class_weights, prepared.device)[prepared].float()
        return {group: weight * loss for group, loss in losses.items()}

    def _smooth(self, compute: Callable[[Tensor], Losses], label: Tensor) -> Losses:
        """Return the expected losses if the label is random with probability ``label_smoothing``.

        For a cross-entropy this is label smoothing. It needs nothing but the model's losses.
        """
        import torch

        losses, share = compute(label), self.label_smoothing
        if not share:
            return losses
        classes = range(max(len(self.classes), 2))
        each_class = [compute(torch.full_like(label, c)) for c in classes]
        return {
            group: (1 - share) * loss + share * torch.stack([x[group] for x in each_class]).mean()
            for group, loss in losses.items()
        }

    def activate(self, outputs: Tensor) -> Tensor:
        """Return probabilities that sum to one; for a single output that of class 1."""
        return outputs.softmax(-1) if outputs.shape[-1] > 1 else outputs.sigmoid()

    def validation_loss(self, targets: Targets, predictions: Floats) -> float:
        """Return the mean cross-entropy."""
        of_target = predictions[np.arange(len(targets)), self.strata(targets)]
        return float(-np.log(np.maximum(of_target, np.finfo(np.float32).tiny)).mean())

    def find_untestable(self, targets: Targets) -> str:
        """Return whether there is only one class."""
        return "holds one class only" if len(np.unique(targets)) < 2 else ""

    def find_true_column(self, target: Sequence[float]) -> int:
        """Return that of the slide's class."""
        return int(target[0])

    def describe(self, prediction: HasValues) -> Summary:
        """Return the classes, the most probable first, or the one that a threshold decides."""
        pairs = zip(self.classes, map(float, prediction.values), strict=True)
        choices = tuple(sorted((Choice(*pair) for pair in pairs), key=lambda one: -one.value))
        undecided = choices[0].value < LEANING_PROBABILITY
        if prediction.thresholds:
            decided = self.classes[int(prediction.values[1] >= prediction.thresholds[0])]
            choices = tuple(sorted(choices, key=lambda one: one.name != decided))
            undecided = False
        first = choices[0]
        column = self.classes.index(first.name)
        headline = f"{first.name} {first.value:.2f}"
        return Summary(first.name, headline, choices, column, is_undecided=undecided)

    def find_spread(self, prediction: StoredPrediction) -> float | None:
        """Return the largest of the classes."""
        return max(prediction.spread) if prediction.spread else None

    def explain(self, prediction: StoredPrediction) -> str:
        """Return the prediction, how clear it is and whether members agree."""
        return describe_prediction(self.classes, prediction)

    def make_prediction(
        self,
        slide_id: str,
        values: npt.NDArray[np.float64],
        scores: npt.NDArray[np.float32],
        class_scores: npt.NDArray[np.float32] | None,
    ) -> Prediction:
        """Return the prediction; a single output is the probability of the second class."""
        return Prediction.from_output(slide_id, values, scores, class_scores, self.classes)

    @property
    def value_names(self) -> tuple[str, ...]:
        """The classes."""
        return self.classes
