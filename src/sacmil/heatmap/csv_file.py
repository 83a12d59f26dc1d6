"""Writes tiles and their scores as a table."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from sacmil.atomic import atomic_write
from sacmil.csv_text import escape_cells
from sacmil.heatmap.geojson import make_default_measurements
from sacmil.heatmap.normalization import Floats, Normalization
from sacmil.results import InstanceScores


def write_csv(
    path: str | Path,
    scores: InstanceScores,
    values: Floats,
    *,
    normalization: Normalization,
    measurements: Mapping[str, npt.ArrayLike] | None = None,
    labels: npt.NDArray[np.integer] | None = None,
) -> None:
    """Write x, y and patch_size in level-0 pixels, a column per measurement, and label.

    Args:
        path: of the file.
        scores: positions and scores of the tiles.
        values: (N,), the normalised scores.
        normalization: the normalisation.
        measurements: (N,) by name; None writes the score and its normalised value.
        labels: (N,), the true labels of tiles, if they are known.
    """
    if measurements is None:
        measurements = make_default_measurements(scores, values, normalization)
    columns = [[f"{value:.9g}" for value in np.asarray(c).tolist()] for c in measurements.values()]
    if labels is not None:
        columns.append([str(label) for label in labels.tolist()])
    header = ["x", "y", "patch_size", *measurements, *(["label"] if labels is not None else [])]
    side = f"{scores.patch_size:g}"
    with atomic_write(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(escape_cells(header))
        x, y = scores.coords.T.tolist()
        writer.writerows(zip(x, y, [side] * len(x), *columns, strict=True))
