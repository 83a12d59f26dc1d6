"""Everything that decides what ends up in a bag, apart from the slide and the encoder."""

from __future__ import annotations

from dataclasses import dataclass, field

from sacmil.errors import OptionError, suggest_names
from sacmil.slides.resolution import SlideResolutions
from sacmil.slides.tiling import TileSpec
from sacmil.slides.tissue import TISSUE_MODES, TissueSettings

DTYPES = ("float16", "float32")


@dataclass(frozen=True, kw_only=True)
class ExtractionSettings:
    """How slides become bags."""

    tiles: TileSpec = field(default_factory=TileSpec)
    """At which resolution tiles are cut, how large, how much they overlap."""
    tissue: TissueSettings = field(default_factory=TissueSettings)
    """What counts as tissue."""
    tissue_mode: str = "auto"
    """detect, all (the whole image) or auto, which takes all of small plain images."""
    resolutions: SlideResolutions = field(default_factory=SlideResolutions)
    """Microns per pixel the user states for slides."""
    allow_upsampling: bool = False
    """Whether tiles may be cut finer than the slide was scanned."""
    reader: str | None = None
    """Name of the reader to open slides with; None takes the first that can."""
    drop_white: bool = False
    """Whether tiles that are mostly white are left out."""
    drop_blurred: bool = False
    """Whether tiles out of focus are left out."""
    dtype: str = "float16"
    """Type of the stored features."""
    slide_limit_s: float = 7200.0
    """Seconds after which a slide is given up."""
    tile_limit_s: float = 60.0
    """Seconds after which a tile is given up, and with it the slide."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise OptionError(f"dtype={self.dtype!r}; {suggest_names(self.dtype, DTYPES)}")
        if self.tissue_mode not in TISSUE_MODES:
            raise OptionError(
                f"tissue={self.tissue_mode!r}; {suggest_names(self.tissue_mode, TISSUE_MODES)}"
            )
        if self.tiles.mpp is None and self.resolutions != SlideResolutions():
            raise OptionError(
                "tiles are counted in pixels, and µm per pixel of the slides is given as well; "
                "expected one of the two"
            )
        for name in ("slide_limit_s", "tile_limit_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise OptionError(f"{name}={getattr(self, name)!r}; expected seconds above zero")
