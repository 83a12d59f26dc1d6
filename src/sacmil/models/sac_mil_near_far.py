"""SAC-MIL that sees near and far: one block in small regions, then one across the slide.

``sac_mil`` is the paper: three levels of regions of 64, after which every instance has met every
other. Here, too, every instance meets every other at a cost linear in their number, in two blocks.
Each multiplies what an instance shows with what it sees around it:

1. **Near**: the region of 8 neighbors, by the paper's shift of channels (Sec. III-D), once.
2. **Far**: the whole slide. Channels are rotated by position, as in the paper (Sec. III-C),
   averaged over the slide, and rotated back. What an instance receives from another depends on the
   distance and the direction between the two, and on nothing else about their positions.

Both blocks add nothing at first: training starts from single instances. Training slides are few
and easily learned by heart, so each step sees them differently: instances change places in their
region, the far block sees some 256 tiles with their positions stretched and turned at random, and
both blocks miss half of their channels. The head is linear, so what each instance adds to each
class is known exactly. These are its scores.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from sacmil.errors import OptionError
from sacmil.models._base import MILModel, Output, Planner
from sacmil.models._checks import Fraction, Size, check_at_least, check_positive
from sacmil.models._registry import register_model
from sacmil.models.sac_mil import shift, unshift
from sacmil.models.sac_mil_local import pool_and_classify, to_output
from sacmil.nn.pooling import EvenPool

GOLDEN_ANGLE = math.pi * (3 - math.sqrt(5))
"""Turns of this angle cover all directions evenly, however many there are."""


class ProductBlock(nn.Module, ABC):
    """Multiplies what an instance shows with what it sees around it, its context c.

    With y the layer norm of x, less its mean over the slide::

        x_i + strength W_o (W_u y_i * c_i)

    Whether two structures are neighbors, or far apart, cannot be known from either of them. A sum
    would have to learn this product; here training starts with it. Without subtracting the mean,
    what all instances share would outweigh how they differ.

    Args:
        dim: width of an instance.
        width: channels of the context, an even number.
        strength: how fast the block learns, compared with the rest of the model.
        dropout: share of channels left out of a training step.
    """

    def __init__(self, dim: int, width: int, *, strength: float, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim, bias=False)
        self.own = nn.Linear(dim, width, bias=False)
        self.value = nn.Linear(dim, width, bias=False)
        self.out = nn.Linear(width, dim)
        self.strength, self.dropout = strength, nn.Dropout(dropout)
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.out.bias)

    @abstractmethod
    def see_context(self, y: Tensor, coords: Tensor) -> Tensor:
        """What each instance sees around it, (N, width)."""

    def forward(self, x: Tensor, coords: Tensor) -> Tensor:
        """x (N, dim), coords (N, 2), both in arranged order."""
        y = center(self.norm(x))
        product = self.own(y) * self.see_context(y, coords)
        weight = self.out.weight * self.strength
        if self.training:  # both channels of a wave are left out together
            weight = weight * self.dropout(torch.ones_like(weight[0].chunk(2)[0])).repeat(2)
        return x.add(nn.functional.linear(product, weight, self.out.bias))


class NearBlock(ProductBlock):
    """Lets every instance meet the others of its region of k neighbors.

    The paper's partial correlation, Eq. (9) to (13): ``c = unshift(W_v shift(y))``.
    """

    def __init__(self, dim: int, width: int, *, k: int, strength: float, dropout: float) -> None:
        super().__init__(dim, width, strength=strength, dropout=dropout)
        self.k = k

    def see_context(self, y: Tensor, coords: Tensor) -> Tensor:
        """A fold of channels from each instance of the region, mixed."""
        return unshift(self.value(shift(y, self.k, 0)), self.k, 0)


class FarBlock(ProductBlock):
    """Lets every instance meet all others of the slide, each by its distance and direction.

    R(p) rotates each pair of channels by w . p, where p is the position of an instance on its slide
    and w the frequency of the pair::

        s   = mean_j R(p_j) W_v y_j           the slide, scaled to a root mean square of one
        c_i = R(p_i)^-1 s                     the slide as seen from instance i

    R(p_i)^-1 R(p_j) = R(p_j - p_i): only differences of positions matter.

    Args:
        dim: width of an instance.
        waves: pairs of channels, each with a frequency of its own.
        longest: wavelength of the slowest wave, as a multiple of the slide's radius.
        shortest: wavelength of the fastest wave, likewise.
        strength: how fast the block learns, compared with the rest of the model.
        dropout: share of waves left out of a training step.
        jitter: standard deviation of a random map of positions in training.
        sample: tiles that a training step takes the mean of, drawn at random; about so many.
    """

    frequencies: Tensor

    def __init__(
        self,
        dim: int,
        *,
        waves: int,
        longest: float,
        shortest: float,
        strength: float,
        dropout: float,
        jitter: float,
        sample: int,
    ) -> None:
        super().__init__(dim, 2 * waves, strength=strength, dropout=dropout)
        self.jitter, self.sample = jitter, sample
        frequencies = make_frequencies(waves, longest, shortest)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def see_context(self, y: Tensor, coords: Tensor) -> Tensor:
        """The mean over the slide, or in training over a sample, as seen from each instance."""
        angles = self.angles(coords)
        cos, sin = angles.cos().to(y.dtype), angles.sin().to(y.dtype)
        value = rotate(self.value(y), cos, sin)
        if self.training:
            share = self.sample / len(y)
            slide = (torch.rand_like(cos[:, :1]) < share).to(value.dtype).mT @ value
        else:
            slide = value.mean(0, keepdim=True)
        return rotate(normalize(slide), cos, -sin)

    def angles(self, coords: Tensor) -> Tensor:
        """(N, 2 waves) in float32, of both channels of each pair: -w . p, then w . p."""
        c = center(coords.double())
        if self.training:
            turn = torch.randn(2, 2, dtype=c.dtype, device=c.device)
            c = torch.addmm(c, c, turn, alpha=self.jitter)
        radius = c.square().sum(1).mean().sqrt()  # the same if any share of the tiles is missing
        p, w = (c / radius.clamp(min=1e-12)).float(), self.frequencies.float()
        return p[:, :1] * w[0] + p[:, 1:] * w[1]


def make_frequencies(waves: int, longest: float, shortest: float) -> Tensor:
    """(2, 2 waves), -w and w of each wave, in radians per radius of the slide.

    Wavelengths are equally far apart as logarithms, and directions cover the circle evenly.
    """
    steps = torch.arange(waves, dtype=torch.float64)
    length = longest * (shortest / longest) ** (steps / max(waves - 1, 1))
    turn = GOLDEN_ANGLE * steps
    w = 2 * math.pi / length * torch.stack([turn.cos(), turn.sin()])
    return torch.cat([-w, w], dim=1).float()


def rotate(h: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate channels t and t + D / 2 of h (N, D), or of one row for all.

    Args:
        h: channels.
        cos: of the angles, (N, D); the two of a pair are equal.
        sin: likewise; the first of a pair is negative.
    """
    return h * cos + h.roll(h.shape[1] // 2, 1) * sin


def center(x: Tensor) -> Tensor:
    """(N, D), less the mean over instances."""
    return x - x.mean(0, keepdim=True)


def normalize(x: Tensor) -> Tensor:
    """Scaled to a mean square of one: lesions are a small share of a slide."""
    scale = torch.rsqrt(x.float().square().mean() + 1e-12)
    return x * scale.to(x.dtype)


def shuffle_regions(order: Tensor, k: int) -> Tensor:
    """Let the instances of each whole region of k change places, in all regions alike."""
    places = torch.rand(k, device=order.device).argsort()
    whole = len(order) // k * k
    regions = order[:whole].reshape(-1, k).index_select(1, places)
    return torch.cat([regions.flatten(), order[whole:]])


@register_model("sac_mil_near_far")
class SACMILNearFar(MILModel):
    """SAC-MIL among direct neighbors and across the slide: sees arrangement at both scales.

    ``class_scores`` add up to the logits, but for the bias and what all classes share. ``scores``
    are those of the predicted class.

    Args:
        dim: width of the hidden layers.
        k: instances per region, and channel folds, of the near block.
        width: channels of the near block's context.
        waves: frequencies of the far block.
        longest: wavelength of its slowest wave, as a multiple of the slide's radius.
        shortest: wavelength of its fastest wave, likewise.
        near_strength: how fast the near block learns, compared with the rest of the model.
        far_strength: how fast the far block learns, likewise.
        dropout: in training, the share of channels that a step leaves out of both blocks.
        shuffle: whether, in training, instances change places in their region.
        jitter: in training, how far the far block's positions are stretched and turned at random.
        sample: in training, about how many tiles, drawn at random, it takes its mean of.
    """

    plan_keys = frozenset({"order"})
    small_options: ClassVar[Mapping[str, Any]] = {"dim": 16, "k": 4, "width": 8, "waves": 4}

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        dim: int = 256,
        k: Annotated[int, partial(check_at_least, minimum=2)] = 8,
        width: Size = 256,
        waves: Size = 64,
        longest: Annotated[float, check_positive] = 16.0,
        shortest: Annotated[float, check_positive] = 1.0,
        near_strength: Annotated[float, check_positive] = 0.2,
        far_strength: Annotated[float, check_positive] = 0.03,
        dropout: Fraction = 0.5,
        shuffle: bool = True,
        jitter: Fraction = 0.3,
        sample: Size = 256,
    ) -> None:
        super().__init__(in_dim, num_classes)
        if k > min(dim, width):
            raise OptionError(
                f"k={k}, dim={dim}, width={width}; a fold needs a channel, expected k of at most "
                "dim and width"
            )
        if width % 2:
            raise OptionError(f"width={width}; expected an even number")
        if shortest > longest:
            raise OptionError(f"shortest={shortest:g}, longest={longest:g}; expected the reverse")
        self.regions, self.shuffle = {"k": k, "centers": "peel", "order": "hilbert"}, shuffle
        self.project = nn.Sequential(nn.Linear(in_dim, dim), nn.ReLU())
        self.near = NearBlock(dim, width, k=k, strength=near_strength, dropout=dropout)
        self.far = FarBlock(
            dim,
            waves=waves,
            longest=longest,
            shortest=shortest,
            strength=far_strength,
            dropout=dropout,
            jitter=jitter,
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
        if self.training and self.shuffle:
            order = shuffle_regions(order, self.near.k)
        h, positions = self.project(features).index_select(0, order), coords.index_select(0, order)
        h = self.far(self.near(h, positions), positions)
        parts = pool_and_classify(h, self.pool, self.head)
        return to_output(*parts, order, are_classes=self.has_classes)
