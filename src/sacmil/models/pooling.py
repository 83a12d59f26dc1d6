"""Mean and max pooling: the oldest baselines, in every form that goes by these names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from sacmil.models._base import MILModel, Output, Reference
from sacmil.models._options import at_least, choice, share
from sacmil.models._recipe import PAPER, Recipe
from sacmil.models._reference import renamed, shape
from sacmil.models._registry import register_model
from sacmil.models.abmil import SLIDES
from sacmil.nn.projection import projection, xavier_
from sacmil.nn.sums import sums_by


@register_model("mean_pool")
class MeanMIL(MILModel):
    """Mean pooling (as in IBMIL 2023 and RRT-MIL 2024): all instances count the same.

    Args:
        kind: mean of instance logits (instances), or of features, then a linear layer (features).
        hidden: width of the layer before an instance's logits; features have none.
        dropout: share of that layer's values dropped in training.
    """

    coords_matter = False
    recipes: ClassVar[Mapping[str, Recipe]] = {"paper": PAPER, "official": SLIDES}

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        kind: str = "instances",
        hidden: int = 512,
        dropout: float = 0.25,
    ) -> None:
        super().__init__(in_dim, num_classes)
        self.kind = choice("kind", kind, ("instances", "features"))
        self.project, self.head = _layers(in_dim, num_classes, kind, hidden, dropout)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Scores are the instance's share in the predicted class's logit."""
        if self.kind == "features":
            logits: Tensor = self.head(features.mean(0))
            return _scored(logits, F.linear(features, self.head.weight))
        instances = self.head(self.project(features))  # (N, C)
        return _scored(instances.mean(0), instances)

    @classmethod
    def reference(cls, state: Mapping[str, Tensor]) -> Reference:
        """The names of IBMIL's MeanNet and of RRT-MIL's MeanMIL."""
        return _understood(state)


@register_model("max_pool")
class MaxMIL(MILModel):
    """Max pooling (as in CLAM 2021, IBMIL 2023 and RRT-MIL 2024): the strongest instances decide.

    Args:
        kind: largest logit per class (instances), channel (features), or one instance (instance).
        hidden: width of the layer before an instance's logits; features have none.
        dropout: share of that layer's values dropped in training.
    """

    coords_matter = False
    recipes: ClassVar[Mapping[str, Recipe]] = {"paper": PAPER, "official": SLIDES}

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        kind: str = "instances",
        hidden: int = 512,
        dropout: float = 0.25,
    ) -> None:
        super().__init__(in_dim, num_classes)
        self.kind = choice("kind", kind, ("instances", "features", "instance"))
        self.project, self.head = _layers(in_dim, num_classes, kind, hidden, dropout)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Scores are instance logits; for features, the weights of the channels an instance won."""
        if self.kind == "features":
            return self._by_channel(features)
        instances = self.head(self.project(features))  # (N, C)
        if self.kind == "instances":
            return _scored(instances.max(0).values, instances)
        return _scored(instances.index_select(0, _most_certain(instances))[0], instances)

    def _by_channel(self, features: Tensor) -> Output:
        largest, winners = features.max(0)
        won = sums_by(winners, self.head.weight.T, features.shape[0])
        return _scored(self.head(largest), won)

    @classmethod
    def reference(cls, state: Mapping[str, Tensor]) -> Reference:
        """The names of IBMIL's MaxNet, RRT-MIL's MaxMIL, CLAM's MIL_fc and MIL_fc_mc."""
        return _understood(state)


def _layers(
    in_dim: int, num_classes: int, kind: str, hidden: int, dropout: float
) -> tuple[nn.Module, nn.Linear]:
    at_least("hidden", hidden, 1)
    width = None if kind == "features" else hidden
    layers = nn.ModuleList([projection(in_dim, width, dropout=share("dropout", dropout))])
    layers.append(nn.Linear(width or in_dim, num_classes))
    if kind == "instances":  # RRT-MIL; IBMIL and CLAM leave the weights as torch draws them
        xavier_(layers)
    project, head = layers
    assert isinstance(head, nn.Linear)
    return project, head


def _scored(logits: Tensor, class_scores: Tensor) -> Output:
    predicted = logits.argmax(0, keepdim=True)
    return Output(logits, class_scores.index_select(1, predicted)[:, 0], class_scores)


def _most_certain(instances: Tensor) -> Tensor:
    """(1,), the instance surest of the positive class; with three or more, of any class."""
    if instances.shape[1] == 1:
        return instances[:, 0].argmax(0, keepdim=True)
    probabilities = instances.softmax(1)
    sure = probabilities[:, 1] if instances.shape[1] == 2 else probabilities.amax(1)
    return sure.argmax(0, keepdim=True)


def _understood(state: Mapping[str, Tensor]) -> Reference:
    project = {"head.0": "project.0", "fc.0": "project.0"}
    ours = renamed(state, project | {"head.3": "head", "classifier": "head", "classifiers": "head"})
    num_classes, width = shape(ours, "head.weight")
    if "project.0.weight" not in ours:
        options = {"kind": "features", "in_dim": width}
    else:
        kind = "instance" if "fc.0.weight" in state else "instances"
        options = {"kind": kind, "hidden": width, "in_dim": ours["project.0.weight"].shape[1]}
    return Reference({"num_classes": num_classes, **options}, ours)
