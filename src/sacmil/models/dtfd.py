"""DTFD-MIL: a slide is split into pseudo-bags, which hand distilled features to a second tier.

The two tiers are trained by a loss each; IBMIL builds on the same parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sacmil.models._base import (
    MILModel,
    Output,
    Planner,
    Reference,
    average_logits,
    classification_loss,
    select_predicted_class,
)
from sacmil.models._checks import Count, Size, one_of
from sacmil.models._recipe import PAPER, Recipe
from sacmil.models._reference import RenamedState, get_shape
from sacmil.models._registry import register_model
from sacmil.nn.pooling import Attention
from sacmil.tasks import Task

DISTILLATIONS = ("AFS", "MaxS", "MaxMinS", "MAS")

OFFICIAL_NAMES = {
    "dim_reduction.fc1": "tier1.project",
    "attention.attention_V.0": "tier1.attention.value",
    "attention.attention_U.0": "tier1.attention.gate",
    "attention.attention_weights": "tier1.attention.weight",
    "classifier.fc": "tier1.classifier",
    "att_classifier.attention.attention_V.0": "tier2.attention.value",
    "att_classifier.attention.attention_U.0": "tier2.attention.gate",
    "att_classifier.attention.attention_weights": "tier2.attention.weight",
    "att_classifier.classifier.fc": "tier2.head",
}
"""Official prefix to ours."""

_CHECKPOINT_NOTE = (
    "The official test script runs save_model/model.pth with distill=MaxMinS, groups=5 and "
    "total_instances=5, and cuts pseudo-bags at random; here they follow the bag's order."
)

CLIP_NORMS = MappingProxyType(
    dict.fromkeys(("tier1.project", "tier1.attention", "tier1.classifier", "tier2"), 5.0)
)
"""The official four modules, each clipped by itself."""

# --- tier 1 --------------------------------------------------------------------------------------


class FirstTierOutput(NamedTuple):
    """Output of the first tier for a slide, in S orders of its instances."""

    logits: Tensor
    """(S groups, C), one row per pseudo-bag."""
    rows: list[Tensor]
    """S matrices (R, dim): what the pseudo-bags of an order hand on."""
    activations: Tensor
    """(N, C), the share of each instance in each class, over the whole slide."""


class FirstTier(nn.Module):
    """Attention over each pseudo-bag, and what it hands on.

    Args:
        in_dim: width of an instance.
        dim: width inside.
        num_classes: outputs.
        groups: pseudo-bags; a bag with fewer instances has one per instance.
        take: r, instances taken at an end of the ranking.
        distill: AFS the pseudo-bag's vector, MaxS the r highest activations, MaxMinS also the r
            lowest, MAS the r highest attentions.
        independent: whether instances are ranked by the last class only (sigmoid) or by its
            share among the classes (softmax).
        detach: whether what is handed on carries no gradient back.
        legacy_ties: whether instances are ranked by that probability itself, whose rounding makes
            ties, in the order torch.sort gives them; otherwise by its logit.
    """

    def __init__(
        self,
        in_dim: int,
        dim: int,
        num_classes: int,
        *,
        groups: int,
        take: int,
        distill: str,
        independent: bool,
        detach: bool = True,
        legacy_ties: bool = False,
    ) -> None:
        super().__init__()
        self.project = nn.Linear(in_dim, dim, bias=False)
        self.attention = Attention(dim, gated=True)
        self.classifier = nn.Linear(dim, num_classes)
        self.groups, self.take = groups, take
        self.distill, self.independent = distill, independent
        self.detach, self.legacy_ties = detach, legacy_ties

    def forward(self, features: Tensor, orders: Tensor) -> FirstTierOutput:
        """Features (N, in_dim) in orders (S, N), each cut into pseudo-bags."""
        h = self.project(features).relu()
        raw = self.attention(h)  # (N, 1)
        if torch.compiler.is_compiling():  # for an export, which must not depend on N
            found = [self._distill_all_pseudo_bags(h, raw[:, 0], order) for order in orders]
            logits = torch.cat([logits for logits, _ in found])
            return FirstTierOutput(logits, [rows for _, rows in found], self.activations(h, raw))
        slides = [
            [self._distill_pseudo_bag(h[g], raw[g]) for g in self._split_into_pseudo_bags(order)]
            for order in orders
        ]
        logits = torch.stack([logits for slide in slides for logits, _ in slide])
        rows = [torch.cat([rows for _, rows in slide]) for slide in slides]
        return FirstTierOutput(logits, rows, self.activations(h, raw))

    def activations(self, h: Tensor, raw: Tensor) -> Tensor:
        """(N, C): the classifier, without its bias, of each instance times its attention."""
        return F.linear(raw.softmax(0) * h, self.classifier.weight)

    def _split_into_pseudo_bags(self, order: Tensor) -> tuple[Tensor, ...]:
        return order.tensor_split(min(self.groups, len(order)))

    def _distill_pseudo_bag(self, h: Tensor, raw: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (C,) and distilled rows."""
        z = (raw.softmax(0) * h).sum(0)
        rows = z[None] if self.distill == "AFS" else h[self._select_instances(h, raw)]
        return self.classifier(z), rows.detach() if self.detach else rows

    @torch.no_grad()
    def _select_instances(self, h: Tensor, raw: Tensor) -> Tensor:
        key = raw[:, 0] if self.distill == "MAS" else self._ranking_key(self.activations(h, raw))
        order = key.argsort(descending=True, stable=not self.legacy_ties)
        if self.distill != "MaxMinS":
            return order[: self.take]
        return torch.cat((order[: self.take], order[-self.take :]))  # from -0 on, it is all

    def _ranking_key(self, s: Tensor) -> Tensor:
        if self.independent or s.shape[-1] == 1:
            return s[..., -1].sigmoid() if self.legacy_ties else s[..., -1]
        if self.legacy_ties:
            return s.softmax(-1)[..., -1]
        # The logit of the softmax: the same order, without the ties of rounding near 1 / C.
        return s[..., -1] - s[..., :-1].logsumexp(-1)

    def _distill_all_pseudo_bags(
        self, h: Tensor, raw: Tensor, order: Tensor
    ) -> tuple[Tensor, Tensor]:
        """All pseudo-bags at once, side by side in a table: logits (G, C) and distilled rows."""
        n = order.shape[0]
        size = (n + torch.arange(self.groups).flip(0)).div(self.groups, rounding_mode="floor")
        place = torch.arange((n + self.groups - 1) // self.groups + self.take)
        there = place < size[:, None]  # (groups, places)
        rows = order[((size.cumsum(0) - size)[:, None] + place).clamp(max=n - 1)]
        raw = raw[rows].masked_fill(~there, torch.finfo(raw.dtype).min)
        weighted = (raw.softmax(1) * there)[..., None] * h[rows]
        z = weighted.sum(1)[size > 0]
        if self.distill == "AFS":
            return self.classifier(z), z
        key = (
            raw if self.distill == "MAS" else self._ranking_key(weighted @ self.classifier.weight.T)
        )
        # ONNX's topk is stable, and there is no other sort.
        ranked = key.masked_fill(~there, -torch.inf).topk(place.shape[0], dim=1).indices
        rank, taken = self._select_ranks(size[:, None], place)
        return self.classifier(z), h[rows.gather(1, ranked.gather(1, rank))[taken]]

    def _select_ranks(self, size: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        """(groups, R), the ranks that are handed on, and whether the pseudo-bag has them."""
        first = torch.arange(self.take).expand(self.groups, -1)
        if self.distill != "MaxMinS":
            return first, first < size
        last = (first + size - self.take) if self.take else place.expand(self.groups, -1)
        rank = torch.cat((first, last), dim=1)
        return rank.clamp(min=0), (rank >= 0) & (rank < size)


# --- tier 2 --------------------------------------------------------------------------------------


class SecondTier(nn.Module):
    """Attention over distilled rows, and the slide's classifier."""

    def __init__(self, attention: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.attention = attention
        self.head = head

    def weights(self, rows: Tensor) -> Tensor:
        """(R, 1), summing to one."""
        weights: Tensor = self.attention(rows).softmax(0)
        return weights

    def pool(self, slides: list[Tensor]) -> Tensor:
        """S matrices (R, dim) to S vectors (S, dim)."""
        return torch.stack([(self.weights(rows) * rows).sum(0) for rows in slides])


# --- what both two-tier models do ----------------------------------------------------------------


def count_rows_per_end(total: int, groups: int, *, legacy_zero: bool = False) -> int:
    """R, instances a pseudo-bag takes at an end, at least one unless the original's 0 is wanted."""
    return total // groups if legacy_zero else max(total // groups, 1)


def choose_orders(
    features: Tensor, plan: Mapping[str, Tensor], *, training: bool, shuffle: bool
) -> Tensor:
    """(S, N): a new shuffle in training, in evaluation the planned ones or the bag's order."""
    n = features.shape[0]
    if training and shuffle:
        return torch.randperm(n, device=features.device)[None]
    return torch.arange(n, device=features.device)[None] if training else plan["orders"]


def group_by_tier(model: nn.Module) -> dict[str, dict[str, nn.Parameter]]:
    """Parameters that are trained, in the two groups."""
    groups: dict[str, dict[str, nn.Parameter]] = {"tier1": {}, "tier2": {}}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups[name.split(".")[0]][name] = parameter
    return groups


# --- the whole -----------------------------------------------------------------------------------


@register_model("dtfd")
class DTFD(MILModel):
    """DTFD-MIL: double-tier feature distillation (Zhang et al. 2022).

    Pseudo-bags are shuffled in training. In evaluation they are cut from the bag in its own order,
    so that the same bag has the same prediction.

    Train it with ``losses``: cross-entropy on the logits never trains the first tier.

    Args:
        dim: width inside.
        groups: pseudo-bags; a bag with fewer instances has one per instance.
        total_instances: instances handed on by all pseudo-bags together, per end of the ranking.
        distill: what a pseudo-bag hands on: AFS, MaxS, MaxMinS or MAS.
        joint: whether tier 2 also trains tier 1, as in popular repairs of the official code.
        shuffle: whether training draws pseudo-bags at random.
        inference_shuffles: shuffles whose probabilities evaluation averages; 0 is the bag's order.
        legacy_zero: with more groups than instances to hand on, do as the original, not take one.
        legacy_ties: whether instances are ranked by the softmax, rounded as in the original.
    """

    order_matters = True
    coords_matter = False
    plan_keys = frozenset({"orders"})
    small_options: ClassVar[Mapping[str, Any]] = {"dim": 16}
    needs_losses = frozenset({"tier1"})
    needs_classes = "its pseudo-bags are ranked and averaged by the probabilities of classes"
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "paper": PAPER,
        # The original keeps the best epoch of the last fifth only.
        "official": Recipe(
            weight_decay=1e-4,
            schedule="steps",
            milestones=(0.5,),
            gamma=0.2,
            monitor="val_auc",
            monitor_from=0.8,
            clip=CLIP_NORMS,
        ),
    }

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        dim: Size = 512,
        groups: Size = 4,
        total_instances: Size = 4,
        distill: Annotated[str, one_of(DISTILLATIONS)] = "AFS",
        joint: bool = False,
        shuffle: bool = True,
        inference_shuffles: Count = 0,
        legacy_zero: bool = False,
        legacy_ties: bool = False,
    ) -> None:
        super().__init__(in_dim, num_classes)
        self.joint, self.shuffle, self.inference_shuffles = joint, shuffle, inference_shuffles
        self.tier1 = FirstTier(
            in_dim,
            dim,
            num_classes,
            groups=groups,
            take=count_rows_per_end(total_instances, groups, legacy_zero=legacy_zero),
            distill=distill,
            independent=False,
            detach=not joint,
            legacy_ties=legacy_ties,
        )
        self.tier2 = SecondTier(Attention(dim, gated=True), nn.Linear(dim, num_classes))

    @property
    def planner(self) -> Planner:
        """The order, or orders, evaluation takes instances in."""
        return Planner("orders", {"shuffles": self.inference_shuffles})

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Pseudo-bags, distilled rows, slide; an instance's score is its class activation."""
        places = choose_orders(features, plan, training=self.training, shuffle=self.shuffle)
        first = self.tier1(features, places)
        bags = self.tier2.pool(first.rows)
        logits = average_logits(self.tier2.head(bags))
        extras = {"tier1": first.logits, "distilled": torch.cat(first.rows), "bag": bags.mean(0)}
        scores = select_predicted_class(first.activations, logits)
        return Output(logits, scores, first.activations, extras, embedding=extras["bag"])

    def losses(
        self, output: Output, target: Tensor | int, task: Task | None = None
    ) -> dict[str, Tensor]:
        """Every pseudo-bag carries the slide's label."""
        assert output.extras is not None
        tier1 = classification_loss(output.extras["tier1"], target)
        tier2 = classification_loss(output.logits, target)
        return {"all": tier1 + tier2} if self.joint else {"tier1": tier1, "tier2": tier2}

    def parameter_groups(self) -> dict[str, dict[str, nn.Parameter]]:
        """An optimiser per tier, except when trained jointly."""
        return super().parameter_groups() if self.joint else group_by_tier(self)

    @classmethod
    def reference(cls, state: Mapping[str, Tensor]) -> Reference:
        """The official four modules, each a state dict of its own in the official file."""
        dim, in_dim = get_shape(state, "dim_reduction.fc1.weight")
        num_classes = get_shape(state, "classifier.fc.weight")[0]
        options = {"in_dim": in_dim, "num_classes": num_classes, "dim": dim}
        ours = RenamedState(state, OFFICIAL_NAMES)
        return Reference(options, ours, {"legacy_ties": True}, (_CHECKPOINT_NOTE,))
