"""SAC-MIL that sees near and far: the paper's block in small regions, then one across the slide.

``sac_mil`` is the paper: three levels of regions of 64, after which every instance has met every
other. Here, too, every instance meets every other at a cost linear in their number, in two steps:

1. **Near**: the paper's SAC block, once, in regions of 8 (Sec. III-D), as in ``sac_mil_local``.
2. **Far**: one block across the slide. A SAC block moves channels to other instances, mixes, and
   moves them back. This block rotates channels by position, as the paper does (Sec. III-C), takes
   the mean over the slide, and rotates it back. What an instance receives from another depends on
   the distance and the direction between the two, and on nothing else about their positions.

Both blocks add nothing at first: training starts from single instances. The layout of a slide is
easily learned by heart, so in training the far block sees some 256 tiles, their positions stretched
and turned at random, through half of its waves. The head is linear, so what each instance adds to
each class is known exactly. These are its scores.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from sacmil.errors import OptionError
from sacmil.models._base import MILModel, Output, Planner
from sacmil.models._checks import Fraction, Size, check_at_least, check_positive
from sacmil.models._registry import register_model
from sacmil.models.sac_mil import SACBlock
from sacmil.models.sac_mil_local import pool_and_classify, to_output
from sacmil.nn.pooling import EvenPool

GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))
"""Turns of this angle cover all directions evenly, however many there are."""


class FarBlock(nn.Module):
    """Lets every instance meet all others of the slide, each by its distance and direction.

    R rotates each pair of channels by w . p, where p is the position of an instance on its slide
    and w the frequency of the pair. With y the layer norm of x, less its mean over the slide::

        s   = mean_j R(p_j) W_v y_j           the slide, scaled to a root mean square of strength
        c_i = R(p_i)^-1 s                     the slide as seen from instance i
        x_i + W_o (W_u y_i * c_i)

    R(p_i)^-1 R(p_j) = R(p_j - p_i): only differences of positions matter. Without the mean the
    shape of the tissue would outweigh what stands on it.

    Args:
        dim: width of an instance.
        waves: pairs of channels, each with a frequency of its own.
        longest: wavelength of the slowest wave, as a multiple of the slide's radius.
        shortest: wavelength of the fastest wave, likewise.
        strength: how fast the block learns, compared with the near one.
        jitter: standard deviation of a random map of positions in training.
        dropout: share of waves left out of a training step.
        sample: tiles that a training step takes the mean of, drawn at random; about so many.
    """

    def __init__(
        self,
        dim: int,
        *,
        waves: int,
        longest: float,
        shortest: float,
        strength: float,
        jitter: float,
        dropout: float,
        sample: int,
    ) -> None:
        super().__init__()
        self.waves, self.longest, self.shortest = waves, longest, shortest
        self.strength, self.jitter, self.sample = strength, jitter, sample
        self.norm = nn.LayerNorm(dim, bias=False)
        self.own = nn.Linear(dim, 2 * waves, bias=False)
        self.value = nn.Linear(dim, 2 * waves, bias=False)
        self.out = nn.Linear(2 * waves, dim)
        self.dropout = nn.Dropout(dropout)
        set_to_zero(self.out)

    def forward(self, x: Tensor, coords: Tensor) -> Tensor:
        """x (N, dim), coords (N, 2) in the same order."""
        y, angles = center(self.norm(x)), self.angles(coords)
        cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
        value = rotate(self.value(y), cos, sin)
        if self.training:
            value = value * (torch.rand_like(cos[:, :1]) < self.sample / len(x))
        slide = normalize(value.mean(0, keepdim=True)) * self.strength
        if self.training:
            slide = slide * self.dropout(torch.ones_like(cos[:1])).repeat(1, 2)
        return x.add(self.out(self.own(y) * rotate(slide, cos, -sin)))

    def angles(self, coords: Tensor) -> Tensor:
        """(N, waves), w . p in float32."""
        c = center(coords.double())
        if self.training and self.jitter:
            c = c + self.jitter * c @ torch.randn(2, 2, dtype=c.dtype, device=c.device)
        radius = c.square().sum(1).mean().sqrt()  # the same if any share of the tiles is missing
        p = (c / torch.where(radius > 0, radius, 1.0)).float()
        steps = torch.arange(self.waves, dtype=torch.float64, device=c.device)
        ratio = (self.longest / self.shortest) ** (1 / max(self.waves - 1, 1))
        w = 2 * math.pi / self.longest * torch.pow(ratio, steps)
        turn = GOLDEN_ANGLE * steps
        return p[:, :1] * (w * turn.cos()).float() + p[:, 1:] * (w * turn.sin()).float()


def rotate(h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate channels t and t + D / 2 of h (N, D), or of one row for all, by (N, D / 2) angles."""
    a, b = h.chunk(2, dim=1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], dim=1)


def center(x: Tensor) -> Tensor:
    """(N, D), less the mean over instances."""
    return x - x.mean(0, keepdim=True)


def normalize(x: Tensor) -> Tensor:
    """Scaled to a mean square of one: lesions are a small share of a slide."""
    scale = torch.rsqrt(x.float().square().mean() + 1e-12)
    return x * scale.to(x.dtype)


def set_to_zero(layer: nn.Module) -> None:
    """Let a block add nothing at first."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)


@register_model("sac_mil_near_far")
class SACMILNearFar(MILModel):
    """SAC-MIL among direct neighbors and across the slide: sees arrangement at both scales.

    ``class_scores`` add up to the logits, but for the bias and what all classes share. ``scores``
    are those of the predicted class.

    Args:
        dim: width of the hidden layers.
        k: instances per region, and channel folds, of the near block.
        waves: frequencies of the far block.
        longest: wavelength of its slowest wave, as a multiple of the slide's radius.
        shortest: wavelength of its fastest wave, likewise.
        strength: how fast it learns, compared with the near block.
        jitter: in training, how far its positions are stretched, sheared and turned at random.
        dropout: in training, the share of its waves that are left out of a step.
        sample: in training, about how many tiles, drawn at random, it takes its mean of.
    """

    plan_keys = frozenset({"order"})
    small_options: ClassVar[Mapping[str, Any]] = {"dim": 16, "k": 4, "waves": 4}

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        dim: int = 256,
        k: Annotated[int, partial(check_at_least, minimum=2)] = 8,
        waves: Size = 64,
        longest: Annotated[float, check_positive] = 16.0,
        shortest: Annotated[float, check_positive] = 1.0,
        strength: Annotated[float, check_positive] = 0.03,
        jitter: Fraction = 0.3,
        dropout: Fraction = 0.5,
        sample: Size = 256,
    ) -> None:
        super().__init__(in_dim, num_classes)
        if k > dim:
            raise OptionError(f"k={k}, dim={dim}; a fold needs a channel, expected k <= dim")
        if shortest > longest:
            raise OptionError(f"shortest={shortest:g}, longest={longest:g}; expected the reverse")
        self.regions = {"k": k, "centers": "peel", "order": "hilbert"}
        self.project = nn.Sequential(nn.Linear(in_dim, dim), nn.ReLU())
        self.near = SACBlock(dim, k, 0, "linear", "absorb", residual=True)
        set_to_zero(self.near.w2)
        self.far = FarBlock(
            dim,
            waves=waves,
            longest=longest,
            shortest=shortest,
            strength=strength,
            jitter=jitter,
            dropout=dropout,
            sample=sample,
        )
        self.pool = EvenPool(dim)
        self.head = nn.Linear(dim, num_classes)

    @property
    def planner(self) -> Planner:
        """Regions of k neighbors (Sec. III-B)."""
        return Planner("arrangement", self.regions)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """h (N, dim) stands in arranged order until the scores go back."""
        order = plan["order"]
        h = self.project(features).index_select(0, order)
        h = self.far(self.near(h), coords.index_select(0, order))
        return to_output(*pool_and_classify(h, self.pool, self.head), order)
