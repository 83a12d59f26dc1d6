"""A causal depth-wise convolution over a sequence, (N, channels) to (N, channels)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class CausalConvolution(nn.Conv1d):
    """Each channel sees its own last few values; the sequence is padded with zeros in front.

    Args:
        channels: width of the sequence.
        taps: values an output sees, including that at its own position.
    """

    def __init__(self, channels: int, taps: int = 4) -> None:
        super().__init__(channels, channels, taps, groups=channels)

    def forward(self, x: Tensor) -> Tensor:
        """(N, channels) to (N, channels)."""
        assert self.bias is not None
        # Shifted multiply-adds take less than half the time of a grouped conv1d on a CPU.
        now, *before = self.weight[:, 0].flip(1).T.contiguous()
        out = torch.addcmul(self.bias, x, now)
        if torch.compiler.is_compiling():  # works for bags shorter than the convolution too
            x = torch.cat((x.new_zeros(len(before), x.shape[1]), x))
            for lag, tap in enumerate(before, start=1):
                out = out + x[len(before) - lag :][: out.shape[0]] * tap
            return out
        for lag, tap in enumerate(before, start=1):
            out[lag:].addcmul_(x[:-lag], tap)
        return out
