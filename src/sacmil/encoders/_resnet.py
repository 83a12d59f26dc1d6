"""ResNet-50 up to its third stage (He et al., 2016), with torchvision's parameter names."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn.functional import relu

WIDTH = 1024


class ResNet50Stage3(nn.Module):
    """Normalised images (B, 3, P, P) to the mean of the third stage's feature map, (B, 1024)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, stride=2, padding=1)
        self.layer1 = _make_stage(64, 64, blocks=3, stride=1)
        self.layer2 = _make_stage(256, 128, blocks=4, stride=2)
        self.layer3 = _make_stage(512, 256, blocks=6, stride=2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Compute the features of images."""
        x: torch.Tensor = self.maxpool(relu(self.bn1(self.conv1(images))))
        x = self.layer3(self.layer2(self.layer1(x)))
        return x.mean(dim=(2, 3))


class Bottleneck(nn.Module):
    """1 x 1, 3 x 3, 1 x 1, and a shortcut; the middle one has the stride, as in torchvision."""

    def __init__(self, channels: int, middle: int, *, stride: int) -> None:
        super().__init__()
        out = 4 * middle
        self.conv1 = nn.Conv2d(channels, middle, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(middle)
        self.conv2 = nn.Conv2d(middle, middle, 3, stride=stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(middle)
        self.conv3 = nn.Conv2d(middle, out, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(out)
        if channels != out:
            shortcut = nn.Conv2d(channels, out, 1, stride=stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(out))
        else:
            self.downsample = nn.Sequential()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Apply the block."""
        y = relu(self.bn1(self.conv1(x)))
        y = relu(self.bn2(self.conv2(y)))
        return relu(self.bn3(self.conv3(y)) + self.downsample(x))


def _make_stage(channels: int, middle: int, *, blocks: int, stride: int) -> nn.Sequential:
    first = Bottleneck(channels, middle, stride=stride)
    rest = [Bottleneck(4 * middle, middle, stride=1) for _ in range(blocks - 1)]
    return nn.Sequential(first, *rest)
