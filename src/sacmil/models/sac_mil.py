"""SAC-MIL: Spatial-Aware Correlated Multiple Instance Learning for Histopathology Whole Slide
Image Classification (Bai et al.): all of it in this file; parts first, the whole last. Only the
division into regions (Sec. III-B, Eq. 2) has its own, torch-free: sacmil.regions."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor, nn

from sacmil.errors import OptionError
from sacmil.models._base import MILModel, Output, Planner
from sacmil.models._options import at_least, choice, finite, flag
from sacmil.models._registry import register_model
from sacmil.nn.correlations import RIVALS, take_alibi
from sacmil.nn.pooling import POOLS
from sacmil.nn.positions import POSITIONS, NoPosition
from sacmil.nn.rotary import frequencies, pairs, polar_angle, rotate, within_half_a_turn
from sacmil.regions import CENTRES, ORDERS

# --- III-C. Polar rotary position embedding ------------------------------------------------------


class PROPE(nn.Module):
    """Rotates each pair of channels by the instance's place on its slide, in polar coordinates."""

    def __init__(self, dim: int, scale: float) -> None:
        super().__init__()
        self.pairs, self.scale = pairs(dim, "prope"), scale

    def forward(self, h: Tensor, coords: Tensor) -> Tensor:
        """h (N, dim) rotated by coords (N, 2): Eq. (8)."""
        return rotate(h, self.angles(coords))

    def angles(self, coords: Tensor) -> Tensor:
        """(N, dim / 2), rho theta_t + alpha within half a turn of zero."""
        c = coords.double()  # float32 angles would be 1e-4 off at a scale of 512
        low, high = c.amin(0), c.amax(0)
        c = (c - low) / torch.where(high > low, high - low, 1.0)  # Eq. (6); a constant axis gives 0
        rho = torch.linalg.vector_norm(c, dim=1, keepdim=True) * self.scale  # Eq. (7)
        alpha = polar_angle(c)
        theta = frequencies(self.pairs, 10000.0, c.device)  # Eq. (4)
        return within_half_a_turn(rho * theta + alpha)


# --- III-D. SAC block ----------------------------------------------------------------------------


def shift(x: Tensor, k: int, level: int, tail: str = "absorb") -> Tensor:
    """Eq. (9), (10): channel fold f moves f k^level instances onward in its ring."""
    return _take(x, _sources(x, k, level, tail, step=-(k**level)))


def unshift(x: Tensor, k: int, level: int, tail: str = "absorb") -> Tensor:
    """Eq. (12), (13): every fold back to where it came from."""
    return _take(x, _sources(x, k, level, tail, step=k**level))


def _sources(x: Tensor, k: int, level: int, tail: str, step: int) -> Tensor:
    """(N, k), which instance each fold is taken from.

    Rings have k^(level+1) instances; the last absorbs the remainder (or, "split", is it), a short
    bag is one ring. The length enters by tensor arithmetic only: one export serves all lengths.
    """
    n, ring = x.shape[0], k ** (level + 1)
    i = torch.arange(n, device=x.device)
    last = (n // ring - 1 if tail == "absorb" else n // ring) * ring
    start: Tensor = ((i // ring) * ring).clamp(max=last).clamp(min=0)
    left: Tensor = n - start
    size = torch.where(left < (2 * ring if tail == "absorb" else ring), left, ring)
    moves = torch.arange(k, device=x.device) * step
    return start[:, None] + (moves + (i - start)[:, None]).remainder(size[:, None])


def _take(x: Tensor, sources: Tensor) -> Tensor:
    """Fold f of row i from row sources[i, f]; folds are near-equal, the first ones larger."""
    (n, dim), k = x.shape, sources.shape[1]
    if dim % k == 0 and x.is_cuda:  # where gathering short rows is fifteen times as slow
        folds = x.reshape(n, k, dim // k)
        return folds.gather(0, sources[:, :, None].expand_as(folds)).reshape(n, dim)
    if dim % k == 0:  # rows of one fold each: one fast row gather instead of one by channel
        rows = (sources * k + torch.arange(k, device=x.device)).flatten()
        return x.reshape(n * k, dim // k).index_select(0, rows).reshape(n, dim)
    fold_of_channel = torch.tensor([f for f in range(k) for _ in range((dim - f - 1) // k + 1)])
    return x.gather(0, sources[:, fold_of_channel.to(x.device)])


class SACBlock(nn.Module):
    """Partial, then full correlation: every instance of a ring meets every other."""

    def __init__(self, dim: int, k: int, level: int, mlp: str, tail: str, *, residual: bool):
        super().__init__()
        self.decay: nn.Module = nn.Identity()  # ALiBi puts a factor per channel here
        self.k, self.level, self.residual, self.tail = k, level, residual, tail
        self.norm = nn.LayerNorm(dim)
        self.w1 = _channel_mlp(dim, mlp)
        self.act = nn.GELU() if mlp == "linear" else nn.Identity()
        self.w2 = _channel_mlp(dim, mlp)

    def forward(self, x: Tensor) -> Tensor:
        """x (N, dim), in arranged order."""
        h = self.decay(shift(self.norm(x), self.k, self.level, self.tail))
        h = self.act(self.w1(h))  # Eq. (11)
        h = self.w2(unshift(h, self.k, self.level, self.tail))  # Eq. (14)
        return x.add(h) if self.residual else h


def _channel_mlp(dim: int, mlp: str) -> nn.Module:
    if mlp == "linear":
        return nn.Linear(dim, dim)
    return nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))


# --- III. SAC-MIL --------------------------------------------------------------------------------

ACTIVATIONS = {"none": nn.Identity, "relu": nn.ReLU, "gelu": nn.GELU}


@register_model("sac_mil")
class SACMIL(MILModel):
    """SAC-MIL (Bai et al.): project, place, correlate, pool, classify.

    Args:
        dim: width inside.
        k: instances per region, and channel folds.
        depth: blocks; block l correlates rings of k^(l+1) instances.
        position: how places enter: prope, none, sinusoidal, alibi, rope, rope2d, peg or ppeg.
        correlation: how instances meet: sac, chordmixer, cyclemlp, nystrom or attention.
        scale: the paper's lambda, the largest radius along an axis.
        centres: how regions are found: fps, fps_free, peel or kd (see sacmil.regions).
        region_order: how regions follow each other: fps or hilbert.
        mlp: W1 and W2 as single layers with a GELU between (linear), or two layers each (mlp).
        residual: whether a block adds to its input.
        pool: how instances become one vector: mean, max or attention.
        tail: whether the last ring absorbs the remainder, or the remainder is split off.
        activation: after the projection: relu, gelu or none.
    """

    plan_keys = frozenset({"order"})

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        dim: int = 512,
        k: int = 64,
        depth: int = 3,
        position: str = "prope",
        correlation: str = "sac",
        scale: float = 512.0,
        centres: str = "fps",
        region_order: str = "fps",
        mlp: str = "linear",
        residual: bool = True,
        pool: str = "mean",
        tail: str = "absorb",
        activation: str = "relu",
    ) -> None:
        super().__init__(in_dim, num_classes)
        if at_least("k", k, 2) > at_least("dim", dim, 2):
            raise OptionError(f"k={k}, dim={dim}; a fold needs a channel, expected k <= dim")
        if at_least("depth", depth, 0) * math.log2(k) > 60:
            raise OptionError(f"depth={depth}, k={k}; expected rings of at most 2^60 instances")
        order = choice("region_order", region_order, ORDERS)
        self.regions = {"k": k, "centres": choice("centres", centres, CENTRES), "order": order}
        act = ACTIVATIONS[choice("activation", activation, ACTIVATIONS)]
        choice("mlp", mlp, ("linear", "mlp"))
        choice("tail", tail, ("absorb", "split"))
        flag("residual", residual)
        self.project = nn.Sequential(nn.Linear(in_dim, dim), act())
        places = POSITIONS | {"prope": partial(PROPE, scale=finite("scale", scale))}
        place = places[choice("position", position, places)]
        rival = RIVALS.get(choice("correlation", correlation, ("sac", *RIVALS)))
        sac = partial(SACBlock, mlp=mlp, tail=tail, residual=residual)
        blocks = [rival(dim) if rival else sac(dim, k, level) for level in range(depth)]
        # ALiBi acts inside the blocks where they see pairs of instances, else before them.
        inside = position == "alibi" and take_alibi(blocks, dim, k)
        self.position = NoPosition(dim) if inside else place(dim)
        self.blocks = nn.Sequential(*blocks)
        self.pool = POOLS[choice("pool", pool, POOLS)](dim)
        self.head = nn.Linear(dim, num_classes)

    @property
    def planner(self) -> Planner:
        """The arrangement into regions, Sec. III-B."""
        return Planner("arrangement", self.regions)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Sec. III: h (N, dim) stands in arranged order until the scores go back."""
        order = plan["order"]
        h = self.project(features).index_select(0, order)
        h = self.position(h, coords.index_select(0, order))
        h = self.blocks(h)
        norms = torch.linalg.vector_norm(h, dim=1)  # the paper's score of an instance
        scores = torch.zeros_like(norms).scatter(0, order, norms)
        return Output(self.head(self.pool(h)), scores)
