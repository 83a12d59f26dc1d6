"""The files that extraction writes.

::

    OUT/
    ├── extraction.csv                   a row per slide: done, or why it failed
    ├── tissue/<slide>.geojson           the tissue; edit it in QuPath and run again
    ├── tissue/<slide>.png               thumbnail with outlines and tiles
    └── 0.5mpp_256px/                    a folder per tile size and resolution
        ├── tiles/<slide>.h5             positions of the tiles
        └── features_<encoder>/<slide>.h5   the bags
"""

from __future__ import annotations

import re
from pathlib import Path

from sacmil.slides.tiling import TileSpec


class OutputFolder:
    """The paths of one extraction.

    Args:
        out: the folder given by the user.
        spec: how tiles are cut.
        encoder: name of the encoder; None if no features are extracted.
    """

    def __init__(self, out: Path, spec: TileSpec, encoder: str | None) -> None:
        self.out = out
        self.table = out / "extraction.csv"
        overlap = f"_{spec.overlap}px_overlap" if spec.overlap else ""
        resolution = "level0" if spec.mpp is None else f"{spec.mpp:g}mpp"
        self.cut_folder = out / f"{resolution}_{spec.patch_size}px{overlap}"
        self.bag_folder = (
            None if encoder is None else self.cut_folder / f"features_{_to_file_name(encoder)}"
        )

    def outline_path(self, slide_id: str) -> Path:
        """Return the path of a slide's tissue outline."""
        return self.out / "tissue" / f"{slide_id}.geojson"

    def preview_path(self, slide_id: str) -> Path:
        """Return the path of a slide's preview."""
        return self.out / "tissue" / f"{slide_id}.png"

    def tiles_path(self, slide_id: str) -> Path:
        """Return the path of a slide's tile positions."""
        return self.cut_folder / "tiles" / f"{slide_id}.h5"

    def bag_path(self, slide_id: str) -> Path | None:
        """Return the path of a slide's bag; None if no features are extracted."""
        return None if self.bag_folder is None else self.bag_folder / f"{slide_id}.h5"


def _to_file_name(encoder: str) -> str:
    """Return an encoder's name without colons and slashes, for use in a path.

    >>> _to_file_name("timm:vit_small.x"), _to_file_name("onnx:/tmp/my model.onnx")
    ('timm-vit_small.x', 'onnx-my-model.onnx')
    """
    kind, _, rest = encoder.partition(":")
    last = re.split(r"[/\\]", rest)[-1] if rest else ""
    return re.sub(r"[^\w.-]+", "-", f"{kind}-{last}" if last else kind)
