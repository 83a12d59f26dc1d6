"""What models look at on the sixteen slides of IDC, beside the truth: one picture.

Every slide is scored by the model of the fold that tested it. Scores are percentiles within a
slide, so that models with other scales can be looked at side by side.

Run: python -m benchmarks.accuracy.heatmaps --features FOLDER --models sac_mil abmil_gated
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from PIL import Image

from benchmarks.accuracy._lines import Line, Lines
from benchmarks.accuracy._study import RESULTS
from benchmarks.accuracy.report import PAGE
from sacmil.evaluation.metrics import auc

NOTHING = float("nan")
ACROSS = 2
"""Slides in a row of the picture."""


def main(arguments: list[str] | None = None) -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--features", type=Path, required=True, help="folder of idc.h5")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of idc.csv")
    parser.add_argument("--models", nargs="+", default=["sac_mil", "abmil_gated"])
    parser.add_argument("--out", type=Path, default=PAGE.parent / "images/results/idc-heatmaps.png")
    options = parser.parse_args(arguments)
    lines = Lines(options.results / "idc.csv").lines
    scores = {model: scores_of(lines, model) for model in options.models}
    options.out.parent.mkdir(parents=True, exist_ok=True)
    save(draw(options.features / "idc.h5", scores), options.out)
    print(options.out)


def save(figure: Any, file: Path) -> None:
    """In 128 colours, a third of the bytes."""
    drawn = BytesIO()
    figure.savefig(drawn, dpi=60)
    Image.open(drawn).convert("RGB").quantize(128).save(file, optimize=True)


def scores_of(lines: Sequence[Line], model: str) -> dict[str, npt.NDArray[np.int64]]:
    """By slide, the scores of the fold of repeat 1 that tested it."""
    found: dict[str, npt.NDArray[np.int64]] = {}
    for line in lines:
        repeat = json.loads(line["split"]).get("repeat")
        if (line["task"], line["variant"], line["role"], repeat) == ("idc", model, "run", 1):
            heat = json.loads(line["more"] or "{}").get("heat", {})
            found |= {slide: np.array(text.split(), np.int64) for slide, text in heat.items()}
    return found


def draw(file: Path, scores: dict[str, dict[str, npt.NDArray[np.int64]]]) -> Any:
    """A block per slide: truth, then each model with its AUC."""
    from matplotlib.figure import Figure

    with h5py.File(file) as held:
        names, starts = held["names"][()].astype(str), held["starts"][()]
        places = np.rint(held["coords"][()] / held.attrs["patch_px"]).astype(np.int64)
        truth = held["truth"][()]
    columns, down = 1 + len(scores), -(-len(names) // ACROSS)
    figure = Figure(figsize=(2.2 * columns * ACROSS, 2.2 * down), layout="constrained")
    panels = figure.subplots(down, columns * ACROSS, squeeze=False)
    for panel in panels.flat:
        panel.axis("off")
    for number, name in enumerate(names):
        where = slice(starts[number], starts[number + 1])
        row, column = divmod(number, ACROSS)
        own = panels[row][column * columns : (column + 1) * columns]
        _show(own[0], places[where], truth[where] * 100, f"{name}: truth")
        for axes, (model, by_slide) in zip(own[1:], scores.items(), strict=True):
            if name in by_slide:
                area = auc(truth[where], by_slide[name])
                told = "" if np.isnan(area) else f" {area:.2f}"
                _show(axes, places[where], by_slide[name], f"{model}{told}")
    return figure


def _show(axes: Any, places: npt.NDArray[np.int64], values: Any, title: str) -> None:
    corner = places.min(0)
    across, down = places.max(0) - corner + 1
    image = np.full((down, across), NOTHING)
    image[places[:, 1] - corner[1], places[:, 0] - corner[0]] = values
    axes.imshow(image, cmap="magma", vmin=0, vmax=100)
    axes.set_title(title, fontsize=8)


if __name__ == "__main__":
    main()
