"""The demonstration's report page: one HTML file that needs nothing else."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sacmil.atomic import whole_file
from sacmil.bag import Bag
from sacmil.cohorts.synthetic import LabelledBag
from sacmil.errors import MissingExtraError
from sacmil.results import Prediction

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from sacmil.workflows.demo import Row

_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>SAC-MIL demonstration</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 3rem auto; }}
table {{ border-collapse: collapse; margin: 1.5rem 0; }}
td, th {{ padding: .4rem 1.2rem .4rem 0; border-bottom: 1px solid #ddd; text-align: right; }}
td:first-child, th:first-child {{ text-align: left; }}
img {{ max-width: 100%; }}
small {{ color: #555; }}
</style></head><body>
<h1>Where, not how many</h1>
<p>Every slide of this synthetic cohort has the same share of tumour instances. In half of them they
stand in a cluster, in the others they are scattered, and that is the label. Pooling instances
without looking at where they are cannot tell the two apart.</p>
<table><tr><th>model</th><th>parameters</th><th>accuracy</th><th>AUC</th></tr>
{rows}
</table>
<p><small>{slides} test slides; one split, one seed: a demonstration, not a benchmark.</small></p>
<p>Below, the paper's score of an instance: the length of its vector after the last block.</p>
<img alt="Truth and scores of a clustered and a scattered slide" src="data:image/png;base64,{png}">
</body></html>
"""


def write_page(
    path: Path, rows: Sequence[Row], test: Sequence[LabelledBag], answers: Sequence[Prediction]
) -> None:
    """Write the page: the table, and one slide of each class with its truth and its scores."""
    lines = "\n".join(
        f"<tr><td>{escape(row.name)}</td><td>{row.parameters:,}</td>"
        f"<td>{row.accuracy:.3f}</td><td>{row.auc:.3f}</td></tr>"
        for row in rows
    )
    png = base64.b64encode(_picture(test, answers)).decode()
    with whole_file(path) as partial:
        page = _PAGE.format(rows=lines, slides=len(test), png=png)
        partial.write_text(page, encoding="utf-8")


def check_can_draw() -> None:
    """Say what is missing before anything is trained."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError("plots", "the demonstration's report")


def _picture(test: Sequence[LabelledBag], answers: Sequence[Prediction]) -> bytes:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 9), layout="constrained")
    axes = figure.subplots(2, 2)
    for line, label in zip(axes, (1, 0), strict=True):
        index = next(i for i, (_, found) in enumerate(test) if found == label)
        bag, scores = test[index].bag, answers[index].scores
        name = "clustered" if label else "scattered"
        # From -0.3, so that tissue without tumour is not as white as the glass.
        _draw(line[0], bag, bag.labels, f"{name}: tumour (truth)", cmap="Reds", vmin=-0.3)
        image = _draw(line[1], bag, scores, f"{name}: SAC-MIL's score", cmap="viridis")
        figure.colorbar(image, ax=line[1], label="L2 norm of the last block, raw")
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=110, format="png", metadata={"Software": None})
    return buffer.getvalue()


def _draw(axis: Axes, bag: Bag, values: Any, title: str, **colours: Any) -> Any:
    axis.set_title(title)
    axis.set_axis_off()
    return axis.imshow(_raster(bag, values), interpolation="nearest", **colours)


def _raster(bag: Bag, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """One pixel per patch; NaN, which stays white, where there is none."""
    x, y = np.round(bag.patch_coords - bag.patch_coords.min(axis=0)).astype(int).T
    raster = np.full((y.max() + 1, x.max() + 1), np.nan)
    raster[y, x] = values
    return raster
