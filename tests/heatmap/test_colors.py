"""The colour scale."""

from __future__ import annotations

import numpy as np

from sacmil.heatmap.colors import apply_color_scale, make_color_scale


def to_cielab(rgb: np.ndarray) -> np.ndarray:
    """Convert to CIELAB (D65), a space other than the one the scale was built in."""
    s = rgb / 255
    linear = np.where(s <= 0.04045, s / 12.92, ((s + 0.055) / 1.055) ** 2.4)
    to_xyz = [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
    t = linear @ np.array(to_xyz).T / [0.9505, 1.0, 1.089]
    f = np.where(t > 216 / 24389, np.cbrt(t), (24389 / 27 * t + 16) / 116)
    return np.stack(
        [116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=1
    )


def test_a_higher_score_is_always_lighter() -> None:
    light = to_cielab(make_color_scale()[::8].astype(float))[:, 0]
    assert (np.diff(light) > 0.5).all()


def test_steps_of_the_scale_look_alike() -> None:
    steps = np.linalg.norm(
        np.diff(to_cielab(make_color_scale()[::16].astype(float)), axis=0), axis=1
    )
    assert steps.max() < 2.5 * steps.min()


def test_positions_between_steps_take_the_nearest() -> None:
    scale = make_color_scale()
    assert apply_color_scale(np.array([0.0, 0.4 / 255, 0.6 / 255, 1.0])).tolist() == [
        scale[0].tolist(),
        scale[0].tolist(),
        scale[1].tolist(),
        scale[255].tolist(),
    ]
