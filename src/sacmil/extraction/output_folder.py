"""Where extraction puts things.

::

    OUT/
    ├── extraction.csv                   a row per slide: done, or why not
    ├── tissue/<slide>.geojson           what counts as tissue; edit it in QuPath, run again
    ├── tissue/<slide>.png               thumbnail with outlines and tiles
    └── 0.5mpp_256px/                    a folder per way of cutting tiles
        ├── tiles/<slide>.h5             where the tiles lie
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
        encoder: name of the encoder; None where no features are wanted.
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
        """The tissue of a slide."""
        return self.out / "tissue" / f"{slide_id}.geojson"

    def preview_path(self, slide_id: str) -> Path:
        """The picture to check."""
        return self.out / "tissue" / f"{slide_id}.png"

    def tiles_path(self, slide_id: str) -> Path:
        """Where its tiles lie."""
        return self.cut_folder / "tiles" / f"{slide_id}.h5"

    def bag_path(self, slide_id: str) -> Path | None:
        """Its features."""
        return None if self.bag_folder is None else self.bag_folder / f"{slide_id}.h5"


def _to_file_name(encoder: str) -> str:
    """A name that may hold colons, slashes and dots, as part of a path.

    >>> _to_file_name("timm:vit_small.x"), _to_file_name("onnx:/tmp/my model.onnx")
    ('timm-vit_small.x', 'onnx-my-model.onnx')
    """
    kind, _, rest = encoder.partition(":")
    last = re.split(r"[/\\]", rest)[-1] if rest else ""
    return re.sub(r"[^\w.-]+", "-", f"{kind}-{last}" if last else kind)
