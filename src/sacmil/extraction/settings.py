"""All settings that decide what is in a bag, apart from the slide and the encoder."""

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
        if self.dtype not in DTYPES:
            raise OptionError(f"dtype={self.dtype!r}; {suggest_names(self.dtype, DTYPES)}")
        if self.tissue_mode not in TISSUE_MODES:
            raise OptionError(
                f"tissue_mode={self.tissue_mode!r}; {suggest_names(self.tissue_mode, TISSUE_MODES)}"
            )
        if self.tiles.mpp is None and self.resolutions != SlideResolutions():
            raise OptionError(
                "tiles are counted in pixels of the image, which need no µm per pixel; leave "
                "`slide_mpp` out"
            )
        for name in ("slide_limit_s", "tile_limit_s"):
            if not 0 < getattr(self, name) < float("inf"):
                raise OptionError(f"{name}={getattr(self, name)!r}; expected seconds above zero")
