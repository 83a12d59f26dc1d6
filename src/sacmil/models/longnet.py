"""LongNet as GigaPath's slide encoder: A whole-slide foundation model (Xu et al. 2024).

A transformer with dilated attention (Ding et al. 2023) over all tiles of a slide: exact, among
every r-th token of a segment. Branches from short and dense to long and sparse are averaged,
weighted by their log-sum-exp. Each tile has a fixed position embedding; a class token stands in
front.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sacmil.errors import ModelError, OptionError
from sacmil.models._base import MILModel, Output, Planner, Reference
from sacmil.models._checks import Fraction, Size, check_at_least, check_divisor, one_of
from sacmil.models._recipe import PAPER, Recipe
from sacmil.models._reference import RenamedState, get_shape
from sacmil.models._registry import register_model
from sacmil.nn.layers import init_linear_
from sacmil.nn.positions import frequencies

UNCOVERED_LSE = -1e8
"""Log-sum-exp of a token and head that a branch leaves out; gives it no weight."""

MAX_LOGITS = 1 << 22
"""Attention logits held at a time to sum their exponentials."""


class AttentionTable(NamedTuple):
    """The tokens of each attention of a branch, from sacmil.plans.planners."""

    tokens: Tensor
    """(m, t): the tokens of m attentions, r consecutive ones per segment; n for a zero token."""
    rows: Tensor
    """(n,): the row of each token's output in ``tokens``."""


class DilatedBranch(NamedTuple):
    """One segment length w and dilation r.

    Heads form r consecutive groups; group g sees tokens g, g + r, g + 2r, ... of each segment.
    Tokens and heads are padded with zeros where they do not divide. Zero keys have logit 0 and take
    their weight, as officially.
    """

    segment: int
    dilation: int

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, table: AttentionTable
    ) -> tuple[Tensor, Tensor]:
        """Return output (n, heads, dim of a head), zero if uncovered, and lse (n, heads)."""
        tokens, rows = table.tokens.to(q.device), table.rows.to(q.device)
        heads = q.shape[1]
        h, lse = attend_with_lse(*(self._gather(x, tokens) for x in (q, k, v)))
        out = self._scatter(h, tokens, rows, 0.0)[:, :heads]
        return out, self._scatter(lse[..., None], tokens, rows, UNCOVERED_LSE)[:, :heads, 0]

    def _gather(self, x: Tensor, tokens: Tensor) -> Tensor:
        """(n, heads, d) to (m, heads of a group, t, d)."""
        r = self.dilation
        heads = (x.shape[1] + r - 1) // r
        x = F.pad(x, (0, 0, 0, heads * r - x.shape[1], 0, 1)).reshape(-1, heads, x.shape[2])
        group = torch.arange(tokens.shape[0], device=x.device) % r
        rows = (tokens * r + group[:, None]).flatten()
        return x.index_select(0, rows).reshape(*tokens.shape, *x.shape[1:]).transpose(1, 2)

    def _scatter(self, x: Tensor, tokens: Tensor, rows: Tensor, fill: float) -> Tensor:
        """Return (n, heads, d), with ``fill`` for the tokens that a head does not see."""
        r = self.dilation
        own = x.transpose(1, 2).flatten(0, 1).index_select(0, rows)  # (n, heads of a group, d)
        group = rows // tokens.shape[1] % r
        covered = group[:, None] == torch.arange(r, device=x.device)
        return torch.where(covered[:, :, None, None], own[:, None], fill).flatten(1, 2)


def attend_with_lse(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return softmax attention and its log-sum-exp, which has no gradient.

    Args:
        q: (m, heads, n, d), as are k and v.
        k: keys.
        v: values.
    """
    if torch.compiler.is_compiling():  # sizes of blocks would be fixed by an export
        logits = q @ k.mT * q.shape[3] ** -0.5
        lse = logits.logsumexp(-1)
        return (logits - lse[..., None]).exp() @ v, lse
    with torch.no_grad():
        lse = log_sum_exp(q.flatten(0, 1), k.flatten(0, 1)).view(q.shape[:3])
    return F.scaled_dot_product_attention(q, k, v), lse


def dilated_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    branches: Sequence[DilatedBranch],
    tables: Sequence[AttentionTable],
) -> Tensor:
    """Average the outputs of branches, weighted by the softmax of their lse; all (n, heads, d).

    The weights are constants to the gradient, as in the official code.

    Args:
        q: queries.
        k: keys.
        v: values.
        branches: segment lengths and dilations.
        tables: tokens of each branch.
    """
    pairs = zip(branches, tables, strict=True)
    outputs = [branch.attend(q, k, v, table) for branch, table in pairs]
    weights = torch.stack([lse for _, lse in outputs]).softmax(0).to(v.dtype)
    mixed = torch.zeros_like(v)
    for weight, (out, _) in zip(weights, outputs, strict=True):
        mixed = mixed + weight[:, :, None] * out
    return mixed


def log_sum_exp(q: Tensor, k: Tensor) -> Tensor:
    """Return the log of the sum that a softmax attention divides by, (m, n).

    Args:
        q: (m, n, d), queries of m attentions.
        k: (m, n, d), keys.
    """
    # Torch's fast kernels do not return it: it costs a second product here, in blocks that fit a
    # cache instead of one m x n x n matrix.
    n = q.shape[1]
    matrices, rows = max(1, MAX_LOGITS // n**2), max(1, MAX_LOGITS // n)
    q = q * q.shape[2] ** -0.5
    sums = []
    for queries, keys in zip(torch.split(q, matrices), torch.split(k, matrices), strict=True):
        blocks = torch.split(queries, rows, dim=1)
        sums.append(torch.cat([_row_log_sum_exp(block, keys) for block in blocks], dim=1))
    return torch.cat(sums)


def _row_log_sum_exp(q: Tensor, k: Tensor) -> Tensor:
    logits = q @ k.mT
    return logits.to(torch.promote_types(q.dtype, torch.float32)).logsumexp(-1)


class DilatedAttention(nn.Module):
    """(N, dim) to (N, dim), with a norm before the output layer (sub-LN).

    Args:
        dim: width of a token.
        heads: number of attention heads, a divisor of dim.
        branches: segment lengths and dilations.
    """

    def __init__(self, dim: int, heads: int, branches: Sequence[DilatedBranch]) -> None:
        super().__init__()
        self.heads, self.branches = heads, branches
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)
        self.norm = nn.LayerNorm(dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x: Tensor, tables: Sequence[AttentionTable]) -> Tensor:
        """x (N, dim); tables as for ``dilated_attention``."""
        q, k, v = (
            layer(x).unflatten(1, (self.heads, -1)) for layer in (self.query, self.key, self.value)
        )
        h = dilated_attention(q, k, v, self.branches, tables)
        y: Tensor = self.out(self.norm(h.flatten(1)))
        return y


SEGMENTS = (1024, 5792, 32768, 185363, 1048576)
DILATIONS = (1, 2, 4, 8, 16)

POSITION_TOLERANCE = 1e-3
"""In patches: a coordinate this little below a whole number is rounded up to it."""


class LongNetPreset(NamedTuple):
    """Values of options that are not given."""

    dim: int
    depth: int
    heads: int
    unused: int
    """Number of layers after the state that the classifier uses."""


PRESETS = {"small": LongNetPreset(384, 4, 8, 0), "gigapath": LongNetPreset(768, 12, 16, 1)}

OFFICIAL_RECIPE = Recipe(
    exempt_vectors=True,
    optimizer="adamw",
    lr=2.5e-4,
    weight_decay=0.05,
    layer_decay=0.95,
    schedule="cosine",
    lr_min=1e-6,
    warmup_epochs=1,
    epochs=5,
    accumulate=32,
)
"""How GigaPath fine-tunes its pretrained slide encoder on PANDA.

There it runs in float16, and by a wrong name without layer decay for the projection. It sets no
preset: the recipe needs pretrained weights, which the preset "gigapath" does not have."""


@register_model("longnet")
class LongNet(MILModel):
    """LongNet (GigaPath's slide encoder, Xu et al. 2024): dilated attention between all tiles.

    Args:
        preset: sizes: small (4 layers of 384) or gigapath (12 of 768, the last one unused).
        dim: width of a token, a multiple of 4 and of heads; None takes the preset's.
        depth: number of layers; None takes the preset's.
        heads: number of attention heads; None takes the preset's, 8 or 16, each 48 wide.
        segments: length of a segment in each branch; None takes the official 1024 to 1048576.
        dilations: step between tokens in each branch; None takes the official 1 to 16.
        states: layers after which the classifier reads the class token; several are joined.
        dropout: share of each layer's output dropped in training.
        legacy_placement: put rows of uneven segments where the official code does, by mistake.
    """

    order_matters = True
    plan_keys = frozenset({"at_0"})
    small_options: ClassVar[Mapping[str, Any]] = {
        "dim": 16,
        "depth": 2,
        "heads": 4,
        "segments": [8, 64, 500],
        "dilations": [1, 3, 4],
    }
    recipes: ClassVar[Mapping[str, Recipe]] = {"paper": PAPER, "official": OFFICIAL_RECIPE}

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        preset: Annotated[str, one_of(PRESETS)] = "small",
        dim: Size | None = None,
        depth: Size | None = None,
        heads: Size | None = None,
        segments: Sequence[int] | None = None,
        dilations: Sequence[int] | None = None,
        states: Sequence[int] | None = None,
        dropout: Fraction = 0.1,
        legacy_placement: bool = False,
    ) -> None:
        super().__init__(in_dim, num_classes)
        sizes = PRESETS[preset]
        dim, depth = dim or sizes.dim, depth or sizes.depth
        if dim % 4:
            raise OptionError(
                f"dim={dim}; expected a multiple of 4, for sines and cosines of two coordinates"
            )
        heads = check_divisor("heads", heads or sizes.heads, dim)
        self.branches = _make_branches(
            SEGMENTS if segments is None else segments,
            DILATIONS if dilations is None else dilations,
        )
        default = (max(1, depth - sizes.unused),)
        self.states = _check_states(default if states is None else states, depth)
        self.legacy = legacy_placement
        self.cls_token = nn.Parameter(torch.empty(1, dim))
        self.project = nn.Linear(in_dim, dim)
        self.layers = nn.ModuleList(
            LongNetLayer(dim, heads, self.branches, dropout) for _ in range(depth)
        )
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(len(self.states) * dim, num_classes)
        init_linear_(self, nn.init.xavier_uniform_)
        nn.init.normal_(self.cls_token, std=0.02)
        # Options decide which layers are unused, so this belongs to the model, not to its class.
        object.__setattr__(self, "dead_parameters", self._list_unused_parameters(max(self.states)))

    @property
    def planner(self) -> Planner:
        """Which tokens attend to each other; export uses short segments, to have several."""
        lengths, steps = (list(numbers) for numbers in zip(*self.branches, strict=True))
        options = {"segments": lengths, "dilations": steps, "legacy_placement": self.legacy}
        short = ({"segments": [r + 1 for r in steps]}, {"segments": [1 for _ in steps]})
        return Planner("segments", options, short)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Scores are the norms of the tokens after the last layer that is used."""
        x = self.embed_tokens(features, coords)
        tables = [_make_table(plan, branch) for branch in range(len(self.branches))]
        seen = [x[0]]
        for layer in self.layers[: max(self.states)]:
            x = layer(x, tables)
            seen.append(x[0])
        slide = torch.cat([self.norm(seen[state]) for state in self.states])
        return Output(self.head(slide), x[1:].norm(dim=1), embedding=slide)

    def embed_tokens(self, features: Tensor, coords: Tensor) -> Tensor:
        """Return state 0, (1 + N, dim): the class token, which has no position, and the tiles."""
        h = self.project(features)
        return torch.cat((self.cls_token, h + embed_positions(coords, h.shape[1]).to(h.dtype)))

    def _list_unused_parameters(self, depth: int) -> frozenset[str]:
        """Return the names of parameters in layers that never run."""
        layers = [(f"layers.{i}.", layer) for i, layer in enumerate(self.layers) if i >= depth]
        return frozenset(begin + name for begin, layer in layers for name in layer.state_dict())

    @classmethod
    def reference(cls, state: Mapping[str, Tensor]) -> Reference:
        """The names of prov-gigapath's fine-tuned models, or ``head`` for the classifier.

        A checkpoint does not store which states the classifier uses. The usual ones are assumed:
        the one before the last, or the last ones if there are several. Official weights get the
        official placement, because they were trained with it.
        """
        state = _strip_finetuning_names(state)
        dim, in_dim = get_shape(state, "patch_embed.proj.weight")
        num_classes, width = get_shape(state, "head.weight")
        depth = len(
            {key.split(".")[2] for key in state if re.match(r"encoder\.layers\.\d+\.", key)}
        )
        if depth == 0 or width % dim:
            raise ModelError(
                f"it has {depth} layers and a head for {width} values; expected at least one layer "
                f"and a multiple of {dim} values"
            )
        seen = width // dim
        options = {"in_dim": in_dim, "num_classes": num_classes, "dim": dim, "depth": depth}
        assumed = {
            "preset": "gigapath",
            "states": [max(1, depth - 1)] if seen == 1 else [*range(depth + 1 - seen, depth + 1)],
            "legacy_placement": True,
        }
        get_shape(state, "cls_token")
        ours = RenamedState(state, _map_official_names(depth), ignored=["encoder.layer_norm"])
        ours["cls_token"] = ours["cls_token"].reshape(1, -1)
        return Reference(options, ours, assumed)


def _strip_finetuning_names(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Remove the prefixes that the official fine-tuning adds to names."""
    plain = {key.removeprefix("slide_encoder."): value for key, value in state.items()}
    plain = RenamedState(plain, {"classifier.0": "head", "classifier": "head"})
    if "patch_embed.proj.weight" in plain and "head.weight" not in plain:
        raise ModelError(
            "it is a slide encoder without a classifier; expected a fine-tuned model, with "
            "head.weight or classifier.0.weight"
        )
    return plain


class LongNetLayer(nn.Module):
    """x + attention(norm(x)), then x + feed(norm(x)); both with a norm inside (sub-LN)."""

    def __init__(
        self, dim: int, heads: int, branches: Sequence[DilatedBranch], dropout: float
    ) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = DilatedAttention(dim, heads, branches)
        self.feed_norm = nn.LayerNorm(dim)
        self.feed = nn.Sequential(
            nn.Linear(dim, 4 * dim), nn.GELU(), nn.LayerNorm(4 * dim), nn.Linear(4 * dim, dim)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, tables: Sequence[AttentionTable]) -> Tensor:
        """x (N, dim); tables as ``DilatedAttention`` takes them."""
        x = x + self.dropout(self.attention(self.attention_norm(x), tables))
        y: Tensor = x + self.dropout(self.feed(self.feed_norm(x)))
        return y


def _make_table(plan: Mapping[str, Tensor], branch: int) -> AttentionTable:
    rows = plan[f"at_{branch}"]
    rows = torch.cat((rows.new_zeros(1), rows))  # the class token
    return AttentionTable(plan[f"seen_{branch}"], rows)


def embed_positions(coords: Tensor, dim: int) -> Tensor:
    """Return sines and cosines of each tile's row, then of its column, (N, dim) in float64.

    The official code reads a table of 1000 x 1000; computing them has no such limit.
    """
    places = (coords.double() + POSITION_TOLERANCE).floor().flip(1)  # (N, 2), y then x
    angles = places[:, :, None] * frequencies(dim // 4, 10000.0, coords.device)
    return torch.cat((angles.sin(), angles.cos()), dim=2).flatten(1)


def _map_official_names(depth: int) -> dict[str, str]:
    inner = {
        "self_attn_layer_norm": "attention_norm",
        "self_attn.q_proj": "attention.query",
        "self_attn.k_proj": "attention.key",
        "self_attn.v_proj": "attention.value",
        "self_attn.inner_attn_ln": "attention.norm",
        "self_attn.out_proj": "attention.out",
        "final_layer_norm": "feed_norm",
        "ffn.fc1": "feed.0",
        "ffn.ffn_layernorm": "feed.2",
        "ffn.fc2": "feed.3",
    }
    names = {"patch_embed.proj": "project"}
    for i in range(depth):
        names |= {f"encoder.layers.{i}.{k}": f"layers.{i}.{ours}" for k, ours in inner.items()}
    return names


def _make_branches(segments: Sequence[int], dilations: Sequence[int]) -> tuple[DilatedBranch, ...]:
    lengths = _check_whole_numbers("segments", segments, 1)
    steps = _check_whole_numbers("dilations", dilations, 1)
    if len(lengths) != len(steps):
        raise OptionError(
            f"there are {len(lengths)} segments and {len(steps)} dilations; expected the same "
            "number of both"
        )
    return tuple(DilatedBranch(*pair) for pair in zip(lengths, steps, strict=True))


def _check_states(states: Sequence[int], depth: int) -> tuple[int, ...]:
    found = _check_whole_numbers("states", states, 0)
    if not 1 <= max(found) <= depth:
        # State 0 is the learned class token, the same for every bag.
        raise OptionError(
            f"states={states!r}; expected numbers up to depth={depth}, at least one above 0"
        )
    return found


def _check_whole_numbers(name: str, values: Sequence[int], minimum: int) -> tuple[int, ...]:
    # Lists are accepted too: cards are JSON, which has no tuples.
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise OptionError(f"{name}={values!r}; expected whole numbers, such as [1, 2]")
    return tuple(check_at_least(name, value, minimum) for value in values)
