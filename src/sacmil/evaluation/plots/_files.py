"""Files of figures."""

from __future__ import annotations

import io
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from sacmil.atomic import atomic_write
from sacmil.errors import MissingExtraError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def check_matplotlib(purpose: str = "drawing figures") -> None:
    """Raise an error if matplotlib is not installed."""
    if find_spec("matplotlib") is None:
        raise MissingExtraError("plots", purpose)


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure in the format of the suffix (.png, .svg, .pdf), atomically."""
    with atomic_write(path) as partial:
        partial.write_bytes(render_figure(figure, Path(path).suffix.lstrip(".").lower()))


def render_figure(figure: Figure, kind: str) -> bytes:
    """Return a figure as the bytes of a file; equal figures give equal bytes."""
    from matplotlib import rc_context

    buffer = io.BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with (
        rc_context({"svg.fonttype": "none", "svg.hashsalt": "sacmil"}),  # text stays text
        warnings.catch_warnings(),
    ):
        # the viewer of the SVG has the letters that matplotlib's font lacks
        warnings.filterwarnings("ignore", "Glyph .* missing from font", UserWarning)
        figure.savefig(buffer, format=kind, dpi=200, metadata=dates.get(kind))
    return buffer.getvalue()
