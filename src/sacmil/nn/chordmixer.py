"""ChordMixer (Khalitov et al. 2023): channel tracks rotated by powers of two along the sequence."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class ChordMixerBlock(nn.Module):
    """norm(x + rotate(MLP(prenorm(x)))).

    Args:
        dim: width of an instance.
        hidden: width inside the MLP; None means dim.
        tracks: groups of channels; None means ceil(log2 N) + 1.
    """

    def __init__(self, dim: int, *, hidden: int | None = None, tracks: int | None = None) -> None:
        super().__init__()
        self.tracks = tracks
        self.prenorm = nn.LayerNorm(dim)
        self.fc1 = nn.Linear(dim, hidden or dim)
        self.fc2 = nn.Linear(hidden or dim, dim)
        self.norm = nn.LayerNorm(dim)
        for layer in (self.fc1, self.fc2):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """x (N, dim)."""
        h = self.fc2(F.gelu(self.fc1(self.prenorm(x))))
        y: Tensor = self.norm(x + chord_rotate(h, self.tracks))
        return y


def chord_rotate(x: Tensor, tracks: int | None = None) -> Tensor:
    """Rotate tracks: row i of track t comes from row i + 2^(t - 1), cyclically; track 0 stays."""
    if torch.compiler.is_compiling():  # an export would fix the number of tracks
        return _rotate_by_gather(x, tracks)
    count = max(x.shape[0] - 1, 0).bit_length() + 1 if tracks is None else tracks
    channels = x.tensor_split(count, dim=1)
    rotated = [track.roll(-(2 ** (t - 1)), 0) for t, track in enumerate(channels) if t]
    return torch.cat([channels[0], *rotated], dim=1)


def _rotate_by_gather(x: Tensor, tracks: int | None) -> Tensor:
    """Do the same with one gather, whose indices are computed from the length."""
    n, dim = x.shape
    powers = torch.pow(2, torch.arange(40, device=x.device))
    count = (powers < n).sum() + 1 if tracks is None else torch.full_like(powers[0], tracks)
    total = torch.full_like(count, dim)  # ONNX divides tensors by tensors only
    width, larger = total // count, total % count  # the first tracks are larger by one
    channel = torch.arange(dim, device=x.device)
    border = larger * (width + 1)
    beyond = larger + (channel - border) // width.clamp(min=1)
    track = torch.where(channel < border, channel // (width + 1), beyond)
    move = torch.where(track > 0, torch.pow(2, (track - 1).clamp(min=0)), 0)
    around = torch.zeros_like(move) + n  # a remainder by a number would fix the length
    return x.gather(0, (torch.arange(n, device=x.device)[:, None] + move).remainder(around))
