"""The perceptually uniform colour scale of scores, from dark blue over green to yellow.

It is built in OKLab (Ottosson 2020), where equal distances look equally far. Its hues avoid the
pink and violet of stained tissue. Lightness always rises, so that it also works in grey.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from sacmil.slides.readers import Pixels

_STEPS = 256
_SCALE_PATH = (
    (0.30, 0.14, 278),
    (0.45, 0.15, 262),
    (0.60, 0.12, 225),
    (0.72, 0.13, 175),
    (0.83, 0.18, 140),
    (0.95, 0.19, 108),
)
"""Lightness, chroma and hue in degrees, from the lowest score to the highest."""


def apply_color_scale(positions: npt.NDArray[np.float64]) -> Pixels:
    """Return the RGB colours, (…, 3), of positions on the scale, 0 to 1."""
    steps = np.floor(np.clip(positions, 0, 1) * (_STEPS - 1) + 0.5).astype(np.intp)
    return make_color_scale()[steps]


@cache
def make_color_scale() -> Pixels:
    """Return the whole scale, (256, 3), the lowest first."""
    dense = _interpolate_path(np.linspace(0, 1, 4096))
    lengths = np.concatenate([[0], np.cumsum(np.linalg.norm(np.diff(dense, axis=0), axis=1))])
    even = np.interp(np.linspace(0, lengths[-1], _STEPS), lengths, np.linspace(0, 1, 4096))
    scale = (_to_srgb(_interpolate_path(even)) * 255 + 0.5).astype(np.uint8)
    scale.flags.writeable = False
    return scale


def _interpolate_path(positions: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return OKLab colours, (N, 3), on a smooth curve through the path that never overshoots.

    It is the monotone cubic of Fritsch and Carlson (1980). scipy is not used, because its import
    takes longer than the viewer's first page.
    """
    light, chroma, hue = np.array(_SCALE_PATH).T
    angle = np.radians(hue)
    knots = np.stack([light, chroma * np.cos(angle), chroma * np.sin(angle)], axis=1)
    slopes = _knot_slopes(np.diff(knots, axis=0))
    scaled = np.asarray(positions) * (len(knots) - 1)
    at = np.clip(np.floor(scaled).astype(int), 0, len(knots) - 2)
    t = (scaled - at)[:, None]
    weights = (1 + 2 * t) * (1 - t) ** 2, t**2 * (3 - 2 * t), t * (1 - t) ** 2, t**2 * (t - 1)
    ends = knots[at], knots[at + 1], slopes[at], slopes[at + 1]
    return np.asarray(sum(weight * end for weight, end in zip(weights, ends, strict=True)))


def _knot_slopes(steps: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the slopes at the knots, (K + 1, 3), from the (K, 3) steps between them."""
    before, after = steps[:-1], steps[1:]
    turns = before * after <= 0
    inner = np.where(turns, 0, 2 * before * after / np.where(turns, 1, before + after))
    return np.concatenate([_end_slope(steps[:2]), inner, _end_slope(steps[:-3:-1])])


def _end_slope(steps: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the slope at an end, (1, 3), from its (2, 3) nearest steps."""
    first, second = steps
    slope = (3 * first - second) / 2
    steepest = np.where(
        (first * second < 0) & (np.abs(slope) > 3 * np.abs(first)), 3 * first, slope
    )
    return np.where(slope * first <= 0, 0, steepest)[None]


_TO_CONES = np.array(
    [
        [1.0, 0.3963377774, 0.2158037573],
        [1.0, -0.1055613458, -0.0638541728],
        [1.0, -0.0894841775, -1.2914855480],
    ]
)
_TO_LINEAR = np.array(
    [
        [4.0767416621, -3.3077115913, 0.2309699292],
        [-1.2684380046, 2.6097574011, -0.3413193965],
        [-0.0041960863, -0.7034186147, 1.7076147010],
    ]
)


def _to_srgb(oklab: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    linear = np.clip((oklab @ _TO_CONES.T) ** 3 @ _TO_LINEAR.T, 0, 1)
    curved = 1.055 * linear ** (1 / 2.4) - 0.055
    return np.asarray(np.where(linear <= 0.0031308, 12.92 * linear, curved))
