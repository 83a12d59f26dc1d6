"""DSMIL: Dual-stream Multiple Instance Learning Network (Li, Li, Eliceiri 2021)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sacmil.models._base import (
    MILModel,
    Output,
    Reference,
    classification_loss,
    compute_loss,
    select_predicted_class,
)
from sacmil.models._checks import Fraction, Size, one_of
from sacmil.models._recipe import PAPER, Recipe
from sacmil.models._reference import SIGMOIDS_NOTE, RenamedState, get_shape
from sacmil.models._registry import register_model
from sacmil.nn.layers import init_linear_
from sacmil.tasks import Task


@register_model("dsmil")
class DSMIL(MILModel):
    """DSMIL (Li et al. 2021): attention to each class's strongest instance.

    Probabilities of two or more classes sum to one: with loss="bce" they are the official
    sigmoids, one per class, divided by their sum.

    Train it with ``losses``: cross-entropy on the logits never trains the instance head.

    Args:
        passing_v: whether values go through a layer of their own instead of staying features.
        nonlinear: whether queries are made by two layers, the last with tanh, instead of one.
        query_dim: width of a query.
        dropout: share of the features dropped in training before the values' own layer.
        loss: cross-entropy (ce), or a binary one per class as the official code has (bce).
        average: whether probabilities are the mean of those of both streams.
    """

    coords_matter = False
    needs_losses = frozenset({"instances"})
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "paper": PAPER,
        "official": Recipe(
            betas=(0.5, 0.9),
            weight_decay=1e-3,
            schedule="cosine",
            lr_min=5e-6,
            epochs=50,
            patience=10,
            monitor="val_auc",  # theirs is the mean of AUC and accuracy
            options={"loss": "bce"},
        ),
    }

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        passing_v: bool = False,
        nonlinear: bool = True,
        query_dim: Size = 128,
        dropout: Fraction = 0.0,
        loss: Annotated[str, one_of(("ce", "bce"))] = "ce",
        average: bool = False,
    ) -> None:
        super().__init__(in_dim, num_classes)
        self.independent, self.average = loss == "bce", average
        self.instances = nn.Linear(in_dim, num_classes)
        self.query: nn.Module = nn.Linear(in_dim, query_dim)
        if nonlinear:
            last = nn.Linear(query_dim, query_dim)
            self.query = nn.Sequential(self.query, nn.ReLU(), last, nn.Tanh())
        self.value: nn.Module = nn.Identity()
        if passing_v:
            self.value = nn.Sequential(nn.Dropout(dropout), nn.Linear(in_dim, in_dim), nn.ReLU())
        self.head = nn.Linear(num_classes * in_dim, num_classes)
        init_linear_(self, nn.init.orthogonal_)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Scores are the attention of the predicted class."""
        strongest, critical = self.instances(features).max(0)  # (C,), (C,)
        q = self.query(features)  # (N, query_dim)
        similarity = q @ q.index_select(0, critical).T / math.sqrt(q.shape[1])
        attention = similarity.softmax(0)  # (N, C)
        bags = (attention.T @ self.value(features)).flatten()  # (C * D,)
        # The official convolution over whole rows: every output sees every class's bag.
        logits: Tensor = self.head(bags)
        scores = select_predicted_class(attention, logits)
        return Output(logits, scores, attention, {"strongest": strongest}, bags)

    def activate(self, output: Output, task: Task) -> Tensor:
        """Of the bag; with ``average`` the mean of both streams (officially by mistake the sum)."""
        assert output.extras is not None
        streams = output.logits[None]
        if self.average:
            streams = torch.stack((output.logits, output.extras["strongest"]))
        if not task.has_classes:
            return task.activate(streams).mean(0)
        if self.num_classes == 1:
            return streams.sigmoid().mean(0)
        # By logarithms: sigmoids that are all next to nothing still have a ratio.
        logs = F.logsigmoid(streams) if self.independent else streams.log_softmax(-1)
        return logs.logsumexp(0).softmax(-1)

    def losses(
        self, output: Output, target: Tensor | int, task: Task | None = None
    ) -> dict[str, Tensor]:
        """Half for the bag, half for the strongest instances; only these train the first stream."""
        assert output.extras is not None
        compute: Callable[[Tensor, Tensor | int], Tensor] = (
            partial(classification_loss, independent=True)
            if self.independent
            else partial(compute_loss, task=task or self.task)
        )
        streams = (output.logits, output.extras["strongest"])
        bag, strongest = (compute(logits, target) for logits in streams)
        return {"all": (bag + strongest) / 2}

    def explain_unsupported(self, task: Task) -> str:
        """Return why: with loss="bce" for classes only, and without a layer after its streams."""
        if self.independent and not task.has_classes:
            return 'loss="bce" is a loss of classes'
        if task.make_head() is not None:
            return "both of its streams would need the layer of the task"
        return super().explain_unsupported(task)

    @classmethod
    def reference(cls, state: Mapping[str, Tensor]) -> Reference:
        """The names of the authors' MILNet, which has a sigmoid per output."""
        names = {"i_classifier.fc.0": "instances", "b_classifier.q": "query"}
        names |= {"b_classifier.v": "value", "b_classifier.fcc": "head"}
        ours = RenamedState(state, names)
        num_classes, in_dim = get_shape(ours, "instances.weight")
        nonlinear = "query.0.weight" in ours
        options = {
            "in_dim": in_dim,
            "num_classes": num_classes,
            "nonlinear": nonlinear,
            "passing_v": "value.1.weight" in ours,
            "query_dim": get_shape(ours, "query.0.weight" if nonlinear else "query.weight")[0],
        }
        get_shape(ours, "head.weight")
        ours["head.weight"] = ours["head.weight"].flatten(1)
        notes = (SIGMOIDS_NOTE,) if num_classes > 1 else ()
        return Reference(options, ours, {"loss": "bce"}, notes)
