"""Norma: A Noise Robust Memory-Augmented Framework for slide classification (Bai et al. 2024).

As the released code runs it, which builds a contrastive loss but never trains with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sacmil.models._base import MILModel, Output, Reference, average_logits, classification_loss
from sacmil.models._checks import Fraction, Size, check_divisor
from sacmil.models._recipe import LOOKAHEAD_RADAM, PAPER, Recipe
from sacmil.models._reference import RenamedState, get_shape, read_sizes
from sacmil.models._registry import register_model
from sacmil.nn.layers import make_projection, recompute_in_backward
from sacmil.nn.pooling import scatter_sum
from sacmil.tasks import Task


@register_model("norma")
class Norma(MILModel):
    """Norma (Bai et al. 2024): a Transformer reads segment after segment, with a memory.

    Every visit of a segment predicts the slide; the slide's probabilities are their mean.

    Args:
        dim: width of an instance inside the model.
        segment: instances read at a time; the last segment may be shorter.
        memory: class tokens of earlier visits that are kept; 43 is official for CAMELYON16, the
            segments of its largest slide.
        passes: times the slide is read, the memory carried on.
        heads: attentions side by side, a divisor of dim.
        dropout: share dropped in training of attention weights and of what an attention gives.
        shuffle: whether training reads instances in random order.
    """

    order_matters = True
    coords_matter = False
    small_options: ClassVar[Mapping[str, Any]] = {"dim": 16, "heads": 2, "segment": 40}
    needs_classes = "it averages the probabilities of classes over its visits to a slide"
    not_exportable = (
        "it reads segment after segment with a memory that grows, and the loops of ONNX need "
        "every turn to have the same sizes"
    )
    recipes: ClassVar[Mapping[str, Recipe]] = {
        "paper": PAPER,
        # And in half precision. Eight slides are read in lock-step there, every slide as long as
        # the longest by starting again, and a step is taken after each of two passes.
        "official": LOOKAHEAD_RADAM.replace(epochs=50, accumulate=8),
    }

    def __init__(
        self,
        *,
        in_dim: int,
        num_classes: int,
        dim: Size = 512,
        segment: Size = 1024,
        memory: Size = 43,
        passes: Size = 2,
        heads: Size = 8,
        dropout: Fraction = 0.1,
        shuffle: bool = True,
    ) -> None:
        super().__init__(in_dim, num_classes)
        check_divisor("heads", heads, dim)
        self.segment, self.memory, self.passes = segment, memory, passes
        self.shuffle = shuffle
        self.project = make_projection(in_dim, dim)
        self.class_token = nn.Parameter(torch.randn(1, dim))
        self.layer1 = _NormaLayer(dim, heads, dropout)
        self.position = PEG1D(dim)
        self.layer2 = _NormaLayer(dim, heads, dropout)
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, num_classes)

    def aggregate(self, features: Tensor, coords: Tensor, plan: dict[str, Tensor]) -> Output:
        """Scores are what the class token takes from each instance, the mean of its visits."""
        order = self._choose_order(features)
        segments = self.project(features).index_select(0, order).split(self.segment)
        memory = self.class_token[:0].detach()
        tokens, weights = [], []
        for segment in segments * self.passes:
            # 20,000 instances are 40 visits, and each would keep its matrix of attention weights
            # and the mask of those dropped.
            token, taken = recompute_in_backward(self._read_segment, segment, memory)
            memory = torch.cat([memory, token.detach()])[-self.memory :]
            tokens.append(token)
            weights.append(taken)
        visits = self.norm(torch.cat(tokens))
        logits = self.head(visits)  # (visits, C)
        read = torch.cat(weights).reshape(self.passes, -1).mean(0)
        scores = torch.zeros_like(read).index_copy(0, order, read)
        extras = {"segments": logits, "memory": memory}
        return Output(average_logits(logits), scores, extras=extras, embedding=visits.mean(0))

    def losses(
        self, output: Output, target: Tensor | int, task: Task | None = None
    ) -> dict[str, Tensor]:
        """Return the mean over the visits: each one predicts the slide's class."""
        assert output.extras is not None
        return {"all": classification_loss(output.extras["segments"], target)}

    def _choose_order(self, features: Tensor) -> Tensor:
        number = torch.randperm if self.training and self.shuffle else torch.arange
        return number(features.shape[0], device=features.device)

    def _read_segment(self, segment: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """(1, dim), the class token, and (segment,), what it took from each instance."""
        h = torch.cat([segment, memory])
        rows = fill_square(h.shape[0], h.device)
        h = torch.cat([self.class_token, h.index_select(0, rows)])
        h = self.layer1(h)
        h = torch.cat([h[:1], self.position(h[1:])])
        h = self.position(h)  # once more and over the class token: so it is officially
        token, weights = self.layer2.forward_class_token(h)
        # A row that fills the square stands in two cells: both count, if it is an instance.
        taken = scatter_sum(rows, weights[1:], segment.shape[0] + memory.shape[0])
        return token, taken[: segment.shape[0]]

    @classmethod
    def reference(cls, state: Mapping[str, Tensor]) -> Reference:
        """The names of the authors' code, whose ``proj`` and ``isbg`` nothing is learned by."""
        names = {"_fc1.0": "project.0", "_fc2": "head", "cls_token": "class_token"}
        names["pos_layer1d.proj1"] = "position.convolution"
        for layer in ("layer1", "layer2"):
            parts = {"norm": "norm_again", "to_qkv": "qkv", "to_out.0": "out"}
            names |= {f"{layer}.attn.{k}": f"{layer}.{v}" for k, v in parts.items()}
        ours = RenamedState(state, names, ignored=["proj", "isbg"])
        options = read_sizes(ours)
        get_shape(ours, "class_token")
        ours["class_token"] = ours["class_token"].flatten(0, -2)
        return Reference(options, ours)


class PEG1D(nn.Module):
    """Positions along a sequence: x plus a convolution inside windows, plain and shifted by half.

    Args:
        dim: width of a token.
        window: tokens that are convolved together, apart from all others.
    """

    def __init__(self, dim: int, *, window: int = 32) -> None:
        super().__init__()
        self.window = window
        self.convolution = nn.Conv1d(dim, dim, 3, padding=1, groups=dim)

    def forward(self, x: Tensor) -> Tensor:
        """x (tokens, dim) to the same."""
        half = self.window // 2
        shifted = self._convolve_windows(x.roll(half, 0)).roll(-half, 0)
        return x + self._convolve_windows(x) + shifted

    def _convolve_windows(self, x: Tensor) -> Tensor:
        missing = -x.shape[0] % self.window
        windows = F.pad(x, (0, 0, 0, missing)).reshape(-1, self.window, x.shape[1])
        y: Tensor = self.convolution(windows.mT).mT
        return y.flatten(0, 1)[: x.shape[0]]


class _NormaLayer(nn.Module):
    """h + attention(norm(norm(h))); the second norm is the attention's own, as officially.

    Args:
        dim: width of a token.
        heads: attentions side by side.
        dropout: on the attention weights and on the output.
    """

    def __init__(self, dim: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.norm_again = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.out = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, h: Tensor) -> Tensor:
        """h (tokens, dim) to the same."""
        q, k, v = self._split_heads(h)[:, None]
        rate = self.dropout.p if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=rate)
        return h + self._merge_heads(mixed[0])

    def forward_class_token(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Return the first row of forward, (1, dim), and its weights, (tokens,)."""
        q, k, v = self._split_heads(h)
        weights = (q[:, :1] @ k.mT * q.shape[-1] ** -0.5).softmax(-1)  # (heads, 1, tokens)
        return h[:1] + self._merge_heads(self.dropout(weights) @ v), weights.mean(0)[0]

    def _split_heads(self, h: Tensor) -> Tensor:
        """(3, heads, tokens, dim of a head): queries, keys, values."""
        qkv: Tensor = self.qkv(self.norm_again(self.norm(h)))
        return qkv.reshape(h.shape[0], 3, self.heads, -1).permute(1, 2, 0, 3)

    def _merge_heads(self, mixed: Tensor) -> Tensor:
        y: Tensor = self.dropout(self.out(mixed.transpose(0, 1).flatten(1)))
        return y


def fill_square(n: int, device: torch.device) -> Tensor:
    """Return which of the n rows is in each cell of the smallest square, (side * side,).

    >>> fill_square(5, torch.device("cpu")).tolist()
    [0, 1, 2, 3, 4, 0, 1, 2, 3]
    """
    side = math.isqrt(n - 1) + 1
    return torch.arange(side * side, device=device) % n
