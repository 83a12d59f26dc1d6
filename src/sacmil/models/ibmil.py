"""IBMIL: a fixed dictionary of confounders, found by a first training, adjusts the slide's vector.

Two bases: the two tiers of DTFD-MIL, or AB-MIL, which is the second tier over raw instances.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.spatial.distance import cdist
from torch import Tensor, nn
from torch.nn import functional as F

from sacmil.errors import OptionError
from sacmil.models._base import (
    MILModel,
    Output,
    Planner,
    Reference,
    Sample,
    average_logits,
    classification_loss,
    select_predicted_class,
)
from sacmil.models._checks import Count, Size, one_of
from sacmil.models._recipe import PAPER, Recipe
from sacmil.models._reference import SIGMOIDS_NOTE, RenamedState, get_shape
from sacmil.models._registry import register_model
from sacmil.models.dtfd import (
    CLIP_NORMS,
    DISTILLATIONS,
    FirstTier,
    SecondTier,
    choose_orders,
    count_rows_per_end,
    group_by_tier,
)
from sacmil.models.dtfd import OFFICIAL_NAMES as DTFD_NAMES
from sacmil.nn.pooling import Attention
from sacmil.tasks import Task

Floats = npt.NDArray[np.float64]

BASES = ("dtfd", "abmil")
MERGES = ("cat", "add", "sub")

_HEAD_NAMES = {"W_q": "query", "W_k": "key", "confounder_feat": "confounders", "classifier": "out"}
_DTFD_BASE_NAMES = {"att_classifier.classifier.fc": "tier2.head.out"} | {
    f"att_classifier.{official}": f"tier2.head.{ours}" for official, ours in _HEAD_NAMES.items()
}
_ABMIL_BASE_NAMES = {
    "attention.0": "tier2.attention.value",
    "attention.2": "tier2.attention.weight",
} | {official: f"tier2.head.{ours}" for official, ours in _HEAD_NAMES.items()}

# --- backdoor adjustment -------------------------------------------------------------------------


class SlideHeadOutput(NamedTuple):
    """Output of the head for S slide vectors."""

    logits: Tensor
    """(S, C)"""
    features: Tensor
    """(S, L) or (S, 2 L): what is classified."""
    attention: Tensor
    """(S, k), over confounders."""


class BackdoorHead(nn.Module):
    """Classifies a vector M with its mean confounder u.

    alpha = softmax_i(key(c_i) . query(M) / sqrt(128)), u = sum_i alpha_i c_i, and the classifier
    sees [M; u] (cat), M + u (add) or M - u (sub).
    """

    WIDTH = 128

    confounders: Tensor

    def __init__(self, dim: int, num_classes: int, confounders: int, merge: str) -> None:
        super().__init__()
        self.merge = merge
        self.query = nn.Linear(dim, self.WIDTH)
        self.key = nn.Linear(dim, self.WIDTH)
        # Random until training has found them: with zeros neither query nor key could learn.
        self.register_buffer("confounders", torch.randn(confounders, dim))
        self.out = nn.Linear(2 * dim if merge == "cat" else dim, num_classes)

    def forward(self, bags: Tensor) -> SlideHeadOutput:
        """Bags (S, dim)."""
        scores: Tensor = self.query(bags) @ self.key(self.confounders).T
        attention = (scores / math.sqrt(self.WIDTH)).softmax(1)
        features = self._merge_confounder(bags, attention @ self.confounders)
        return SlideHeadOutput(self.out(features), features, attention)

    def _merge_confounder(self, bags: Tensor, mean: Tensor) -> Tensor:
        if self.merge == "cat":
            return torch.cat((bags, mean), dim=1)
        return bags + mean if self.merge == "add" else bags - mean


class PlainHead(nn.Module):
    """The same without confounders: the first training."""

    def __init__(self, dim: int, num_classes: int) -> None:
        super().__init__()
        self.out = nn.Linear(dim, num_classes)

    def forward(self, bags: Tensor) -> SlideHeadOutput:
        """Bags (S, dim)."""
        return SlideHeadOutput(self.out(bags), bags, bags.new_zeros(len(bags), 0))


# --- the dictionary ------------------------------------------------------------------------------


def cluster_prototypes(vectors: Floats, k: int, *, starts: int = 10, seed: int = 66) -> Floats:
    """(k, L) means of the clusters of directions among (B, L) vectors.

    With fewer distinct directions than k, the mean of all vectors fills the dictionary.

    Args:
        vectors: one per training bag.
        k: clusters.
        starts: k-means runs, of which the tightest counts.
        seed: of their first centres.
    """
    units = vectors / (np.linalg.norm(vectors, axis=1, keepdims=True) + 1e-10)
    runs = [_kmeans(units, k, np.random.default_rng(seed + start)) for start in range(starts)]
    labels = min(runs, key=lambda run: run[1])[0]
    found = np.tile(vectors.mean(0), (k, 1))
    for row, label in enumerate(np.unique(labels)):
        found[row] = vectors[labels == label].mean(0)
    return found


def _kmeans(
    rows: Floats, k: int, random: np.random.Generator, steps: int = 100
) -> tuple[npt.NDArray[np.intp], float]:
    """Lloyd's iterations: the cluster of each row, and the sum of squared distances."""
    centres = _init_centers(rows, k, random)
    labels = np.full(len(rows), -1)
    for _ in range(steps):
        distances = cdist(rows, centres, "sqeuclidean")
        before, labels = labels, distances.argmin(1)
        if np.array_equal(before, labels):
            break
        for label in np.unique(labels):  # an empty cluster keeps its centre
            centres[label] = rows[labels == label].mean(0)
    return labels, float(distances.min(1).sum())


def _init_centers(rows: Floats, k: int, random: np.random.Generator) -> Floats:
    """Rows far from each other by chance (k-means++)."""
    chosen = [int(random.integers(len(rows)))]
    while len(chosen) < k:
        distances = cdist(rows, rows[chosen], "sqeuclidean").min(1)
        total = distances.sum()
        chosen.append(int(random.choice(len(rows), p=distances / total if total > 0 else None)))
    return rows[chosen]


# --- the whole -----------------------------------------------------------------------------------


@register_model("ibmil")
class IBMIL(MILModel):
    """IBMIL: interventional bag learning by backdoor adjustment (Lin et al. 2023).

    Training first trains the same model without confounders, clusters its vectors of the training
    bags into the dictionary, and then trains this one. With the base dtfd the dictionary lives in
    the first model's projection; as in the documented command a new one is learned all the same,
    unless freeze_projection keeps the first.

    Train it with ``losses``: cross-entropy on the logits never trains dtfd's first tier.

    Args:
        base: what makes the slide's vector: dtfd or abmil.
        confounders: k, size of the dictionary; 0 is the base without confounders.
        merge: how the mean confounder enters: cat, add or sub.
        dim: width inside dtfd, half of in_dim in the original; abmil keeps in_dim.
        groups: pseudo-bags of dtfd; a bag with fewer instances has one per instance.
        total_instances: instances handed on by all pseudo-bags together, per end of the ranking.
        distill: what a pseudo-bag hands on: AFS, MaxS, MaxMinS or MAS.
        loss: ce, or bce for a sigmoid per class as in the official training.
        freeze_projection: whether dtfd keeps the projection the dictionary was found with.
        shuffle: whether training draws pseudo-bags at random.
        inference_shuffles: shuffles whose probabilities evaluation averages; 0 is the bag's order.
        legacy_ties: whether dtfd ranks by the sigmoid, rounded as in the original.
    """

    order_matters = True  # of dtfd's pseudo-bags; abmil has none
    coords_matter = False
    plan_keys = frozenset({"orders"})
    small_options: ClassVar[Mapping[str, Any]] = {"dim": 16}
    needs_losses = frozenset({"tier1"})
    needs_classes = "its pseudo-bags are ranked and averaged by the probabilities of classes"
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "paper": PAPER,
        # 20 epochs counted from 1; the rate falls after the tenth.
        "official": Recipe(
            weight_decay=5e-3,
            schedule="steps",
            milestones=(10 / 19,),
            gamma=0.2,
            epochs=19,
            monitor="val_auc",
            clip=CLIP_NORMS,
            options={"loss": "bce"},
        ),
        "official_abmil": Recipe(
            betas=(0.5, 0.9),
            weight_decay=1e-4,
            schedule="cosine",
            lr_min=5e-6,
            epochs=50,
            monitor="val_auc",
            options={"base": "abmil", "loss": "bce"},
        ),
    }

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        base: Annotated[str, one_of(BASES)] = "dtfd",
        confounders: Count = 8,
        merge: Annotated[str, one_of(MERGES)] = "cat",
        dim: Size = 512,
        groups: Size = 4,
        total_instances: Size = 4,
        distill: Annotated[str, one_of(DISTILLATIONS)] = "MaxMinS",
        loss: Annotated[str, one_of(("ce", "bce"))] = "ce",
        freeze_projection: bool = False,
        shuffle: bool = True,
        inference_shuffles: Count = 0,
        legacy_ties: bool = False,
    ) -> None:
        super().__init__(in_dim, num_classes)
        self.independent, self.k = loss == "bce", confounders
        self.freeze_projection, self.shuffle = freeze_projection, shuffle
        self.inference_shuffles = inference_shuffles
        width = dim if base == "dtfd" else in_dim
        if base == "abmil" and freeze_projection:
            raise OptionError("freeze_projection=True; abmil has no projection, expected False")
        self.tier1: FirstTier | None = None
        if base == "dtfd":
            self.tier1 = FirstTier(
                in_dim,
                width,
                num_classes,
                groups=groups,
                take=count_rows_per_end(total_instances, groups),
                distill=distill,
                independent=True,
                legacy_ties=legacy_ties,
            )
            self.tier1.project.requires_grad_(not freeze_projection)
        attention = Attention(width, width) if self.tier1 is None else Attention(width, gated=True)
        sizes = (width, num_classes)
        head = BackdoorHead(*sizes, self.k, merge) if self.k else PlainHead(*sizes)
        self.tier2 = SecondTier(attention, head)

    @property
    def planner(self) -> Planner:
        """The order, or orders, evaluation takes instances in."""
        return Planner("orders", {"shuffles": self.inference_shuffles})

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """An instance's score is its class activation; with abmil, its attention."""
        if self.tier1 is None:
            weights = self.tier2.weights(features)
            second = self.tier2.head((weights * features).sum(0, keepdim=True))
            logits, slide = second.logits[0], second.features[0]
            return Output(logits, weights[:, 0], extras=_make_extras(second), embedding=slide)
        orders = choose_orders(features, plan, training=self.training, shuffle=self.shuffle)
        first = self.tier1(features, orders)
        second = self.tier2.head(self.tier2.pool(first.rows))
        logits = average_logits(second.logits, independent=self.independent)
        # sigma of these is the paper's score: the same order, but for large bags hardly more than
        # a few values in float32, all near a half.
        s = first.activations
        extras = {"tier1": first.logits, "distilled": torch.cat(first.rows)} | _make_extras(second)
        scores, slide = select_predicted_class(s, logits), second.features.mean(0)
        return Output(logits, scores, class_scores=s, extras=extras, embedding=slide)

    def activate(self, output: Output, task: Task) -> Tensor:
        """Softmax, or with loss="bce" the sigmoids scaled to a sum of one."""
        if self.independent and self.num_classes > 1:
            return F.logsigmoid(output.logits).softmax(-1)
        return super().activate(output, task)

    def losses(
        self, output: Output, target: Tensor | int, task: Task | None = None
    ) -> dict[str, Tensor]:
        """A loss per tier, every pseudo-bag carrying the slide's label; abmil has one."""
        slide = classification_loss(output.logits, target, independent=self.independent)
        if self.tier1 is None:
            return {"all": slide}
        assert output.extras is not None
        pseudo = output.extras["tier1"]
        tier1 = classification_loss(pseudo, target, independent=self.independent)
        return {"tier1": tier1, "tier2": slide}

    def parameter_groups(self) -> dict[str, dict[str, nn.Parameter]]:
        """An optimiser per tier; abmil has only one."""
        return super().parameter_groups() if self.tier1 is None else group_by_tier(self)

    def stages(self, training_bags: Iterable[Sample]) -> Iterator[MILModel]:
        """Yield the base without confounders; then, with its dictionary, this model."""
        if self.k:
            base = self.options | {"confounders": 0, "freeze_projection": False}
            plain = IBMIL(**base).to(device=next(self.parameters()).device, dtype=self.dtype)
            yield plain
            self.adopt_dictionary(plain, training_bags)
        yield self

    @torch.no_grad()
    def adopt_dictionary(self, base: IBMIL, training_bags: Iterable[Sample]) -> None:
        """Take the dictionary, and with freeze_projection the projection, from a trained base.

        Args:
            base: this model without confounders.
            training_bags: those it was trained on, and no others.
        """
        base.eval()
        vectors = [_compute_bag_vector(base, bag) for bag in training_bags]
        found = torch.from_numpy(cluster_prototypes(np.stack(vectors), self.k))
        assert isinstance(self.tier2.head, BackdoorHead)
        self.tier2.head.confounders.copy_(found)
        if self.freeze_projection and self.tier1 is not None and base.tier1 is not None:
            self.tier1.project.load_state_dict(base.tier1.project.state_dict())

    @classmethod
    def reference(cls, state: Mapping[str, Tensor]) -> Reference:
        """The official names on either base, with a sigmoid per class as officially.

        The merges add and sub look alike; add is assumed.
        """
        if "dim_reduction.fc1.weight" in state:
            dim, in_dim = get_shape(state, "dim_reduction.fc1.weight")
            options: dict[str, Any] = {"base": "dtfd", "in_dim": in_dim, "dim": dim}
            state = RenamedState(
                state,
                _DTFD_BASE_NAMES
                | {k: v for k, v in DTFD_NAMES.items() if k not in _DTFD_BASE_NAMES},
            )
        else:
            dim = get_shape(state, "attention.0.weight")[1]
            options = {"base": "abmil", "in_dim": dim}
            state = RenamedState(state, _ABMIL_BASE_NAMES)
        num_classes, seen = get_shape(state, "tier2.head.out.weight")
        confounders = state.get("tier2.head.confounders")
        count = 0 if confounders is None else len(confounders)
        options |= {"num_classes": num_classes, "confounders": count}
        assumed: dict[str, Any] = {"loss": "bce"}
        if options["base"] == "dtfd":
            assumed["legacy_ties"] = True
        if confounders is not None:
            concatenated = seen == 2 * dim
            (options if concatenated else assumed)["merge"] = "cat" if concatenated else "add"
        notes = (SIGMOIDS_NOTE,) if num_classes > 1 else ()
        return Reference(options, state, assumed, notes)


def _make_extras(output: SlideHeadOutput) -> dict[str, Tensor]:
    return {"bag": output.features.mean(0), "confounders": output.attention.mean(0)}


def _compute_bag_vector(base: IBMIL, bag: Sample) -> Floats:
    extras = base(bag.features, bag.coords, bag.plan).extras
    vector: Floats = extras["bag"].double().cpu().numpy()
    return vector
