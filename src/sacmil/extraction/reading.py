"""Reads the pixels of a batch of tiles; runs in a worker process."""

from __future__ import annotations

import itertools
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.errors import SacMILError, SlideError
from sacmil.extraction.prepare_slide import SlideRequest
from sacmil.slides.pixels import is_blurred, is_white, read_tile
from sacmil.slides.readers import Slide, open_slide
from sacmil.units import Level0Px, TilePx


class TileBatch(NamedTuple):
    """The pixels of a batch, as the encoder takes them."""

    pixels: npt.NDArray[np.uint8]
    """(kept, side, side, 3)"""
    kept: npt.NDArray[np.bool_]
    """Which of the requested tiles these are."""


def read_batch(request: SlideRequest, side: Level0Px, corners: npt.NDArray[np.int64]) -> TileBatch:
    """Read tiles by their upper left corners; the settings may drop white and blurred ones."""
    slide = _open_cached(request.path, request.settings.reader)
    tiles = (_read_one_tile(slide, request, side, x, y) for x, y in corners.tolist())
    first = next(tiles)
    pixels = np.empty((len(corners), *first.shape), np.uint8)  # each tile is held once, not twice
    for number, tile in enumerate(itertools.chain([first], tiles)):
        pixels[number] = tile
    kept = np.ones(len(pixels), np.bool_)
    if request.settings.drop_white:
        kept &= ~is_white(pixels)
    if request.settings.drop_blurred:
        kept &= ~is_blurred(pixels)
    return TileBatch(pixels if kept.all() else pixels[kept], kept)


@lru_cache(maxsize=2)
def _open_cached(path: Path, reader: str | None) -> Slide:
    """Open a slide and keep it open: batches of one slide follow each other."""
    return open_slide(path, reader)


def _read_one_tile(
    slide: Slide, request: SlideRequest, side: Level0Px, x: int, y: int
) -> npt.NDArray[np.uint8]:
    assert request.encoder is not None
    patch_px = TilePx(request.settings.tiles.patch_size)
    input_px = patch_px if request.encoder.can_resize else TilePx(request.encoder.input_px)
    try:
        return read_tile(slide, x, y, side, patch_px, input_px, request.encoder.resample)
    except (SacMILError, MemoryError):
        raise
    except Exception as error:  # decoders raise anything
        raise SlideError(
            f"{slide.path}: the tile at ({x}, {y}) cannot be read ({type(error).__name__}: {error})"
        ) from error
