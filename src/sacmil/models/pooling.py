"""Mean and max pooling, in every form that has these names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from torch import Tensor, nn

from sacmil.models._base import MILModel, Output, Reference, select_predicted_class
from sacmil.models._checks import Fraction, Size, one_of
from sacmil.models._recipe import PAPER, Recipe
from sacmil.models._reference import RenamedState, get_shape
from sacmil.models._registry import register_model
from sacmil.models.abmil import RRT_RECIPE
from sacmil.nn.layers import init_linear_, make_projection
from sacmil.nn.pooling import scatter_sum


class _Pooling(MILModel):
    """What both share: layers, recipes and official names."""

    coords_matter = False
    scores_are_logits = True
    recipes: ClassVar[Mapping[str, Recipe]] = {"paper": PAPER, "official": RRT_RECIPE}

    def _add_layers(self, kind: str, hidden: int, dropout: float) -> None:
        width = None if kind == "features" else hidden
        self.kind = kind
        self.project = make_projection(self.in_dim, width, dropout=dropout)
        self.head = nn.Linear(width or self.in_dim, self.num_classes)
        if kind == "instances":  # as RRT-MIL; IBMIL and CLAM use torch's own initialization
            init_linear_(self)

    @classmethod
    def reference(cls, state: Mapping[str, Tensor]) -> Reference:
        """The names of IBMIL's and RRT-MIL's two models, and of CLAM's MIL_fc and MIL_fc_mc."""
        project = {"head.0": "project.0", "fc.0": "project.0"}
        head = {"head.3": "head", "classifier": "head", "classifiers": "head"}
        ours = RenamedState(state, project | head)
        num_classes, width = get_shape(ours, "head.weight")
        if "project.0.weight" not in ours:
            options = {"kind": "features", "in_dim": width}
        else:
            kind = "instance" if "fc.0.weight" in state else "instances"
            options = {"kind": kind, "hidden": width, "in_dim": ours["project.0.weight"].shape[1]}
        return Reference({"num_classes": num_classes, **options}, ours)


@register_model("mean_pool")
class MeanMIL(_Pooling):
    """Mean pooling (as in IBMIL 2023 and RRT-MIL 2024): all instances have the same weight.

    Args:
        kind: mean of instance logits (instances), or of features before the head (features).
        hidden: width of the layer before an instance's logits; unused with kind="features".
        dropout: share of that layer's values dropped in training.
    """

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        kind: Annotated[str, one_of(("instances", "features"))] = "instances",
        hidden: Size = 512,
        dropout: Fraction = 0.25,
    ) -> None:
        super().__init__(in_dim, num_classes)
        self._add_layers(kind, hidden, dropout)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Scores are the instance's logits for the predicted class; their mean is the slide's."""
        if self.kind == "features":
            slide = features.mean(0)
            return _make_output(self.head(slide), self.head(features), slide)
        h = self.project(features)
        instances = self.head(h)  # (N, C)
        return _make_output(instances.mean(0), instances, h.mean(0))


@register_model("max_pool")
class MaxMIL(_Pooling):
    """Max pooling (as in CLAM 2021, IBMIL 2023 and RRT-MIL 2024): the strongest instances decide.

    Args:
        kind: maximum of logits (instances), of features, or logits of the surest one (instance).
        hidden: width of the layer before an instance's logits; unused with kind="features".
        dropout: share of that layer's values dropped in training.
    """

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        kind: Annotated[str, one_of(("instances", "features", "instance"))] = "instances",
        hidden: Size = 512,
        dropout: Fraction = 0.25,
    ) -> None:
        super().__init__(in_dim, num_classes)
        self._add_layers(kind, hidden, dropout)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Scores are instance logits; for features, weights of channels where it is largest."""
        if self.kind == "features":
            largest, winners = features.max(0)
            won = scatter_sum(winners, self.head.weight.T, features.shape[0])
            return _make_output(self.head(largest), won)
        instances = self.head(self.project(features))  # (N, C)
        if self.kind == "instances":
            return _make_output(instances.max(0).values, instances)
        return _make_output(instances.index_select(0, _find_most_certain(instances))[0], instances)


def _make_output(logits: Tensor, class_scores: Tensor, slide: Tensor | None = None) -> Output:
    scores = select_predicted_class(class_scores, logits)
    return Output(logits, scores, class_scores, embedding=slide)


def _find_most_certain(instances: Tensor) -> Tensor:
    """Return the instance with the largest probability, (1,).

    That of the positive class, or of any class if there are three or more.
    """
    if instances.shape[1] == 1:
        return instances[:, 0].argmax(0, keepdim=True)
    probabilities = instances.softmax(1)
    sure = probabilities[:, 1] if instances.shape[1] == 2 else probabilities.amax(1)
    return sure.argmax(0, keepdim=True)
