"""Attention logits over instances, plain and gated (Ilse et al. 2018): (N, D) to (N, branches)."""

from __future__ import annotations

from torch import Tensor, nn

ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU}


class Attention(nn.Module):
    """a = w . act(V h).

    Args:
        dim: width of an instance.
        hidden: width of V h.
        branches: number of attentions, for models with one per class.
        bias: of both layers.
        activation: act.
        dropout: on act(V h).
    """

    def __init__(
        self,
        dim: int,
        hidden: int = 128,
        *,
        branches: int = 1,
        bias: bool = True,
        activation: str = "tanh",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.value = nn.Linear(dim, hidden, bias=bias)
        self.activation = ACTIVATIONS[activation]()
        self.dropout = nn.Dropout(dropout)
        self.weight = nn.Linear(hidden, branches, bias=bias)

    def forward(self, h: Tensor) -> Tensor:
        """(N, dim) to (N, branches), before any softmax."""
        logits: Tensor = self.weight(self.dropout(self.activation(self.value(h))))
        return logits


class GatedAttention(nn.Module):
    """a = w . (act(V h) * sigmoid(U h)).

    Args:
        dim: width of an instance.
        hidden: width of V h and U h.
        branches: number of attentions, for models with one per class.
        bias: of all three layers.
        activation: act.
        dropout: on act(V h) and sigmoid(U h).
    """

    def __init__(
        self,
        dim: int,
        hidden: int = 128,
        *,
        branches: int = 1,
        bias: bool = True,
        activation: str = "tanh",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.value = nn.Linear(dim, hidden, bias=bias)
        self.gate = nn.Linear(dim, hidden, bias=bias)
        self.activation = ACTIVATIONS[activation]()
        self.dropout = nn.Dropout(dropout)
        self.weight = nn.Linear(hidden, branches, bias=bias)

    def forward(self, h: Tensor) -> Tensor:
        """(N, dim) to (N, branches), before any softmax."""
        value = self.dropout(self.activation(self.value(h)))
        gate = self.dropout(self.gate(h).sigmoid())
        logits: Tensor = self.weight(value * gate)
        return logits
