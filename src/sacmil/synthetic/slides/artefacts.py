"""Common artefacts of slide archives: a pen mark, a slide without tissue, a truncated file."""

from __future__ import annotations

from typing import Literal

import numpy as np

from sacmil.errors import MissingExtraError
from sacmil.synthetic.slides.layout import LayoutSettings
from sacmil.synthetic.slides.noise import make_soft_noise
from sacmil.synthetic.slides.stain import Pixels, Stain

Artefact = Literal["none", "pen mark", "no tissue", "truncated"]

_PEN_COLOR = np.array([36, 128, 84])
_TRUNCATED_SHARE = 0.35
"""Share of a truncated file that is left."""


def add_pen_mark(pixels: Pixels, random: np.random.Generator) -> Pixels:
    """Add a stroke of a green felt-tip pen around a corner of the tissue, as on real slides."""
    try:
        from PIL import Image, ImageDraw, ImageFilter
    except ImportError:
        raise MissingExtraError("slides", "drawing slides") from None
    height, width, _ = pixels.shape
    small = Image.new("L", (width // 4, height // 4))
    along = np.linspace(0, 1, 40)
    x = width / 4 * (0.06 + 0.3 * along)
    y = height / 4 * (0.42 - 0.36 * along**1.4) + 3 * np.cumsum(random.normal(0, 0.5, 40))
    points = list(zip(x.tolist(), y.tolist(), strict=True))
    ImageDraw.Draw(small).line(points, fill=255, width=width // 48, joint="curve")
    stroke = small.filter(ImageFilter.GaussianBlur(1.5)).resize((width, height))
    cover = 0.9 * np.asarray(stroke, np.float32)[..., None] / 255
    # most of the tissue is hidden, some of its brightness remains visible
    brightness = 0.75 + 0.25 * pixels.mean(axis=2, keepdims=True, dtype=np.float32) / 255
    return np.asarray(pixels * (1 - cover) + _PEN_COLOR * brightness * cover, np.uint8)


def draw_empty_slide(settings: LayoutSettings, random: np.random.Generator) -> Pixels:
    """Draw bare glass that is not quite clean."""
    smear = 0.02 + 0.012 * make_soft_noise(random, settings.size, 300)
    return Stain.sample(random).to_rgb(smear * 0.2, smear)


def truncate_file(file: bytes) -> bytes:
    """Return the beginning of a file, as a full disk or an interrupted copy leaves it."""
    return file[: round(_TRUNCATED_SHARE * len(file))]
