"""SAC-MIL: Spatial-Aware Correlated Multiple Instance Learning for Histopathology Whole Slide
Image Classification (Bai et al.): all of it in this file; parts first, the whole last. Only the
division into regions (Sec. III-B, Eq. 2) has its own, torch-free: sacmil.regions."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from sacmil.errors import OptionError
from sacmil.models._base import MILModel, Output, Planner
from sacmil.models._checks import Count, check_at_least, check_finite, one_of
from sacmil.models._registry import register_model
from sacmil.nn.correlations import CORRELATION_BLOCKS, insert_alibi
from sacmil.nn.layers import ACTIVATIONS, embed_in_order
from sacmil.nn.pooling import POOLS
from sacmil.nn.positions import POSITIONS, count_pairs, frequencies, polar_angle, rotate, wrap_angle
from sacmil.regions import CENTERS, ORDERS

# --- III-C. Polar rotary position embedding ------------------------------------------------------


class PROPE(nn.Module):
    """Rotates each pair of channels by the instance's place on its slide, in polar coordinates."""

    def __init__(self, dim: int, scale: float) -> None:
        super().__init__()
        self.pairs, self.scale = count_pairs(dim, "prope"), float(scale)

    def forward(self, h: Tensor, coords: Tensor) -> Tensor:
        """h (N, dim) rotated by coords (N, 2): Eq. (8)."""
        return rotate(h, self.angles(coords))

    def angles(self, coords: Tensor) -> Tensor:
        """(N, dim / 2), rho theta_t + alpha within half a turn of zero."""
        c = coords.double()  # float32 angles would be 1e-4 off at a scale of 512
        low, high = c.amin(0), c.amax(0)
        c = (c - low) / torch.where(high > low, high - low, 1.0)  # Eq. (6); a constant axis gives 0
        rho = torch.linalg.vector_norm(c, dim=1, keepdim=True) * self.scale  # Eq. (7)
        theta = frequencies(self.pairs, 10000.0, c.device)  # Eq. (4)
        return wrap_angle(rho * theta + polar_angle(c))


# --- III-D. SAC block ----------------------------------------------------------------------------


def shift(x: Tensor, k: int, level: int, tail: str = "absorb") -> Tensor:
    """Eq. (9), (10): channel fold f moves f k^level instances onward in its ring."""
    return _shift_folds(x, k, level, tail, step=k**level)


def unshift(x: Tensor, k: int, level: int, tail: str = "absorb") -> Tensor:
    """Eq. (12), (13): every fold back to where it came from."""
    return _shift_folds(x, k, level, tail, step=-(k**level))


def _shift_folds(x: Tensor, k: int, level: int, tail: str, step: int) -> Tensor:
    """Fold f of each row to the row f steps onward in its ring."""
    n, dim = x.shape
    start, within, size = _locate_rings(n, k ** (level + 1), tail, x.device)
    folds = torch.arange(k, device=x.device)
    if dim % k == 0 and not x.is_cuda:  # put rows of one fold each: quick here and in onnxruntime
        rows = start * k + (within * k + folds * (step * k + 1)).remainder(size * k)
        by_row = x.reshape(n * k, dim // k)
        return torch.empty_like(by_row).index_copy_(0, rows.flatten(), by_row).reshape(n, dim)
    sources = start + (within - folds * step).remainder(size)
    if dim % k == 0:  # take by fold: rows of one fold would be fifteen times as slow on a GPU
        by_fold = x.reshape(n, k, dim // k)
        return by_fold.gather(0, sources[:, :, None].expand_as(by_fold)).reshape(n, dim)
    parts = enumerate(x.tensor_split(k, dim=1))  # first ones may be larger
    return torch.cat([part.gather(0, sources[:, f, None].expand_as(part)) for f, part in parts], 1)


def _locate_rings(
    n: int, ring: int, tail: str, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """(N, 1) each: where a ring begins, the place there, its size; the last takes the remainder."""
    i, absorbed = torch.arange(n, device=device)[:, None], 1 if tail == "absorb" else 0
    start = (i // ring * ring).clamp(max=(n // ring - absorbed) * ring).clamp(min=0)
    return start, i - start, torch.where(n - start < (1 + absorbed) * ring, n - start, ring)


class SACBlock(nn.Module):
    """Partial, then full correlation: every instance of a ring meets every other."""

    def __init__(self, dim: int, k: int, level: int, mlp: str, tail: str, *, residual: bool):
        super().__init__()
        self.decay: nn.Module = nn.Identity()  # ALiBi puts a factor per channel here
        self.k, self.level, self.residual, self.tail = k, level, residual, tail
        self.norm = nn.LayerNorm(dim)
        self.w1, self.w2 = MLPS[mlp](dim), MLPS[mlp](dim)
        self.act = nn.GELU() if mlp == "linear" else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """x (N, dim), in arranged order."""
        h = self.decay(shift(self.norm(x), self.k, self.level, self.tail))
        h = self.act(self.w1(h))  # Eq. (11)
        h = self.w2(unshift(h, self.k, self.level, self.tail))  # Eq. (14)
        return x.add(h) if self.residual else h


MLPS: dict[str, Callable[[int], nn.Module]] = {
    "linear": lambda dim: nn.Linear(dim, dim),
    "mlp": lambda dim: nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim)),
}

# --- III. SAC-MIL --------------------------------------------------------------------------------


@register_model("sac_mil")
class SACMIL(MILModel):
    """SAC-MIL (Bai et al.): project, position, correlate, pool, classify.

    Args:
        dim: width of the hidden layers.
        k: instances per region, and channel folds.
        depth: blocks; block l correlates rings of k^(l+1) instances.
        position: encoding: prope, none, sinusoidal, alibi, rope, rope2d, peg, ppeg or soft_peg.
        correlation: how instances meet: sac, chordmixer, cyclemlp, nystrom or attention.
        scale: the paper's lambda, the largest radius along an axis.
        centers: how regions are found: fps, fps_free, peel or kd (see sacmil.regions).
        region_order: how regions follow each other: fps or hilbert.
        mlp: W1 and W2 as single layers with a GELU between (linear), or two layers each (mlp).
        residual: whether a block adds to its input.
        pool: how instances become one vector: mean, max, attention or even.
        tail: whether the last ring absorbs the remainder, or the remainder is split off.
        activation: after the projection: relu, gelu or none.
    """

    plan_keys = frozenset({"order"})
    small_options: ClassVar[Mapping[str, Any]] = {"dim": 16, "k": 4}

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        dim: Annotated[int, partial(check_at_least, minimum=2)] = 512,
        k: Annotated[int, partial(check_at_least, minimum=2)] = 64,
        depth: Count = 3,
        position: Annotated[str, one_of(("prope", *POSITIONS))] = "prope",
        correlation: Annotated[str, one_of(("sac", *CORRELATION_BLOCKS))] = "sac",
        scale: Annotated[float, check_finite] = 512.0,
        centers: Annotated[str, one_of(CENTERS)] = "fps",
        region_order: Annotated[str, one_of(ORDERS)] = "fps",
        mlp: Annotated[str, one_of(MLPS)] = "linear",
        residual: bool = True,
        pool: Annotated[str, one_of(POOLS)] = "mean",
        tail: Annotated[str, one_of(("absorb", "split"))] = "absorb",
        activation: Annotated[str, one_of(ACTIVATIONS)] = "relu",
    ) -> None:
        super().__init__(in_dim, num_classes)
        if k > dim:
            raise OptionError(f"k={k}, dim={dim}; a fold needs a channel, expected k <= dim")
        if (depth + 1) * math.log2(k) > 62:
            raise OptionError(f"depth={depth}, k={k}; expected k^(depth + 1) of at most 2^62")
        self.regions = {"k": k, "centers": centers, "order": region_order}
        self.project = nn.Sequential(nn.Linear(in_dim, dim), ACTIVATIONS[activation]())
        sac = partial(SACBlock, dim, k, mlp=mlp, tail=tail, residual=residual)
        other = CORRELATION_BLOCKS.get(correlation)
        blocks = [other(dim) if other else sac(level) for level in range(depth)]
        inside = position == "alibi" and insert_alibi(blocks, dim, k)  # if they see pairs
        positions = POSITIONS | {"prope": partial(PROPE, scale=scale)}
        self.position = positions["none" if inside else position](dim)
        self.blocks = nn.Sequential(*blocks)
        self.pool = POOLS[pool](dim)
        self.head = nn.Linear(dim, num_classes)

    @property
    def planner(self) -> Planner:
        """Sec. III-B."""
        return Planner("arrangement", self.regions)

    def embed_instances(self, features: Tensor, coords: Tensor, order: Tensor) -> Tensor:
        """(N, dim), in arranged order."""
        return embed_in_order(self.project, self.position, features, coords, order)

    def correlate_and_pool(self, h: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
        """The slide's vector (dim,) and the score of each instance (N,), in the bag's order."""
        h = self.blocks(h)
        norms = torch.linalg.vector_norm(h, dim=1)  # the paper's score of an instance
        return self.pool(h), torch.zeros_like(norms).scatter(0, order, norms)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Sec. III: h (N, dim) stands in arranged order until the scores go back."""
        h = self.embed_instances(features, coords, order := plan["order"])
        slide, scores = self.correlate_and_pool(h, order)
        return Output(self.head(slide), scores, embedding=slide)
