"""CLAM: Data-efficient and Weakly Supervised Computational Pathology on Whole-slide Images (Lu et
al. 2021), with one attention for all classes (SB) or one per class (MB).

Beside the bag, instances are classified: those with the most attention are taken as evidence for
the bag's class, those with the least as evidence against it.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sacmil.models._base import (
    MILModel,
    Output,
    Reference,
    classification_loss,
    select_predicted_class,
    to_target,
)
from sacmil.models._checks import Fraction, Size, one_of
from sacmil.models._recipe import PAPER, Recipe
from sacmil.models._reference import RenamedState, get_shape
from sacmil.models._registry import register_model
from sacmil.nn.layers import make_projection
from sacmil.nn.pooling import Attention
from sacmil.tasks import Task

# --- The loss of instances -----------------------------------------------------------------------


def smooth_top1_svm(
    scores: Tensor, labels: Tensor, *, margin: float = 1.0, tau: float = 1.0
) -> Tensor:
    """Smooth top-1 support vector loss (Berrada et al. 2018) of each row.

    z_c = s_c + margin [c != y] - s_y; the loss is tau ln sum_c exp(z_c / tau), or max_c z_c where
    the best score leads by so much that the two are the same.

    Args:
        scores: (N, C), C >= 2.
        labels: (N,), class indices.
        margin: how far the true class should lead.
        tau: temperature; towards 0 the loss becomes hard.
    """
    others = 1 - F.one_hot(labels, scores.shape[1]).to(scores.dtype)
    raised = scores + margin * others
    best = scores.topk(2, dim=1).values
    hard = best[:, 0] - best[:, 1] >= tau * math.log(1000)
    largest = torch.where(hard, raised.amax(1), tau * (raised / tau).logsumexp(1))
    return largest - scores.gather(1, labels[:, None])[:, 0]


def _cross_entropy(scores: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(scores, labels, reduction="none")


INSTANCE_LOSSES = {"svm": smooth_top1_svm, "ce": _cross_entropy}


# --- CLAM ----------------------------------------------------------------------------------------

OFFICIAL_RECIPE = Recipe(
    lr=2e-4,
    weight_decay=1e-5,
    epochs=200,
    patience=20,
    min_epochs=51,
    monitor="val_loss",
    sampler="balanced",
)


class InstanceTerm(NamedTuple):
    """Picked instances that stand for or against a class."""

    logits: Tensor
    """(R, 2), against and for the class."""
    labels: Tensor
    """(R,), 1 for it."""
    counts: Tensor
    """(), whether the loss has them."""


class _CLAM(MILModel):
    """What both variants share, all but how bag vectors are classified."""

    coords_matter = False
    needs_losses = frozenset({"instance_head"})
    needs_classes = "it learns from instances picked for and against each class"
    recipes: ClassVar[Mapping[str, Recipe]] = {"paper": PAPER, "official": OFFICIAL_RECIPE}
    has_class_attention: ClassVar[bool]
    """Whether each class has an attention, and a bag vector, of its own."""

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        hidden: Size = 512,
        attention_dim: Size = 256,
        gate: bool = True,
        dropout: Fraction = 0.25,
        k_sample: Size = 8,
        subtyping: bool = False,
        instance_loss: Annotated[str, one_of(INSTANCE_LOSSES)] = "svm",
        bag_weight: Fraction = 0.7,
    ) -> None:
        super().__init__(in_dim, num_classes)
        self.k_sample, self.subtyping, self.bag_weight = k_sample, subtyping, bag_weight
        self.instance_loss = INSTANCE_LOSSES[instance_loss]
        self.project = make_projection(in_dim, hidden, dropout=dropout)
        rate = 0.25 if dropout else 0.0  # whatever the value, as officially
        branches = num_classes if self.has_class_attention else 1
        self.attention = Attention(
            hidden, attention_dim, gated=gate, branches=branches, dropout=rate
        )
        self.head = nn.Linear(hidden, num_classes)
        self.instance_head = nn.Linear(hidden, 2 * num_classes)  # against and for each class

    @abstractmethod
    def classify_bags(self, bags: Tensor) -> Tensor:
        """Bag vectors, (1, hidden) or (C, hidden), to logits (C,)."""

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Scores are the attention before the softmax, of the predicted class if there are more."""
        h = self.project(features)  # (N, hidden)
        attention = self.attention(h)  # (N, 1) or (N, C)
        bags = attention.softmax(0).T @ h
        logits = self.classify_bags(bags)
        by_class = attention.expand(-1, logits.shape[0])
        class_scores = attention if attention.shape == by_class.shape else None
        extras = {"instances": h, "attention": by_class, "bags": bags}
        scores = select_predicted_class(by_class, logits)
        return Output(logits, scores, class_scores, extras, bags.flatten())

    def losses(
        self, output: Output, target: Tensor | int, task: Task | None = None
    ) -> dict[str, Tensor]:
        """The weighted sum of the bag's loss and that of the instances the attention picked."""
        target = to_target(target, output.logits)
        own, *others = self.iter_instance_terms(output, target)
        instances = self._compute_instance_loss(own, otherwise=output.logits.new_zeros(()))
        if self.subtyping:
            by_class = [self._compute_instance_loss(each, otherwise=instances) for each in others]
            instances = torch.stack(by_class).sum() / output.logits.shape[-1]
        bag = classification_loss(output.logits, target)
        return {"all": self.bag_weight * bag + (1 - self.bag_weight) * instances}

    def _compute_instance_loss(self, term: InstanceTerm, otherwise: Tensor) -> Tensor:
        loss = self.instance_loss(term.logits, term.labels).mean()
        return torch.where(term.counts, loss, otherwise)

    def iter_instance_terms(self, output: Output, target: Tensor) -> Iterator[InstanceTerm]:
        """Yield instances of the bag's class, then with ``subtyping`` those against each class.

        The bag's class has its strongest instances for it and its weakest against it. With
        ``subtyping`` the strongest of every other class stand against that class. A single
        output is a class of its own, the positive one. The bag's class is never read, as a GPU
        would have to be waited for.
        """
        own = target - int(output.logits.shape[-1] == 1)
        yield self._pick_instances(output, own.clamp(min=0), own >= 0, for_class=True)
        if self.subtyping:
            for c in range(output.logits.shape[-1]):
                column = torch.full_like(own, c)
                yield self._pick_instances(output, column, own != c, for_class=False)

    def _pick_instances(
        self, output: Output, column: Tensor, counts: Tensor, *, for_class: bool
    ) -> InstanceTerm:
        """Return the strongest instances of a class; if the bag is of it, also the weakest."""
        assert output.extras is not None
        attention = output.extras["attention"].index_select(1, column[None])[:, 0]
        strongest, weakest = _select_extremes(attention, self.k_sample)
        rows = torch.cat((strongest, weakest)) if for_class else strongest
        labels = torch.zeros_like(rows)
        labels[: len(strongest)] = int(for_class)
        pair = 2 * column + torch.arange(2, device=column.device)
        weight = self.instance_head.weight.index_select(0, pair)
        bias = self.instance_head.bias.index_select(0, pair)
        picked = output.extras["instances"].index_select(0, rows)
        return InstanceTerm(F.linear(picked, weight, bias), labels, counts)

    @classmethod
    def reference(cls, state: Mapping[str, Tensor]) -> Reference:
        """The names of CLAM_SB and CLAM_MB, of 2021 and later."""
        for name in ("attention_net.0.weight", "instance_classifiers.0.weight"):
            get_shape(state, name)
        stacked = _stack_layers(_stack_layers(state, "classifiers"), "instance_classifiers")
        ours = RenamedState(stacked, _map_official_names(), ignored=["instance_loss_fn"])
        hidden, in_dim = get_shape(ours, "project.0.weight")
        options = {
            "in_dim": in_dim,
            "num_classes": get_shape(ours, "head.weight")[0],
            "hidden": hidden,
            "attention_dim": get_shape(ours, "attention.value.weight")[0],
            "gate": "attention.gate.weight" in ours,
        }
        return Reference(options, ours)


@register_model("clam_sb")
class CLAMSB(_CLAM):
    """CLAM-SB (Lu et al. 2021): gated attention that also sorts its strongest instances.

    Train it with ``losses``: cross-entropy on the logits never trains the instance heads.

    Args:
        hidden: width of the projected instance.
        attention_dim: width inside the attention: 256 is the official small, 384 the big.
        gate: whether the attention is gated.
        dropout: share of projected values dropped in training; unless 0, attention drops a quarter.
        k_sample: strongest and weakest instances picked; in a small bag at most half of it.
        subtyping: whether classes exclude each other, so that each learns from the others' bags.
        instance_loss: of picked instances: smooth top-1 SVM (svm) or cross-entropy (ce).
        bag_weight: weight of the bag's loss; the instances' has the rest.
    """

    has_class_attention = False

    def classify_bags(self, bags: Tensor) -> Tensor:
        """All classes see the only bag vector."""
        logits: Tensor = self.head(bags[0])
        return logits


@register_model("clam_mb")
class CLAMMB(_CLAM):
    """CLAM-MB (Lu et al. 2021): CLAM with an attention, and a bag vector, for each class.

    Train it with ``losses``: cross-entropy on the logits never trains the instance heads.

    Args:
        hidden: width of the projected instance.
        attention_dim: width inside the attention: 256 is the official small, 384 the big.
        gate: whether the attention is gated.
        dropout: share of projected values dropped in training; unless 0, attention drops a quarter.
        k_sample: strongest and weakest instances picked; in a small bag at most half of it.
        subtyping: whether classes exclude each other, so that each learns from the others' bags.
        instance_loss: of picked instances: smooth top-1 SVM (svm) or cross-entropy (ce).
        bag_weight: weight of the bag's loss; the instances' has the rest.
    """

    has_class_attention = True

    def classify_bags(self, bags: Tensor) -> Tensor:
        """Class c sees bag c only."""
        return (bags * self.head.weight).sum(1) + self.head.bias


def _select_extremes(attention: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Rows with the most attention, largest first, and with the least, smallest first."""
    n = attention.shape[0]
    # The official code fails below k instances, and below 2k takes some as both for and against:
    # here at most half of a bag is either. The only instance of a bag is its strongest.
    k = max(1, min(k, n // 2))
    weakest = attention.topk(min(k, n - k), largest=False)
    return attention.topk(k).indices, weakest.indices


def _stack_layers(state: Mapping[str, Tensor], name: str) -> dict[str, Tensor]:
    """``name.0``, ``name.1``, … become the rows of one layer."""
    out = dict(state)
    for part in ("weight", "bias"):
        rows: list[Tensor] = []
        while f"{name}.{len(rows)}.{part}" in out:
            rows.append(out.pop(f"{name}.{len(rows)}.{part}"))
        if rows:
            out[f"{name}.{part}"] = torch.cat(rows)
    return out


def _map_official_names() -> dict[str, str]:
    names = {"attention_net.0": "project.0"}
    names |= {"classifiers": "head", "instance_classifiers": "instance_head"}
    gated = {"attention_a.0": "value", "attention_b.0": "gate", "attention_c": "weight"}
    # Its own component "module" is lost with those DataParallel adds.
    plain = {"0": "value", "2": "weight", "3": "weight"}
    plain |= {f"module.{layer}": ours for layer, ours in plain.items()}
    for index in (2, 3):  # 2 without the dropout before it
        for official, ours in (gated | plain).items():
            names[f"attention_net.{index}.{official}"] = f"attention.{ours}"
    return names
