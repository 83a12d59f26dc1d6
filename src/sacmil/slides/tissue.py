"""Finds tissue: a mask from a thumbnail of the slide.

The measure is chroma relative to the background: glass, dust and shadows are grey, tissue is
coloured. Otsu's threshold separates the two. It has two limits, so that an empty slide stays empty
and a slide without background is not cut in half. Then ink and black borders are removed
(``_find_ink``), specks are dropped and small holes are filled, all by their size on the glass.
Stain on the glass around the tissue is smooth and is dropped for that.

A small plain image that is mostly covered needs none of this: all of it is tissue. An outline
in the output folder, drawn or corrected by hand, replaces all of it (extraction/prepare_slide.py).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import ndimage

from sacmil.errors import NoTissueError
from sacmil.slides.pixels import Thumbnail, choose_source, make_thumbnail, scaled_shape
from sacmil.slides.readers._base import Pixels, Slide
from sacmil.units import MicronsPerPixel

Mask = npt.NDArray[np.bool_]
Floats = npt.NDArray[np.float32]

TISSUE_MODES = ("auto", "detect", "all")
"""How to find tissue: ``all`` takes the whole image, ``auto`` chooses."""
MAX_FIELD_PIXELS = 16_000_000
"""Up to this size (4,000 x 4,000) a plain image may be a field of view, all of it tissue."""
MAX_FIELD_GLASS_SHARE = 0.4
"""Largest share of bare glass in a field of view."""

_FIELD_THUMBNAIL_SIDE = 256  # pixels, to look for glass
_PICTURE_SIDE = 1200  # pixels of the preview, if the slide has as many
_MAX_SIDE = 4000
_SPECK_SHARE = 0.05  # of the picture, for small pictures
_TEXTURE_PX = 2  # pixels of the mask; the scale on which nuclei and fibres are visible
_SMOOTHNESS_FACTOR = 3.0  # times the texture of glass
_MIN_GLASS_SHARE = 0.01  # of the picture, to measure the texture of glass
_MIN_TEXTURED_SHARE = 0.25  # of coloured pixels
_MAX_HALO_STAIN = 0.7  # of the light that tissue absorbs

# Hues in degrees (red 0, green 120, blue 240); chroma from 0 to 1, relative to the background.
_INK_COLORS = (  # from hue, to hue, least chroma
    (65.0, 185.0, 0.10),  # green
    (185.0, 250.0, 0.35),  # blue
    (185.0, 225.0, 0.25),  # pale blue
    (350.0, 20.0, 0.62),  # red
)
_RIM_HUES = ((65.0, 255.0), (349.0, 25.0))
_RIM_CHROMA = 0.02
_BLACK_LIGHT = 0.42
_BLACK_CHROMA = 0.12
_CHUNK_ROWS = 256  # processed at a time, to bound the memory


@dataclass(frozen=True, kw_only=True)
class TissueSettings:
    """How to separate tissue from glass; lengths and areas are those on the glass."""

    mpp: float = 8.0
    """Microns per pixel of the mask, about; coarser where a side would exceed 4,000 pixels."""
    min_area_mm2: float = 0.03
    """Smaller specks are dropped; a tile of 256 pixels at 0.5 µm has 0.016 mm²."""
    max_hole_mm2: float = 0.05
    """Smaller holes (lumen, fat) are filled; larger ones stay open."""
    smoothing_um: float = 16.0
    """Standard deviation of the blur before the threshold."""
    min_chroma_threshold: float = 0.03
    """Chroma below which nothing is tissue, 0 to 1; lower it for very pale stains."""
    max_chroma_threshold: float = 0.06
    """Chroma above which everything is tissue, whatever Otsu's threshold is."""
    ink_rim_um: float = 200.0
    """Largest width of the pale rim of a pen stroke."""


_DEFAULTS = TissueSettings()


@dataclass(frozen=True, eq=False)
class Tissue:
    """The tissue mask of a slide."""

    mask: Mask
    """(h, w); its upper left corner is that of level 0."""
    downsample: float
    """Level-0 pixels per pixel of the mask."""
    slide_size: tuple[int, int]
    """Width and height of level 0."""

    @property
    def share(self) -> float:
        """Share of the slide that is tissue, 0 to 1."""
        return float(self.mask.mean())

    @property
    def hash(self) -> str:
        """16 hexadecimal digits that change with the mask."""
        facts = f"{self.mask.shape} {self.downsample!r} {self.slide_size}".encode()
        return hashlib.sha256(facts + np.packbits(self.mask).tobytes()).hexdigest()[:16]


def find_tissue(
    slide: Slide | Thumbnail, mpp: MicronsPerPixel, settings: TissueSettings = _DEFAULTS
) -> Tissue:
    """Return the tissue of a slide; NoTissueError if there is none.

    Args:
        slide: the slide, or a thumbnail of it.
        mpp: microns per level-0 pixel.
        settings: thresholds other than the defaults.
    """
    picture = slide
    if isinstance(picture, Slide):
        target = _picture_downsample(picture, mpp, settings)
        picture = make_thumbnail(picture, target, max_side=_MAX_SIDE)
    small = picture.shrink(_shrink_factor(picture.downsample, mpp, settings))
    mask = _find_mask(small.pixels, small.downsample * mpp, settings)
    if not mask.any():
        raise NoTissueError(
            f"{picture.path}: nothing on the slide looks like tissue; look at its preview, and "
            "if there is some, draw it in QuPath and export it over the slide's GeoJSON"
        )
    return Tissue(mask, small.downsample, picture.slide_size)


def choose_tissue_mode(slide: Slide, mode: str = "auto") -> str:
    """Return how to find the tissue of a slide, ``detect`` or ``all``; the same at every scale.

    Args:
        slide: the slide.
        mode: the user's choice; ``auto`` is ``all`` for a small plain image mostly covered.
    """
    if mode != "auto":
        return mode
    width, height = slide.size
    if slide.reader != "image" or width * height > MAX_FIELD_PIXELS:
        return "detect"
    small = make_thumbnail(slide, max(1.0, max(slide.size) / _FIELD_THUMBNAIL_SIDE))
    return "all" if _looks_like_glass(small.pixels).mean() <= MAX_FIELD_GLASS_SHARE else "detect"


def mark_all_as_tissue(
    slide: Slide, mpp: MicronsPerPixel, settings: TissueSettings = _DEFAULTS
) -> Tissue:
    """Return the whole image as tissue."""
    downsample = mask_downsample(slide, mpp, settings)
    return Tissue(np.ones(scaled_shape(slide.size, downsample), bool), downsample, slide.size)


def mask_downsample(
    slide: Slide, mpp: MicronsPerPixel, settings: TissueSettings = _DEFAULTS
) -> float:
    """Return the downsample of the mask of ``find_tissue``, without reading a pixel."""
    target = _picture_downsample(slide, mpp, settings)
    fine = choose_source(slide, target, max_side=_MAX_SIDE).downsample
    return fine * _shrink_factor(fine, mpp, settings)


def _picture_downsample(slide: Slide, mpp: MicronsPerPixel, settings: TissueSettings) -> float:
    return min(settings.mpp / mpp, max(slide.size) / _PICTURE_SIDE)


def _shrink_factor(downsample: float, mpp: float, settings: TissueSettings) -> int:
    return max(1, round(settings.mpp / (downsample * mpp)))


def _find_mask(pixels: Pixels, mpp: float, settings: TissueSettings) -> Mask:
    """Return the tissue in a picture with ``mpp`` microns per pixel."""
    pixels_per_mm2 = (1000 / mpp) ** 2
    min_px = settings.min_area_mm2 * pixels_per_mm2
    colors = _classify_colors(pixels, _find_background(pixels))
    ink = _find_ink(colors, rim_px=max(1, round(settings.ink_rim_um / mpp)), min_px=min_px)
    # chroma is limited to twice the threshold, or the blur of strong stain would widen the outline
    limit = 2 * settings.max_chroma_threshold
    chroma = np.where(ink, np.float32(0), np.minimum(colors.chroma, limit))
    chroma = ndimage.gaussian_filter(chroma, settings.smoothing_um / mpp)
    threshold = np.clip(
        _otsu_threshold(chroma[~ink]), settings.min_chroma_threshold, settings.max_chroma_threshold
    )
    tissue = np.asarray(chroma > threshold, bool) & ~ink
    tissue &= ~_find_halo(pixels, tissue, ink)
    # A picture of a few tiles is no larger than what would be a speck or a hole on a slide.
    most = _SPECK_SHARE * tissue.size
    tissue = _remove_specks(tissue, min(min_px, most))
    filled = ~_remove_specks(~tissue, min(settings.max_hole_mm2 * pixels_per_mm2, most))
    return filled & ~ink


def _find_halo(pixels: Pixels, tissue: Mask, ink: Mask) -> Mask:
    """Return a mask of stain on bare glass: smooth as glass, paler than tissue, next to glass.

    The smoothness of glass is measured on the picture itself, so that noise does not count as
    texture. A picture without glass or without textured tissue has no halo.
    """
    glass = ~tissue & ~ink
    if glass.mean() < _MIN_GLASS_SHARE or not tissue.any():
        return np.zeros_like(tissue)
    gray = pixels.astype(np.float32).mean(axis=-1)
    fine = np.abs(gray - ndimage.gaussian_filter(gray, _TEXTURE_PX))
    texture = ndimage.uniform_filter(fine, 2 * _TEXTURE_PX + 1)
    smooth = texture < max(_SMOOTHNESS_FACTOR * float(np.median(texture[glass])), 0.5)
    textured = tissue & ~smooth
    if textured.sum() < _MIN_TEXTURED_SHARE * tissue.sum():
        return np.zeros_like(tissue)
    bright, dark = np.median(gray[glass]), np.median(gray[textured])
    pale = gray > bright - _MAX_HALO_STAIN * (bright - dark)
    halo = tissue & smooth & pale
    return np.asarray(tissue & ndimage.binary_propagation(glass, mask=glass | halo), bool)


def _looks_like_glass(pixels: Pixels) -> Mask:
    """Return pixels that are flat, nearly grey, and nearly as bright as the brightest.

    Brightness separates glass from grey stroma; chroma by itself does not.
    """
    darkest, brightest, contrast = _measure_neighbourhoods(pixels)
    bright = darkest >= max(190, 0.95 * float(np.percentile(darkest, 99.5)))
    return np.asarray((contrast <= 6) & bright & (brightest - darkest <= 24), bool)


def _find_background(pixels: Pixels) -> Floats:
    """Return the colour of bare glass: the commonest of bright, nearly grey, flat pixels.

    White padding is ignored, because it is not glass. Pale tissue is never flat.
    """
    darkest, brightest, contrast = _measure_neighbourhoods(pixels)
    glass = (contrast <= 4) & (darkest >= 180) & (darkest < 254) & (brightest - darkest <= 14)
    if glass.mean() < 0.005:
        return np.full(3, 255, np.float32)
    commonest = int(np.bincount(darkest[glass], minlength=256).argmax())
    common = glass & (np.abs(darkest - commonest) <= 2)
    return np.asarray(np.median(pixels[common], axis=0), np.float32)


def _measure_neighbourhoods(pixels: Pixels) -> tuple[npt.NDArray[np.int16], ...]:
    """Return the darkest and brightest channel of 3 x 3 means, and the contrast of green there."""
    channels = [ndimage.uniform_filter(pixels[..., i], 3).astype(np.int16) for i in range(3)]
    contrast = ndimage.maximum_filter(channels[1], 3) - ndimage.minimum_filter(channels[1], 3)
    return np.minimum.reduce(channels), np.maximum.reduce(channels), contrast


def _otsu_threshold(values: npt.NDArray[Any]) -> float:
    """Return the threshold that splits values into two groups of least variance within."""
    if values.size == 0:
        return 0.0
    counts, edges = np.histogram(values, bins=256, range=(0, values.max() or 1))
    middles = (edges[1:] + edges[:-1]) / 2
    below = counts.cumsum()
    above = below[-1] - below
    sums = (counts * middles).cumsum()
    with np.errstate(divide="ignore", invalid="ignore"):
        gap = sums / below - (sums[-1] - sums) / above
        between = np.nan_to_num(below * above * gap**2)
    return float(edges[1:][between.argmax()])


# Ink -------------------------------------------------------------------------------------------
#
# Tissue stained with haematoxylin and eosin is pink to purple: red above green, blue above green.
# Immunostains add brown and pale blue. Ink has colours that no stain has: any green, blue or red
# at full strength, or dark without colour.


class _PixelColors(NamedTuple):
    """Properties of the colour of each pixel, (h, w) each."""

    chroma: Floats
    """Distance from grey, 0 to 1."""
    ink: Mask
    """Whether the colour can only be ink: no stain has it."""
    rim: Mask
    """Whether the colour can be the pale rim of a stroke; tissue may have it too."""


def _classify_colors(pixels: Pixels, background: Floats) -> _PixelColors:
    """Classify each pixel by the share of the background's light that comes through.

    Args:
        pixels: (h, w, 3), RGB.
        background: (3,), the colour of bare glass.
    """
    chunks = np.array_split(pixels, math.ceil(len(pixels) / _CHUNK_ROWS))
    colors = [_classify_chunk(np.minimum(chunk / background, 1)) for chunk in chunks]
    return _PixelColors(*(np.concatenate(arrays) for arrays in zip(*colors, strict=True)))


def _find_ink(colors: _PixelColors, *, rim_px: int, min_px: float) -> Mask:
    """Return a mask of ink and black borders.

    Args:
        colors: of the picture.
        rim_px: largest width of a stroke's pale rim.
        min_px: smaller areas are no stroke but pigment, a fold or a bubble.
    """
    core = _remove_specks(colors.ink, min_px)
    if not core.any():
        return core
    stroke = ndimage.binary_dilation(core, iterations=rim_px, mask=colors.rim | core)
    # at the edge of a stroke, its colour is already mixed with what is beneath
    return np.asarray(ndimage.binary_dilation(stroke, structure=np.ones((3, 3), bool)), bool)


def _remove_specks(mask: Mask, min_px: float) -> Mask:
    """Return the mask without connected areas of fewer pixels than ``min_px``."""
    labels, _ = ndimage.label(mask)
    sizes = np.bincount(labels.ravel())
    sizes[0] = 0  # the background
    kept: npt.NDArray[Any] = sizes >= max(min_px, 1)
    return np.asarray(kept[labels], bool)


def _classify_chunk(light: Floats) -> _PixelColors:
    red, green, blue = np.moveaxis(light, -1, 0)
    brightest = np.maximum(np.maximum(red, green), blue)
    chroma = brightest - np.minimum(np.minimum(red, green), blue)
    hue = _compute_hue(light, brightest, chroma)
    ink = (brightest < _BLACK_LIGHT) & (chroma < _BLACK_CHROMA)
    for low, high, min_chroma in _INK_COLORS:
        ink |= _is_hue_within(hue, low, high) & (chroma > min_chroma)
    rim = np.logical_or.reduce([_is_hue_within(hue, *hues) for hues in _RIM_HUES])
    return _PixelColors(chroma, ink, rim & (chroma > _RIM_CHROMA))


def _compute_hue(light: Floats, brightest: Floats, chroma: Floats) -> Floats:
    """Return hues in degrees, (h, w), of (h, w, 3); greys get 300, the hue of tissue."""
    red, green, blue = np.moveaxis(light, -1, 0)
    span = np.where(chroma > 0, chroma, 1)
    hue = np.where(brightest == green, 2 + (blue - red) / span, 4 + (red - green) / span)
    hue = np.where(brightest == red, (green - blue) / span % 6, hue)
    return np.where(chroma > 0, 60 * hue, 300).astype(np.float32)


def _is_hue_within(hue: Floats, low: float, high: float) -> Mask:
    above, below = hue >= low, hue < high
    return np.asarray(above & below if low <= high else above | below, bool)
