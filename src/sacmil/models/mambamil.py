"""MambaMIL: Long Sequence Modeling with Sequence Reordering in CPath (Yang, Wang, Chen 2024)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sacmil.models._base import MILModel, Output, Reference, classify_mean
from sacmil.models._checks import Fraction, Size, one_of
from sacmil.models._recipe import PAPER, Recipe
from sacmil.models._reference import RenamedState, get_shape, read_sizes
from sacmil.models._registry import register_model
from sacmil.nn.layers import init_linear_, make_projection
from sacmil.nn.pooling import Attention
from sacmil.nn.state_space import CausalConvolution, selective_scan

KINDS = ("srmamba", "bimamba", "mamba")


class MambaDirection(nn.Module):
    """One way through the sequence: convolution, selective scan, gate.

    Args:
        dim: channels of the scan.
        state: numbers each channel remembers.
        rank: width from which the step sizes are made.
    """

    def __init__(self, dim: int, state: int, rank: int) -> None:
        super().__init__()
        self.sizes = [rank, state, state]
        self.convolution = CausalConvolution(dim)
        self.select = nn.Linear(dim, sum(self.sizes), bias=False)
        self.step = nn.Linear(rank, dim)
        self.A_log = nn.Parameter(torch.arange(1.0, state + 1).log().repeat(dim, 1))
        self.D = nn.Parameter(torch.ones(dim))

    def forward(self, xz: Tensor) -> Tensor:
        """(N, 2 dim), input and gate side by side, to (N, dim)."""
        x, z = xz.chunk(2, dim=1)
        u = F.silu(self.convolution(x))
        r, B, C = self.select(u).split(self.sizes, dim=1)
        step = self.step(r)
        dt = F.softplus(step.to(torch.promote_types(step.dtype, torch.float32)))
        y = selective_scan(u, dt, -self.A_log.exp(), B, C).to(u.dtype)
        return torch.addcmul(y, self.D, u) * F.silu(z)


class MambaMixer(nn.Module):
    """Mamba in one or two directions, which share the layers before and after.

    Args:
        dim: width of an instance.
        kind: one of KINDS.
        rate: how many strands the reordering of srmamba makes.
        state: numbers each channel of a scan remembers.
        expand: channels of a scan per width of an instance.
    """

    def __init__(self, dim: int, kind: str, rate: int, state: int, expand: int) -> None:
        super().__init__()
        self.kind, self.rate = kind, rate
        sizes = (expand * dim, state, math.ceil(dim / 16))
        self.in_proj = nn.Linear(dim, 2 * expand * dim, bias=False)
        self.straight = MambaDirection(*sizes)
        self.turned = None if kind == "mamba" else MambaDirection(*sizes)
        self.out_proj = nn.Linear(expand * dim, dim, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        """(N, dim) to (N, dim)."""
        xz = self.in_proj(h)
        y = self.straight(xz)
        if self.turned is not None:
            y = y + self._restore_order(self.turned(self._reorder(xz)), y.shape[0])
        out: Tensor = self.out_proj(y)
        return out

    def _reorder(self, xz: Tensor) -> Tensor:
        if self.kind == "bimamba":
            return xz.flip(0)
        # Zeros fill the last round. They are instances like others: the convolution's bias makes
        # something of them, and the scan remembers it.
        n = xz.shape[0]
        missing = (n + self.rate - 1) // self.rate * self.rate - n
        padded = torch.cat((xz, xz.new_zeros(missing, xz.shape[1])))
        return padded.view(-1, self.rate, xz.shape[1]).transpose(0, 1).flatten(0, 1)

    def _restore_order(self, y: Tensor, length: int) -> Tensor:
        if self.kind == "bimamba":
            return y.flip(0)
        return y.view(self.rate, -1, y.shape[1]).transpose(0, 1).flatten(0, 1)[:length]


class MambaLayer(nn.Module):
    """h + mixer(norm(h)); arguments as of Mixer."""

    def __init__(self, dim: int, kind: str, rate: int, state: int, expand: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.mixer = MambaMixer(dim, kind, rate, state, expand)

    def forward(self, h: Tensor) -> Tensor:
        """(N, dim) to (N, dim)."""
        out: Tensor = h + self.mixer(self.norm(h))
        return out


@register_model("mambamil")
class MambaMIL(MILModel):
    """MambaMIL (Yang et al. 2024): two Mamba layers read the bag in row order and reordered.

    As in the official code every linear layer starts xavier normal without bias, that of the step
    sizes too: they begin around 0.7 instead of Mamba's 0.001 to 0.1.

    Args:
        dim: width of the projected instance.
        depth: Mamba layers.
        kind: reordered (srmamba), reversed (bimamba) or no second direction (mamba).
        rate: the reordering lists every rate-th instance, then begins again one further; 5 in the
            released scripts, 10 where the official code is given none.
        state: numbers each channel of a scan remembers.
        expand: channels of a scan per width of an instance.
        dropout: share of the projected values dropped in training.
    """

    order_matters = True
    coords_matter = False
    small_options: ClassVar[Mapping[str, Any]] = {"dim": 16, "state": 4, "depth": 1}
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "paper": PAPER,
        # Without dropout for subtyping, 0.25 for survival; balanced sampling for lung only.
        "official": Recipe(
            lr=2e-4, weight_decay=1e-5, epochs=200, patience=20, min_epochs=50, monitor="val_loss"
        ),
    }

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        dim: Size = 512,
        depth: Size = 2,
        kind: Annotated[str, one_of(KINDS)] = "srmamba",
        rate: Size = 5,
        state: Size = 16,
        expand: Size = 2,
        dropout: Fraction = 0.0,
    ) -> None:
        super().__init__(in_dim, num_classes)
        self.project = make_projection(in_dim, dim, activation="gelu", dropout=dropout)
        self.layers = nn.Sequential(
            *(MambaLayer(dim, kind, rate, state, expand) for _ in range(depth))
        )
        self.norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, 128)
        self.head = nn.Linear(dim, num_classes)
        init_linear_(self)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Scores are the weights of the mean."""
        h = self.norm(self.layers(self.project(features)))
        return classify_mean(h, self.attention, self.head)

    @classmethod
    def reference(cls, state: Mapping[str, Tensor]) -> Reference:
        """The names of the authors' MambaMIL; a second direction is taken for srmamba's."""
        depth = len({key.split(".")[1] for key in state if key.startswith("layers.")})
        ours = RenamedState(state, _map_official_names(depth))
        sizes = read_sizes(ours)
        second = any(key.startswith("layers.0.mixer.turned.") for key in ours)
        inner, remembered = get_shape(ours, "layers.0.mixer.straight.A_log")
        options = sizes | {"depth": depth, "state": remembered, "expand": inner // sizes["dim"]}
        if not second:
            return Reference(options | {"kind": "mamba"}, ours)
        return Reference(options, ours, {"kind": "srmamba"})


def _map_official_names(depth: int) -> dict[str, str]:
    """Official names of a model with so many layers, and ours."""
    names = {"_fc1.0": "project.0", "classifier": "head"}
    names |= {"attention.0": "attention.value", "attention.2": "attention.weight"}
    parts = {"conv1d": "convolution", "x_proj": "select", "dt_proj": "step", "D": "D"}
    for layer in range(depth):
        mixer, own = f"layers.{layer}.1", f"layers.{layer}.mixer"
        for part, name in parts.items():
            names[f"{mixer}.{part}"] = f"{own}.straight.{name}"
            names[f"{mixer}.{part}_b"] = f"{own}.turned.{name}"
        names[f"{mixer}.A_log"] = f"{own}.straight.A_log"
        names[f"{mixer}.A_b_log"] = f"{own}.turned.A_log"
        names[mixer] = own  # the two projections, whose names stay
        names[f"layers.{layer}.0"] = f"layers.{layer}.norm"
    return names
