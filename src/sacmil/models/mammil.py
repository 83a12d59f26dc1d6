"""MamMIL: Multiple Instance Learning for WSIs with State Space Models (Fang et al. 2024).

This is the released version (Mamba-2 on a tissue graph), not the first preprint's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sacmil.models._base import MILModel, Output, Planner, Reference, classify_mean
from sacmil.models._checks import Fraction, Size, check_divisor
from sacmil.models._recipe import PAPER, Recipe
from sacmil.models._reference import RenamedState, get_shape, read_sizes
from sacmil.models._registry import register_model
from sacmil.nn.layers import make_projection, recompute_in_backward
from sacmil.nn.pooling import Attention
from sacmil.nn.state_space import CausalConvolution, state_space_duality

SCANS = 8
"""Four orders, each forwards and backwards."""
STEP_SIZES = (1e-3, 0.1)
"""Between which the scans' step sizes begin."""


class Mamba2Scan(nn.Module):
    """One way through the sequence: convolution, then Mamba-2's scan.

    Args:
        heads: how many decay on their own.
        head_dim: channels of a head.
        state: numbers each channel remembers.
    """

    def __init__(self, heads: int, head_dim: int, state: int) -> None:
        super().__init__()
        self.heads, self.state = heads, state
        self.convolution = CausalConvolution(heads * head_dim + 2 * state)
        low, high = (math.log(size) for size in STEP_SIZES)
        steps = torch.empty(heads).uniform_(low, high).exp()
        self.dt_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))  # softplus undone
        self.A_log = nn.Parameter(torch.empty(heads).uniform_(1, 16).log())
        self.D = nn.Parameter(torch.ones(heads))

    def forward(self, sequence: Tensor) -> Tensor:
        """(N, channels + 2 state + heads), what is read and its step sizes, to (N, channels)."""
        read, step = sequence.tensor_split([-self.heads], dim=1)
        read = F.silu(self.convolution(read))
        x, B, C = read.tensor_split([-2 * self.state, -self.state], dim=1)
        x = x.reshape(x.shape[0], self.heads, -1)
        dt = F.softplus(step.to(torch.promote_types(step.dtype, torch.float32)) + self.dt_bias)
        y = state_space_duality(x, dt, -self.A_log.exp(), B, C).to(x.dtype)
        return torch.addcmul(y, self.D[:, None], x).flatten(1)


class GraphMamba(nn.Module):
    """Mamba-2 that goes through the bag in several orders and takes the mean.

    Args:
        dim: width of an instance.
        state: numbers each channel remembers.
        head_dim: channels that decay alike.
    """

    def __init__(self, dim: int, state: int, head_dim: int) -> None:
        super().__init__()
        self.inner, heads = 2 * dim, 2 * dim // head_dim
        self.in_proj = nn.Linear(dim, 2 * self.inner + 2 * state + heads, bias=False)
        self.scans = nn.ModuleList(Mamba2Scan(heads, head_dim, state) for _ in range(SCANS))
        self.scale = nn.Parameter(torch.ones(self.inner))
        self.out_proj = nn.Linear(self.inner, dim, bias=False)
        with torch.no_grad():
            self.out_proj.weight /= math.sqrt(2)

    def forward(self, h: Tensor, orders: Tensor) -> Tensor:
        """(N, dim) to (N, dim).

        Args:
            h: instances.
            orders: (SCANS, N), the row that each scan reads first, second, ...
        """
        z, sequence = self.in_proj(h).tensor_split([self.inner], dim=1)
        gate = F.silu(z)
        total = torch.zeros_like(gate)
        for scan, order in zip(self.scans, orders, strict=True):
            total = total + recompute_in_backward(_scan_and_gate, scan, sequence, order, gate)
        out: Tensor = self.out_proj(self.scale * total / SCANS)
        return out


def _scan_and_gate(scan: nn.Module, sequence: Tensor, order: Tensor, gate: Tensor) -> Tensor:
    """A scan in an order, its rows back in place, gated and brought to the same size."""
    y = scan(sequence.index_select(0, order)).index_select(0, order.argsort())
    return F.rms_norm(y * gate, gate.shape[1:], eps=1e-5)


class GENConv(nn.Module):
    """DeeperGCN's convolution (Li et al. 2020): a softmax-weighted mean of what comes in, an MLP.

    Args:
        dim: width of an instance.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(1))
        self.mlp = nn.Sequential(
            nn.Linear(dim, 2 * dim, bias=False),
            nn.LayerNorm(2 * dim),
            nn.ReLU(),
            nn.Linear(2 * dim, dim, bias=False),
        )

    def forward(self, m: Tensor, neighbors: Tensor) -> Tensor:
        """(N, dim) to (N, dim); each instance sends to its neighbours (K, N), padded with N."""
        out: Tensor = self.mlp(self._aggregate_messages(m, neighbors) + m)
        return out

    def _aggregate_messages(self, m: Tensor, neighbors: Tensor) -> Tensor:
        message = m.relu() + 1e-7
        logits = self.temperature * message
        highest = _find_largest_logits(logits.detach(), neighbors)
        weighted, total = torch.zeros_like(highest), torch.zeros_like(highest)
        for receivers in neighbors:  # a neighbour at a time: N x dim, not N x K x dim
            weight = (logits - highest.index_select(0, receivers)).exp()
            # not index_add: exported, threads of onnxruntime would lose sums to the same receiver
            index = receivers[:, None].expand_as(weight)
            weighted = weighted.scatter_add(0, index, weight * message)
            total = total.scatter_add(0, index, weight)
        # The highest weighs 1; below it are only those that nobody sends to, and they get 0.
        return (weighted / total.clamp_min(1))[:-1]


def _find_largest_logits(logits: Tensor, neighbors: Tensor) -> Tensor:
    """Return the largest logit that each instance, and the padding, receives, (N + 1, dim)."""
    out = torch.full_like(logits[:1], -torch.inf).repeat(logits.shape[0] + 1, 1)
    for receivers in neighbors:
        index = receivers[:, None].expand_as(logits)
        out = out.scatter_reduce(0, index, logits, "amax")
    return out


class GraphLayer(nn.Module):
    """m + relu(norm(convolution(m))).

    Args:
        dim: width of an instance.
        dropout: share of the sum's values dropped in training.
    """

    def __init__(self, dim: int, dropout: float) -> None:
        super().__init__()
        self.convolution = GENConv(dim)
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, m: Tensor, neighbors: Tensor) -> Tensor:
        """(N, dim) to (N, dim); neighbours are (K, N)."""
        out: Tensor = self.dropout(m + self.norm(self.convolution(m, neighbors)).relu())
        return out


@register_model("mammil")
class MamMIL(MILModel):
    """MamMIL (Fang et al. 2024): Mamba-2 along the tissue's spanning tree, and a graph layer.

    The bag is read in row order, in depth-first pre- and postorder and breadth-first, each both
    ways. The official model has a second Mamba layer, which its forward pass never reaches: it is
    not built here, and ignored in official checkpoints. Neighbours are exact and the breadth-first
    walk begins at a component's first row, where the official graphs are approximate and the row
    is drawn at random.

    Args:
        dim: width of the projected instance.
        state: numbers each channel of a scan remembers.
        head_dim: channels of a scan that decay alike; divides 2 dim.
        neighbours: nearest patches that each patch sends to.
        dropout: share of the graph layer's values dropped in training.
    """

    order_matters = True
    plan_keys = frozenset({"neighbours", "orders"})
    small_options: ClassVar[Mapping[str, Any]] = {"dim": 16, "state": 4, "head_dim": 16}
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "paper": PAPER,
        "official": Recipe(
            optimizer="radam",
            weight_decay=0.05,
            exempt_vectors=True,
            epochs=250,
            patience=20,
            monitor="val_loss",
        ),
    }

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        dim: Size = 512,
        state: Size = 128,
        head_dim: Size = 64,
        neighbours: Size = 8,
        dropout: Fraction = 0.1,
    ) -> None:
        super().__init__(in_dim, num_classes)
        check_divisor("head_dim", head_dim, 2 * dim, number_name="2 dim")
        self.neighbours = neighbours
        self.project = make_projection(in_dim, dim)
        self.mixer_norm = nn.LayerNorm(dim)
        self.mixer = GraphMamba(dim, state, head_dim)
        self.graph = GraphLayer(dim, dropout)
        self.norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, 128)
        self.head = nn.Linear(dim, num_classes)
        for layer in self.modules():
            if isinstance(layer, nn.Linear) and layer.bias is not None:
                nn.init.zeros_(layer.bias)
        nn.init.trunc_normal_(self.head.weight, std=0.02)

    @property
    def planner(self) -> Planner:
        """The neighbours of each patch, and traversals of the minimum spanning tree."""
        return Planner("tissue_graph", {"neighbours": self.neighbours})

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Scores are the weights of the mean."""
        h = self.project(features)
        mixed = self.mixer(self.mixer_norm(h), _add_reversed_orders(plan["orders"]))
        h = self.norm(h + self.graph(mixed, plan["neighbours"]))
        return classify_mean(h, self.attention, self.head)

    @classmethod
    def reference(cls, state: Mapping[str, Tensor]) -> Reference:
        """The names of the authors' MamMIL2; its layers.1 never ran."""
        ours = RenamedState(state, _map_official_names(), ignored=["layers.1"])
        sizes = read_sizes(ours)
        inner = get_shape(ours, "mixer.scale")[0]
        options = sizes | {
            "state": (get_shape(ours, "mixer.scans.0.convolution.bias")[0] - inner) // 2,
            "head_dim": inner // get_shape(ours, "mixer.scans.0.D")[0],
        }
        return Reference(options, ours)


def _add_reversed_orders(orders: Tensor) -> Tensor:
    """(8, N): row order and the planned ones, each followed by its reverse."""
    rows = torch.arange(orders.shape[1], device=orders.device)
    forwards = torch.cat((rows[None], orders))
    return torch.stack((forwards, forwards.flip(1)), dim=1).flatten(0, 1)


def _map_official_names() -> dict[str, str]:
    """Official names, and ours."""
    names = {"ft_head.0": "project.0", "layers.0.0": "mixer_norm"}
    parts = {"conv1d_list": "convolution", "dt_bias_list": "dt_bias", "A_log_list": "A_log"}
    for part, name in (parts | {"D_list": "D"}).items():
        for scan in range(SCANS):
            names[f"layers.0.1.{part}.{scan}"] = f"mixer.scans.{scan}.{name}"
    names |= {"layers.0.1.norm.weight": "mixer.scale", "layers.0.1": "mixer"}
    convolution = {"aggr_module.t": "temperature", "mlp.4": "mlp.3", "mlp": "mlp"}
    for part, name in convolution.items():
        names[f"ppeg.0.conv.{part}"] = f"graph.convolution.{name}"
    names["ppeg.0.norm"] = "graph.norm"
    return names | {"attention.0": "attention.value", "attention.2": "attention.weight"}
