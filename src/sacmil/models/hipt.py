"""HIPT: Scaling Vision Transformers to Gigapixel Images via Hierarchical Self-Supervised Learning
(Chen et al. 2022), its levels above single patches.

Features of any encoder replace those of its ViT-256. The ViT-4K, which sees the patches of a
region, starts without pretraining.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sacmil.models._base import MILModel, Output, Planner, Reference
from sacmil.models._checks import Fraction, Size, check_divisor, one_of
from sacmil.models._recipe import PAPER, Recipe
from sacmil.models._reference import RenamedState, get_shape
from sacmil.models._registry import register_model
from sacmil.nn.layers import init_linear_, make_projection, recompute_in_backward
from sacmil.nn.pooling import Attention, scatter_sum

T = TypeVar("T")

LOCAL_DIMS = {"vit": 192, "attention": 256, "none": 192}
"""Methods that turn the patches of a region into one vector, with their official widths."""

GLOBAL_LAYERS = 2
POSITION_TABLE_SIDE = 14
"""Rows and columns of the table of learned positions; it is resized to those of a region."""
REGION_CHUNK_SIZE = 32
"""Number of regions that the ViT encodes at a time."""
QUERY_CHUNK_SIZE = 2048
"""Number of regions that attend to all others at a time."""


class RegionSummary(NamedTuple):
    """The vectors of regions, and the weights of their patches."""

    regions: Tensor
    """(regions, dim)"""
    attention: Tensor
    """(patches,), the weight of each within its region."""


# --- Local level: the patches of a region --------------------------------------------------------


class ViTBlock(nn.Module):
    """A pre-norm Transformer block over the tokens of many regions.

    Args:
        dim: width of a token.
        heads: number of attention heads.
    """

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x: Tensor, keys: Tensor) -> Tensor:
        """x (regions, T, dim); keys (regions, 1, 1, T), true where there is a token."""
        q, k, v = self._split_heads(x)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=keys)
        return self._add_attention_and_mlp(x, attended)

    def forward_first_token(self, x: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first token's output (regions, dim) and its attention weights (regions, T)."""
        q, k, v = self._split_heads(x)
        logits = q[:, :, :1] @ k.mT / math.sqrt(q.shape[-1])
        weights = logits.masked_fill(~keys, -torch.inf).softmax(-1)  # (regions, heads, 1, T)
        return self._add_attention_and_mlp(x[:, :1], weights @ v)[:, 0], weights.mean(1)[:, 0]

    def _split_heads(self, x: Tensor) -> Tensor:
        """(3, regions, heads, T, dim of a head)."""
        qkv = self.qkv(self.norm1(x)).unflatten(2, (3, self.heads, -1))
        heads: Tensor = qkv.permute(2, 0, 3, 1, 4)
        return heads

    def _add_attention_and_mlp(self, x: Tensor, attended: Tensor) -> Tensor:
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        y: Tensor = x + self.mlp(self.norm2(x))
        return y


class RegionViT(nn.Module):
    """ViT-4K: a region's vector is the output of its class token.

    Positions without a patch are masked. If there are none, this is the official ViT.

    Args:
        in_dim: width of a feature vector.
        dim: width of a token.
        depth: number of blocks.
        heads: number of attention heads.
        side: number of patches on a side of a region.
    """

    def __init__(self, in_dim: int, dim: int, *, depth: int, heads: int, side: int) -> None:
        super().__init__()
        self.side = side
        self.project = nn.Sequential(nn.Linear(in_dim, dim), nn.GELU())
        self.cls = nn.Parameter(torch.empty(1, dim))
        self.position = nn.Parameter(torch.empty(1 + POSITION_TABLE_SIDE**2, dim))
        self.blocks = nn.ModuleList(ViTBlock(dim, heads) for _ in range(depth - 1))
        self.last = ViTBlock(dim, heads)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        init_linear_(self, partial(nn.init.trunc_normal_, std=0.02))
        nn.init.trunc_normal_(self.cls, std=0.02)
        nn.init.trunc_normal_(self.position, std=0.02)

    def forward(self, x: Tensor, slots: Tensor) -> RegionSummary:
        """x (M, in_dim), one patch per slot; slots (M,), ascending.

        Regions of similar size are encoded at a time, so that there is little padding.
        """
        tokens = self.project(x) + self.resize_positions().index_select(0, slots % self.side**2)
        size = (slots // self.side**2).bincount()  # (regions,)
        order = size.argsort(descending=True, stable=True)
        look = partial(self.encode_regions, tokens, size)
        found = map_chunks(look, torch.split(order, REGION_CHUNK_SIZE))
        seen, attention, rows = (torch.cat(each) for each in zip(*found, strict=True))
        return RegionSummary(_scatter_rows(seen, order), _scatter_rows(attention, rows))

    def encode_regions(
        self, tokens: Tensor, size: Tensor, regions: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return vectors of regions (R, dim), and the weights and rows of their patches (M',).

        Args:
            tokens: (M, dim), region after region.
            size: (regions,), number of tokens of each.
            regions: (R,), those to encode, the largest first.
        """
        place = torch.arange(int(size[regions[0]]), device=tokens.device)
        there = place < size[regions, None]  # (R, T), T the tokens of the largest
        start = (size.cumsum(0) - size)[regions, None]
        rows = (start + place).clamp(max=tokens.shape[0] - 1)
        vectors, weights = self._encode(tokens[rows], there)
        return vectors, weights[there], rows[there]

    def encode_all_regions(self, x: Tensor, positions: Tensor, table: Tensor) -> RegionSummary:
        """Do as forward at once, with sizes from the plan: an exported graph cannot find them."""
        tokens = self.project(x) + self.resize_positions().index_select(0, positions)
        vectors, weights = self._encode(*_gather_by_table(tokens, table))
        return RegionSummary(vectors, _scatter_by_table(weights, table, x.shape[0]))

    def _encode(self, tokens: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
        """Return outputs of class tokens (R, dim) for tokens (R, T, dim), and weights (R, T)."""
        cls = (self.cls + self.position[:1]).expand(tokens.shape[0], 1, -1)
        x = torch.cat([cls, tokens], dim=1)
        keys = torch.cat([torch.ones_like(mask[:, :1]), mask], dim=1)[:, None, None]
        for block in self.blocks:
            x = block(x, keys)
        vectors, weights = self.last.forward_first_token(x, keys)
        return self.norm(vectors), weights[:, 1:]

    def resize_positions(self) -> Tensor:
        """Return the learned table as (side * side, dim), resized as officially: 0.1 too large."""
        table = self.position[1:].T.reshape(1, -1, POSITION_TABLE_SIDE, POSITION_TABLE_SIDE)
        scale = (self.side + 0.1) / POSITION_TABLE_SIDE
        return F.interpolate(table, scale_factor=(scale, scale), mode="bicubic")[0].flatten(1).T


class RegionAttention(nn.Module):
    """A region is the mean of its patches with weights from gated attention.

    Args:
        in_dim: width of a feature vector.
        dim: width of a projected patch.
        side: number of patches on a side of a region.
        dropout: share dropped in training, after every layer.
    """

    def __init__(self, in_dim: int, dim: int, *, side: int, dropout: float) -> None:
        super().__init__()
        self.side = side
        self.project = make_projection(in_dim, dim, dropout=dropout)
        self.attention = Attention(dim, dim, dropout=dropout, gated=True)

    def forward(self, x: Tensor, slots: Tensor) -> RegionSummary:
        """x (M, in_dim), one patch per slot; slots (M,)."""
        home = slots // self.side**2
        h = self.project(x)
        weights = _softmax_within_regions(self.attention(h)[:, 0], home)
        regions = scatter_sum(home, weights[:, None] * h, int(home.max()) + 1)
        return RegionSummary(regions, weights)

    def encode_all_regions(self, x: Tensor, positions: Tensor, table: Tensor) -> RegionSummary:
        """Do as forward, with sizes from the plan: an exported graph cannot find them."""
        h, there = _gather_by_table(self.project(x), table)
        logits = self.attention(h)[..., 0].masked_fill(~there, -torch.inf)
        weights = logits.softmax(1)
        regions = (weights[:, None] @ h)[:, 0]
        return RegionSummary(regions, _scatter_by_table(weights, table, x.shape[0]))


# --- The slide: its regions ----------------------------------------------------------------------


@register_model("hipt")
class HIPT(MILModel):
    """HIPT (Chen et al. 2022): patches become regions, regions become a slide.

    Regions are squares of patches, counted from the slide's smallest coordinates. Patches at the
    same position of a region are replaced by their mean; each gets its score.

    Args:
        local: how patches become a region: vit, attention, or none if instances are regions.
        region: number of patches on a side of a region.
        dim: width of a region; None means the official 192, or 256 for local attention.
        depth: number of blocks of the vit.
        heads: number of attention heads of the vit.
        global_heads: number of attention heads among regions; unused with local attention.
        dropout: share dropped in training, after every layer outside the vit.
    """

    plan_keys = frozenset({"slots"})
    small_options: ClassVar[Mapping[str, Any]] = {"dim": 12, "depth": 1, "heads": 2, "region": 4}
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "paper": PAPER,
        # Their loop divides the loss by 32 yet steps after every slide: Adam is hardly affected.
        "official": Recipe(lr=2e-4, weight_decay=1e-5, epochs=20, sampler="balanced"),
    }

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        local: Annotated[str, one_of(LOCAL_DIMS)] = "vit",
        region: Size = 16,
        dim: Size | None = None,
        depth: Size = 6,
        heads: Size = 6,
        global_heads: Size = 3,
        dropout: Fraction = 0.25,
    ) -> None:
        super().__init__(in_dim, num_classes)
        dim = dim or LOCAL_DIMS[local]
        self.region = region
        self.local: RegionViT | RegionAttention | None = None
        if local == "vit":
            check_divisor("heads", heads, dim)
            self.local = RegionViT(in_dim, dim, depth=depth, heads=heads, side=region)
        elif local == "attention":
            self.local = RegionAttention(in_dim, dim, side=region, dropout=dropout)
        self.project = make_projection(in_dim if local == "none" else dim, dim, dropout=dropout)
        self.layers = nn.ModuleList()
        if local != "attention":
            check_divisor("global_heads", global_heads, dim)
            for _ in range(GLOBAL_LAYERS):
                self.layers.append(nn.TransformerEncoderLayer(dim, global_heads, dim, dropout))
        self.attention = Attention(dim, dim, dropout=dropout, gated=True)
        self.refine = make_projection(dim, dim, dropout=dropout)
        self.head = nn.Linear(dim, num_classes)

    @property
    def planner(self) -> Planner:
        """The region of each patch, and its position there."""
        return Planner("slots", {"side": self.region, "apart": self.local is None})

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Scores are the attention weight of the region times that of the patch within it."""
        slots = plan["slots"]
        regions, within = self.summarize_regions(features, plan)  # (R, dim), (N,)
        h = self.project(regions)
        for layer in self.layers:
            h = apply_layer_in_chunks(layer, h)
        weights = self.attention(h).softmax(0)[:, 0]  # (R,)
        slide = self.refine(weights @ h)
        scores = weights.index_select(0, slots // self.region**2) * within
        return Output(self.head(slide), scores, extras={"regions": regions}, embedding=slide)

    def summarize_regions(self, features: Tensor, plan: dict[str, Tensor]) -> RegionSummary:
        """Return the regions, and the weight of every instance within its own."""
        if self.local is None:
            return RegionSummary(features, features.new_ones(features.shape[0]))
        which, places = plan["which"], plan["places"]
        shared = scatter_sum(which, torch.ones_like(features[:, 0]), places.shape[0])
        means = scatter_sum(which, features, places.shape[0]) / shared[:, None]
        if torch.compiler.is_compiling():
            regions, attention = self.local.encode_all_regions(means, places, plan["table"])
        else:
            regions, attention = self.local(means, torch.unique(plan["slots"]))
        return RegionSummary(regions, attention.index_select(0, which))

    @classmethod
    def reference(cls, state: Mapping[str, Tensor]) -> Reference:
        """The names of the authors' HIPT_LGP_FC, HIPT_None_FC and HIPT_GP_FC."""
        depth = sum(key.endswith("attn.qkv.weight") for key in state)
        found = RenamedState(state, _map_official_names(depth))
        dim, width = get_shape(found, "project.0.weight")
        options: dict[str, Any] = {"dim": dim, "local": "none"}
        if "local.cls" in found:
            options |= {"local": "vit", "depth": depth}
            for table in ("local.cls", "local.position"):
                found[table] = found[table].flatten(0, 1)
        elif "local.project.0.weight" in found:
            options["local"] = "attention"
        if options["local"] != "none":
            width = get_shape(found, "local.project.0.weight")[1]
        options |= {"in_dim": width, "num_classes": get_shape(found, "head.weight")[0]}
        return Reference(options, found)


def apply_layer_in_chunks(layer: nn.Module, x: Tensor) -> Tensor:
    """(R, dim) to (R, dim): layer(x), a chunk of the queries at a time.

    With dropout, kernels of the CPU would need the whole R x R matrix.
    """
    assert isinstance(layer, nn.TransformerEncoderLayer)
    parts = (x,) if torch.compiler.is_compiling() else torch.split(x, QUERY_CHUNK_SIZE)
    attended = map_chunks(partial(_attend, layer.self_attn, x), parts)
    x = layer.norm1(x + layer.dropout1(torch.cat(attended)))
    h = layer.linear2(layer.dropout(layer.linear1(x).relu()))
    y: Tensor = layer.norm2(x + layer.dropout2(h))
    return y


def _attend(attention: nn.MultiheadAttention, x: Tensor, queries: Tensor) -> Tensor:
    attended: Tensor = attention(queries, x, x, need_weights=False)[0]
    return attended


def map_chunks(function: Callable[[Tensor], T], chunks: Sequence[Tensor]) -> list[T]:
    """Apply a function to each chunk; if there are several, recompute them in backward."""
    if len(chunks) == 1:
        return [function(chunks[0])]
    return [recompute_in_backward(function, part) for part in chunks]


def _scatter_rows(values: Tensor, rows: Tensor) -> Tensor:
    """Put values[i] at rows[i]; each row occurs once."""
    return torch.empty_like(values).index_copy(0, rows, values)


def _gather_by_table(rows: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
    """Return the rows (M, dim) of each region as (regions, T, dim), and a mask (regions, T)."""
    m = rows.shape[0]
    return rows[table.clamp(max=m - 1)], table < m


def _scatter_by_table(values: Tensor, table: Tensor, m: int) -> Tensor:
    """Return values (regions, T) in the order of rows, (M,)."""
    return values.new_zeros(m + 1).scatter(0, table.flatten(), values.flatten())[:m]


def _softmax_within_regions(logits: Tensor, region_of_row: Tensor) -> Tensor:
    """Return weights (M,) that sum to one within each region."""
    regions = int(region_of_row.max()) + 1
    greatest = logits.new_full((regions,), -torch.inf).scatter_reduce(
        0, region_of_row, logits.detach(), "amax"
    )
    e = (logits - greatest.index_select(0, region_of_row)).exp()
    return e / scatter_sum(region_of_row, e, regions).index_select(0, region_of_row)


def _map_official_names(depth: int) -> dict[str, str]:
    """Return official prefixes and ours, for any of the three official models."""
    names = {
        "local_vit.cls_token": "local.cls",
        "local_vit.pos_embed": "local.position",
        "local_vit.phi.0": "local.project.0",
        "local_vit.norm": "local.norm",
        "local_phi.0": "local.project.0",
        "global_phi.0": "project.0",
        "global_transformer.layers": "layers",
        "global_rho.0": "refine.0",
        "classifier": "head",
    }
    for official, ours in {"local_attn_pool": "local.", "global_attn_pool": ""}.items():
        for letter, part in {"a.0": "value", "b.0": "gate", "c": "weight"}.items():
            names[f"{official}.attention_{letter}"] = f"{ours}attention.{part}"
    parts = {"attn.qkv": "qkv", "attn.proj": "out", "mlp.fc1": "mlp.0", "mlp.fc2": "mlp.2"}
    parts |= {"norm1": "norm1", "norm2": "norm2"}
    for i in range(depth):
        block = "last" if i == depth - 1 else f"blocks.{i}"
        names |= {f"local_vit.blocks.{i}.{a}": f"local.{block}.{b}" for a, b in parts.items()}
    return names
