"""What to extract from a slide, and the files that extraction writes.

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
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from sacmil.encoders import Encoder
from sacmil.errors import OptionError, suggest_names
from sacmil.slides.resolution import SlideResolutions
from sacmil.slides.tiling import TileSpec
from sacmil.slides.tissue import TISSUE_MODES, TissueSettings

DTYPES = ("float16", "float32")


@dataclass(frozen=True, kw_only=True)
class ExtractionSettings:
    """How slides become bags: all that decides their content, but the slide and the encoder."""

    tiles: TileSpec = field(default_factory=TileSpec)
    """Resolution, size and overlap of tiles."""
    tissue: TissueSettings = field(default_factory=TissueSettings)
    """What counts as tissue."""
    tissue_mode: str = "auto"
    """detect, all (the whole image) or auto; auto means all for small plain images."""
    resolutions: SlideResolutions = field(default_factory=SlideResolutions)
    """Microns per pixel of slides as the user states them."""
    allow_upsampling: bool = False
    """Whether tiles may be finer than the scan."""
    reader: str | None = None
    """Name of the reader to open slides with; None takes the first that works."""
    drop_white: bool = False
    """Whether to leave out tiles that are mostly white."""
    drop_blurred: bool = False
    """Whether to leave out tiles out of focus."""
    dtype: str = "float16"
    """Type of the stored features."""
    slide_limit_s: float = 7200.0
    """Seconds after which a slide fails."""
    tile_limit_s: float = 60.0
    """Seconds after which reading a tile fails, and with it the slide."""

    def __post_init__(self) -> None:
        for name, known in (("dtype", DTYPES), ("tissue_mode", TISSUE_MODES)):
            value = getattr(self, name)
            if value not in known:
                raise OptionError(f"{name}={value!r}; {suggest_names(value, known)}")
        if self.tiles.mpp is None and self.resolutions != SlideResolutions():
            raise OptionError(
                "tiles are counted in pixels of the image, which need no µm per pixel; leave "
                "`slide_mpp` out"
            )
        for name in ("slide_limit_s", "tile_limit_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise OptionError(f"{name}={getattr(self, name)!r}; expected seconds above zero")


class EncoderInfo(NamedTuple):
    """The facts of an encoder that decide about pixels and features."""

    name: str
    hash: str
    input_px: int
    resample: str
    engine: str
    device: str
    precision: str
    can_resize: bool
    """Whether it takes tiles of any size and resizes them itself."""
    file_sha256: str | None = None
    """SHA-256 of an ONNX file without a card."""


def make_encoder_info(encoder: Encoder) -> EncoderInfo:
    """Return the facts of an encoder that workers and provenance need."""
    return EncoderInfo(
        name=encoder.card.name,
        hash=encoder.hash,
        input_px=encoder.card.input_px,
        resample=encoder.card.resample,
        engine=encoder.engine,
        device=encoder.device.partition(":")[0],
        precision=encoder.precision,
        can_resize=encoder.can_resize,
        file_sha256=encoder.file_sha256,
    )


@dataclass(frozen=True, kw_only=True)
class SlideRequest:
    """A slide and what to extract from it."""

    path: Path
    settings: ExtractionSettings
    out: Path | None = None
    """The output folder; None stores nothing."""
    encoder: EncoderInfo | None = None
    """None skips the features."""
    needs_tiles: bool = True
    """False stops after the tissue."""
    batch_size: int = 32
    """Tiles encoded at once."""

    @property
    def slide_id(self) -> str:
        """File stem of the slide."""
        return self.path.stem

    @property
    def cut(self) -> str:
        """Resolution and size of tiles, the name of their folder; empty if there are none."""
        spec = self.settings.tiles
        overlap = f"_{spec.overlap}px_overlap" if spec.overlap else ""
        resolution = "level0" if spec.mpp is None else f"{spec.mpp:g}mpp"
        return f"{resolution}_{spec.patch_size}px{overlap}" if self.needs_tiles else ""

    @property
    def key(self) -> tuple[str, str, str]:
        """Slide, cut and encoder: a table has one row per combination."""
        return self.slide_id, self.cut, self.encoder.name if self.encoder else ""

    @property
    def outline_path(self) -> Path | None:
        """Where the tissue outline is."""
        return self.out and self.out / "tissue" / f"{self.slide_id}.geojson"

    @property
    def preview_path(self) -> Path | None:
        """Where the preview is."""
        return self.out and self.out / "tissue" / f"{self.slide_id}.png"

    @property
    def tiles_path(self) -> Path | None:
        """Where the positions of the tiles are; None without tiles."""
        if self.out is None or not self.needs_tiles:
            return None
        return self.out / self.cut / "tiles" / f"{self.slide_id}.h5"

    @property
    def bag_path(self) -> Path | None:
        """Where the bag is; None without features."""
        if self.out is None or self.encoder is None:
            return None
        folder = f"features_{_to_file_name(self.encoder.name)}"
        return self.out / self.cut / folder / f"{self.slide_id}.h5"


def _to_file_name(encoder: str) -> str:
    """Return an encoder's name without colons and slashes, for use in a path.

    >>> _to_file_name("timm:vit_small.x"), _to_file_name("onnx:/tmp/my model.onnx")
    ('timm-vit_small.x', 'onnx-my-model.onnx')
    """
    kind, _, rest = encoder.partition(":")
    last = re.split(r"[/\\]", rest)[-1] if rest else ""
    return re.sub(r"[^\w.-]+", "-", f"{kind}-{last}" if last else kind)


class FileStamp(NamedTuple):
    """Size and time of a file; one of them changes when the file is written again."""

    size: int
    modified_ns: int


def read_stamp(path: Path | None) -> FileStamp | None:
    """Return the stamp of a file; None if it does not exist."""
    try:
        status = path.stat() if path else None
    except OSError:
        return None
    return status and FileStamp(status.st_size, status.st_mtime_ns)


def to_printable(text: object) -> str:
    """Escape what UTF-8 cannot hold; file names may contain it."""
    return str(text).encode(errors="backslashreplace").decode()
