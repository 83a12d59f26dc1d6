"""Tiles resized by matrix products equal those of Pillow and of torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from sacmil.encoders._resize import resize_tiles


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("side", [256, 300, 100])
def test_tiles_resized_on_the_device_are_those_of_pillow(mode: str, side: int) -> None:
    from PIL import Image

    noise = np.random.default_rng(0).integers(0, 256, (2, side, side, 3), dtype=np.uint8)
    found = resize_tiles(torch.from_numpy(noise), 224, mode, torch.float32).numpy().astype(int)
    resampling = Image.Resampling[mode.upper()]
    for tile, ours in zip(noise, found, strict=True):
        expected = np.asarray(Image.fromarray(tile).resize((224, 224), resampling)).astype(int)
        difference = np.abs(ours - expected)
        assert difference.max() <= 2, "more than rounding twice can explain, even on noise"
        assert difference.mean() < 0.2


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_each_color_is_resized_separately_along_rows_and_then_along_columns(mode: str) -> None:
    tiles = torch.randint(0, 256, (3, 40, 40, 3), dtype=torch.uint8)
    planes = tiles.permute(0, 3, 1, 2).float()
    for size in ((40, 23), (23, 23)):
        planes = F.interpolate(planes, size, mode=mode, antialias=True).round().clamp(0, 255)
    found = resize_tiles(tiles, 23, mode, torch.float32)
    assert (found != planes.permute(0, 2, 3, 1)).float().mean() < 1e-3, "sums in another order"
    assert (found - planes.permute(0, 2, 3, 1)).abs().max() <= 1


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_resized_values_are_whole_grey_levels_even_for_black_next_to_white(
    mode: str, dtype: torch.dtype
) -> None:
    tiles = 255 * torch.randint(0, 2, (2, 64, 64, 3), dtype=torch.uint8)
    tiles[1] = 255
    found = resize_tiles(tiles, 56, mode, dtype).float()
    assert found.min() >= 0
    assert found.max() <= 255
    assert found.equal(found.round())
    assert found[1].eq(255).all(), "white stays white"
