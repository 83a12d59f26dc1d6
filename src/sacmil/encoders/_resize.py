"""Resizes tiles on a GPU as Pillow would, by two matrix products in channels-last layout."""

from __future__ import annotations

from functools import cache

import torch
from torch.nn import functional as F


def resize_tiles(tiles: torch.Tensor, side: int, mode: str, dtype: torch.dtype) -> torch.Tensor:
    """Resize (B, P, P, 3) to (B, side, side, 3): whole numbers from 0 to 255, as floats.

    Pillow resizes along rows first, and rounds to whole grey levels in between.

    Args:
        tiles: square, uint8.
        side: the new side.
        mode: bilinear or bicubic.
        dtype: to compute in.
    """
    columns, rows = _make_resize_matrices(tiles.shape[1], side, mode, dtype, tiles.device)
    lines = _round_values(F.linear(tiles.flatten(2).to(dtype), columns), mode)  # (B, P, 3 side)
    images = _round_values(rows.expand(len(tiles), -1, -1) @ lines, mode)
    return images.reshape(len(tiles), side, side, 3)


def _round_values(values: torch.Tensor, mode: str) -> torch.Tensor:
    """Round in place; bicubic values can leave the range and are clamped, bilinear ones cannot."""
    values = values.round_()
    return values if mode == "bilinear" else values.clamp_(0, 255)


@cache
def _make_resize_matrices(
    old_side: int, new_side: int, mode: str, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the resizing matrices of columns, (3 new, 3 old), and of rows, (new, old).

    The first has weight zero between different colours. Multiplying by zeros takes less time on a
    GPU than moving each colour to a plane of its own and back.
    """
    line = torch.eye(old_side)[None, None]
    rows = F.interpolate(line, (new_side, old_side), mode=mode, antialias=True)[0, 0]
    columns = torch.kron(rows, torch.eye(3))
    return columns.to(device, dtype), rows.to(device, dtype)
