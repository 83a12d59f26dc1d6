"""TransMIL: Transformer based Correlated Multiple Instance Learning (Shao et al. 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from sacmil.models._base import MILModel, Output, Planner, Reference
from sacmil.models._checks import Fraction, Size, check_divisor
from sacmil.models._recipe import LOOKAHEAD_RADAM, PAPER, Recipe
from sacmil.models._reference import RenamedState, get_shape, read_sizes
from sacmil.models._registry import register_model
from sacmil.nn.layers import make_projection
from sacmil.nn.nystrom import NystromAttention
from sacmil.nn.peg import PEG
from sacmil.nn.pooling import scatter_sum


@register_model("transmil")
class TransMIL(MILModel):
    """TransMIL (Shao et al. 2021): two Nystrom attentions with positions on a square between them.

    Args:
        dim: width of an instance inside the model.
        heads: number of attention heads, a divisor of dim.
        landmarks: number of landmarks of the Nystrom attention; None means dim / 2.
        legacy_slice: keep the rows that nystrom-attention 0.0.9 kept, which the authors used. It
            shifts rows by the padding, so the class token gets the output of a padding row.
        dropout: share of an attention's output dropped in training.
    """

    order_matters = True
    coords_matter = False
    small_options: ClassVar[Mapping[str, Any]] = {"dim": 16, "heads": 2, "landmarks": 4}
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "paper": PAPER,
        "official": LOOKAHEAD_RADAM.replace(epochs=200, accumulate=2),  # and in half precision
    }

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        dim: Size = 512,
        heads: Size = 8,
        landmarks: Size | None = None,
        legacy_slice: bool = False,
        dropout: Fraction = 0.1,
    ) -> None:
        super().__init__(in_dim, num_classes)
        check_divisor("heads", heads, dim)
        attend = partial(
            NystromAttention,
            heads=heads,
            landmarks=landmarks,
            dropout=dropout,
            legacy_slice=legacy_slice,
        )
        self.project = make_projection(in_dim, dim)
        self.class_token = nn.Parameter(torch.randn(1, dim))
        self.layer1, self.layer2 = (_TransMILLayer(dim, attend(dim)) for _ in range(2))
        self.position = PEG(dim, kernels=((7, 7), (5, 5), (3, 3)))
        _init_like_conv2d(self.position)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    @property
    def planner(self) -> Planner:
        """Which instance is in each cell of the square."""
        return Planner("square")

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Algorithm 2; scores are the attention weights of the class token in layer 2."""
        n, cells = features.shape[0], plan["cells"]
        rows = cells.flatten()
        h = self.project(features).index_select(0, rows)
        h, _ = self.layer1(torch.cat([self.class_token, h]))
        square = h[1:].reshape(1, *cells.shape, -1).permute(0, 3, 1, 2)
        h = torch.cat([h[:1], self.position.convolve(square)[0].flatten(1).T])
        h, weights = self.layer2(h)
        # An instance repeated to fill the square is in two cells; its score is their sum.
        slide = self.norm(h[0])
        return Output(self.head(slide), scatter_sum(rows, weights[1:], n), embedding=slide)

    @classmethod
    def reference(cls, state: Mapping[str, Tensor]) -> Reference:
        """The names of the authors' TransMIL."""
        names = {"_fc1.0": "project.0", "_fc2": "head", "cls_token": "class_token"}
        for place, name in enumerate(("proj", "proj1", "proj2")):
            names[f"pos_layer.{name}.weight"] = f"position.weights.{place}"
            names[f"pos_layer.{name}.bias"] = f"position.biases.{place}"
        for layer in ("layer1", "layer2"):
            parts = {"to_qkv": "qkv", "to_out.0": "out", "res_conv": "residual"}
            names |= {f"{layer}.attn.{k}": f"{layer}.attention.{v}" for k, v in parts.items()}
        ours = RenamedState(state, names)
        options = read_sizes(ours)
        get_shape(ours, "class_token")
        options["heads"] = get_shape(ours, "layer1.attention.residual.weight")[0]
        ours["class_token"] = ours["class_token"].flatten(0, -2)
        return Reference(options, ours)


class _TransMILLayer(nn.Module):
    """h + attention(norm(h)), and the attention weights of the first token, the class token."""

    def __init__(self, dim: int, attention: NystromAttention) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.attention = attention

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """h (tokens, dim) to (tokens, dim) and (tokens,)."""
        factors = self.attention.factorize(self.norm(h))
        # Always the row of the class token. With legacy_slice its output is that of a padding row,
        # whose weights say nothing about the slide.
        weights = self.attention.attention_row(factors, 0).mean(0)
        return h + self.attention.combine(factors), weights


def _init_like_conv2d(position: PEG) -> None:
    """Initialize as torch does a Conv2d: uniform within 1 / sqrt(cells of the kernel)."""
    for weight, bias in zip(position.weights, position.biases, strict=True):
        bound = weight[0].numel() ** -0.5
        nn.init.uniform_(weight, -bound, bound)
        nn.init.uniform_(bias, -bound, bound)
