"""R2T-MIL: Feature Re-Embedding: Towards Foundation Model-Level Performance in Computational
Pathology (Tang et al. 2024), also known as RRT-MIL: attention inside regions, then among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sacmil.errors import OptionError
from sacmil.models._base import MILModel, Output, Planner, Reference, classify_mean
from sacmil.models._checks import Fraction, Size, check_divisor, one_of
from sacmil.models._recipe import PAPER, Recipe
from sacmil.models._reference import RenamedState, get_shape, read_sizes
from sacmil.models._registry import register_model
from sacmil.nn.layers import init_linear_, make_projection
from sacmil.nn.pooling import ACTIVATIONS, Attention

POOL_DIM = 128
ATTENTION_DROPOUT = 0.1
CROSS_GRID = 8
"""Regions on a side of the grid of CR-MSA, whatever that of R-MSA has."""

CAMELYON_RECIPE = Recipe(
    lr=2e-4,
    weight_decay=1e-5,
    schedule="cosine",
    epochs=200,
    patience=30,
    min_epochs=130,
    monitor="val_auc",  # theirs looks at the test set
    options={"crmsa_k": 1, "all_shortcut": True},
)
"""How the authors train it on CAMELYON16 with ResNet-50 features."""


class RegionalAttention(nn.Module):
    """R-MSA: h + attention inside each region, positions from EPEG.

    Args:
        dim: width of an instance.
        heads: attentions side by side.
        epeg_k: length of EPEG's convolution.
    """

    def __init__(self, dim: int, *, heads: int, epeg_k: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attention = EPEGAttention(dim, heads=heads, epeg_k=epeg_k)

    def forward(self, h: Tensor, regions: Tensor, positions: Tensor) -> Tensor:
        """h (N, dim); regions (grid * grid, P) and at (N,), as planned."""
        x = gather_regions(self.norm(h), regions)
        return h + scatter_regions(self.attention(x), positions)


class CrossRegionalAttention(nn.Module):
    """CR-MSA: h + what k summaries of each region learn from those of the other regions.

    Args:
        dim: width of an instance.
        heads: attentions side by side.
        k: summaries of a region.
        mlp: whether instances are weighted by two layers instead of one.
    """

    def __init__(self, dim: int, *, heads: int, k: int, mlp: bool) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.phi = _make_two_layers(dim, k) if mlp else nn.Linear(dim, k, bias=False)
        self.attention = EPEGAttention(dim, heads=heads)

    def forward(self, h: Tensor, regions: Tensor, positions: Tensor) -> Tensor:
        """h (N, dim); regions (64, P) and at (N,), as planned."""
        x = gather_regions(self.norm(h), regions)  # (64, P, dim)
        logits = self.phi(x)  # (64, P, k)
        summaries = logits.softmax(1).mT @ x  # (64, k, dim)
        summaries = self.attention(summaries.transpose(0, 1)).transpose(0, 1)
        x = (_normalize_min_max(logits) * logits.softmax(2)) @ summaries
        return h + scatter_regions(x, positions)


class EPEGAttention(nn.Module):
    """Exact attention inside each of many sequences.

    EPEG adds to the logits, q k^T, their depth-wise convolution along the queries. As that is
    linear, it is the queries that are convolved: the same logits, and nothing as large as them.
    Its bias is left out: it raises all logits of a query alike, which the softmax takes away.

    Args:
        dim: width of an instance.
        heads: attentions side by side, a divisor of dim.
        epeg_k: length of EPEG's convolution; None does without.
    """

    def __init__(self, dim: int, *, heads: int, epeg_k: int | None = None) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.epeg = None if epeg_k is None else _make_epeg_convolution(heads, epeg_k)
        self.out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(ATTENTION_DROPOUT)

    def forward(self, x: Tensor) -> Tensor:
        """x (sequences, P, dim)."""
        q, k, v = self.qkv(x).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if self.epeg is not None:
            q = q + self.epeg(q)
        h = F.scaled_dot_product_attention(q, k, v)  # (sequences, heads, P, dim of a head)
        y: Tensor = self.dropout(self.out(h.transpose(1, 2).flatten(2)))
        return y


@register_model("r2t")
class R2TMIL(MILModel):
    """R2T-MIL (Tang et al. 2024): instances are re-embedded in and across regions, then pooled.

    Regions are those of the sequence laid out row by row on a square, filled up with zeros that
    take part in the attention as officially.

    Args:
        dim: width inside.
        heads: attentions side by side inside regions.
        regions: regions on a side of the square for the attention inside them.
        epeg_k: length of EPEG's convolution, an odd number.
        crmsa_k: summaries of a region for the attention across regions.
        crmsa_heads: attentions side by side across regions.
        crmsa_mlp: whether a region is summarised by two layers instead of one.
        all_shortcut: whether the projected instances are added to the re-embedded ones.
        activation: of the pooling attention: tanh, relu (the official code's default) or gelu.
        dropout: share of the projected values dropped in training.
    """

    order_matters = True
    coords_matter = False
    small_options: ClassVar[Mapping[str, Any]] = {
        "dim": 16,
        "heads": 2,
        "crmsa_heads": 2,
        "epeg_k": 3,
        "regions": 3,
    }
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "paper": PAPER,
        "official": CAMELYON_RECIPE,
        "nsclc": CAMELYON_RECIPE.replace(
            patience=20, min_epochs=70, options={"epeg_k": 21, "crmsa_k": 5}
        ),
        "brca": CAMELYON_RECIPE.replace(
            patience=20, min_epochs=70, options={"epeg_k": 17, "crmsa_k": 3, "crmsa_heads": 1}
        ),
    }

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        dim: Size = 512,
        heads: Size = 8,
        regions: Size = 8,
        epeg_k: Size = 15,
        crmsa_k: Size = 3,
        crmsa_heads: Size = 8,
        crmsa_mlp: bool = False,
        all_shortcut: bool = False,
        activation: Annotated[str, one_of(ACTIVATIONS)] = "tanh",
        dropout: Fraction = 0.25,
    ) -> None:
        super().__init__(in_dim, num_classes)
        check_divisor("heads", heads, dim)
        check_divisor("crmsa_heads", crmsa_heads, dim)
        if epeg_k % 2 == 0:
            raise OptionError(f"epeg_k={epeg_k}; expected an odd number, so that there is a middle")
        self.regions, self.all_shortcut = regions, all_shortcut
        self.project = make_projection(in_dim, dim, dropout=dropout)
        self.regional = RegionalAttention(dim, heads=heads, epeg_k=epeg_k)
        self.cross = CrossRegionalAttention(dim, heads=crmsa_heads, k=crmsa_k, mlp=crmsa_mlp)
        self.norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, POOL_DIM, bias=False, activation=activation)
        self.head = nn.Linear(dim, num_classes)
        _init_weights(self)

    @property
    def planner(self) -> Planner:
        """The regions of the attention inside them, and of that across them."""
        return Planner("square_regions", {"inside": self.regions, "across": CROSS_GRID})

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Scores are the weights of the pooling."""
        h = self.reembed_instances(self.project(features), plan)
        return classify_mean(h, self.attention, self.head)

    def reembed_instances(self, z: Tensor, plan: dict[str, Tensor]) -> Tensor:
        """Re-embed instances, (N, dim) to (N, dim)."""
        h = self.regional(z, plan["inside"], plan["inside_at"])
        h = self.cross(h, plan["across"], plan["across_at"])
        y: Tensor = self.norm(h + z if self.all_shortcut else h)
        return y

    @classmethod
    def reference(cls, state: Mapping[str, Tensor]) -> Reference:
        """The names of the authors' RRTMIL."""
        inside, across = "online_encoder.layers.0", "online_encoder.cr_msa"
        names = {
            "patch_to_emb.0": "project.0",
            f"{inside}.norm": "regional.norm",
            f"{inside}.attn.attn.pe": "regional.attention.epeg",
            f"{across}.norm": "cross.norm",
            f"{across}.attn.phi": "cross.phi",
            "online_encoder.norm": "norm",
            "pool_fn.attention.attention.0": "attention.value",
            "pool_fn.attention.attention.2": "attention.weight",
            "predictor": "head",
        }
        for official, ours in {inside: "regional", across: "cross"}.items():
            names[f"{official}.attn.attn.proj"] = f"{ours}.attention.out"
            names[f"{official}.attn.attn"] = f"{ours}.attention"
        found = RenamedState(state, names, ignored=[f"{inside}.attn.attn.pe.bias"])
        mlp = "cross.phi" not in found
        if not mlp:
            found["cross.phi.weight"] = found.pop("cross.phi").T
        heads, _, epeg_k, _ = get_shape(found, "regional.attention.epeg.weight")
        options = read_sizes(found) | {
            "heads": heads,
            "epeg_k": epeg_k,
            "crmsa_k": get_shape(found, "cross.phi.2.weight" if mlp else "cross.phi.weight")[0],
            "crmsa_mlp": mlp,
        }
        return Reference(options, found)


def gather_regions(x: Tensor, regions: Tensor) -> Tensor:
    """(N, dim) to (grid * grid, P, dim): zeros where there is no instance."""
    rows = torch.cat([x, torch.zeros_like(x[:1])]).index_select(0, regions.flatten())
    return rows.reshape(*regions.shape, -1)


def scatter_regions(x: Tensor, positions: Tensor) -> Tensor:
    """(grid * grid, P, dim) back to (N, dim), without what was added."""
    return x.flatten(0, 1).index_select(0, positions)


def _normalize_min_max(logits: Tensor) -> Tensor:
    """(regions, P, k), 0 for the least logit of a region and 1 for the greatest."""
    least, most = logits.amin(1, keepdim=True), logits.amax(1, keepdim=True)
    return (logits - least) / (most - least + 1e-8)


def _make_two_layers(dim: int, k: int) -> nn.Module:
    hidden = max(1, dim // 4)
    return nn.Sequential(
        nn.Linear(dim, hidden, bias=False), nn.Tanh(), nn.Linear(hidden, k, bias=False)
    )


def _make_epeg_convolution(heads: int, length: int) -> nn.Conv2d:
    return nn.Conv2d(heads, heads, (length, 1), padding=(length // 2, 0), groups=heads, bias=False)


def _init_weights(model: R2TMIL) -> None:
    """Glorot's normal weights and zero biases, except for a phi of one layer."""
    init_linear_(model)
    assert model.regional.attention.epeg is not None
    nn.init.xavier_normal_(model.regional.attention.epeg.weight)
    if isinstance(model.cross.phi, nn.Linear):
        bound = model.cross.phi.out_features**-0.5
        nn.init.uniform_(model.cross.phi.weight, -bound, bound)
