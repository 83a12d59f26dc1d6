"""Normalises a model's scores to values that colours can show."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from sacmil.errors import ConfigError, RunError, suggest_names
from sacmil.results.prediction import rank_scores

Normalization = Literal["raw", "minmax", "rank"]
NORMALIZATIONS: tuple[Normalization, ...] = get_args(Normalization)

NORMALIZATION_DESCRIPTIONS: dict[Normalization, str] = {
    "raw": "raw: as the model gives it",
    "minmax": "min-max: 0 is the lowest of this slide, 1 the highest",
    "rank": "rank: share of this slide's tiles that score lower",
}
"""Descriptions in the notes of pictures."""

Floats = npt.NDArray[np.float64]


def normalize_scores(scores: npt.ArrayLike, normalization: str) -> Floats:
    """Normalise the scores of one slide, (N,).

    minmax and rank lie in 0 to 1; equal scores get equal values, and 0.5 if all are equal.
    rank is the share of the other tiles that score lower; ties count half.

    >>> normalize_scores([3.0, 1.0, 1.0, 9.0], "rank").round(3).tolist()
    [0.667, 0.167, 0.167, 1.0]

    Args:
        scores: (N,), finite.
        normalization: raw, minmax or rank.
    """
    if normalization not in NORMALIZATIONS:
        raise ConfigError(
            f"there is no normalisation {normalization!r}; "
            f"{suggest_names(normalization, NORMALIZATIONS)}"
        )
    values = np.asarray(scores, dtype=np.float64)
    not_finite = int((~np.isfinite(values)).sum())
    if values.ndim != 1 or not len(values) or not_finite:
        raise RunError(
            f"scores have shape {values.shape}, {not_finite} of them NaN or infinite; expected one "
            "finite number per tile"
        )
    if normalization == "raw":
        return values
    return _scale_minmax(values) if normalization == "minmax" else rank_scores(values)


def to_scale_positions(values: Floats, normalization: str) -> tuple[Floats, float, float]:
    """Return positions on the colour bar, (N,) in 0 to 1, and the values at its two ends."""
    if normalization != "raw":
        return values, 0.0, 1.0
    return _scale_minmax(values), float(values.min()), float(values.max())


def _scale_minmax(values: Floats) -> Floats:
    low, high = values.min(), values.max()
    if low == high:
        return np.full(len(values), 0.5)
    # halved first: the difference of two finite numbers may be infinite
    return np.asarray(np.clip((values / 2 - low / 2) / (high / 2 - low / 2), 0, 1))
