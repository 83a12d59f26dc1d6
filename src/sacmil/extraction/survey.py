"""What a slide offers: its resolution, its tissue, its tiles; runs in a worker process.

What was there before is taken up: an outline edited by hand is read, not made again, and tiles
are laid anew only where the outline or the way of cutting has changed.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sacmil.atomic import whole_file
from sacmil.errors import FormatError, NoTissueError
from sacmil.extraction.folder import Folder
from sacmil.extraction.settings import Settings
from sacmil.formats.native import read_provenance
from sacmil.slides import tissue as tissues
from sacmil.slides.outline import from_geojson, to_geojson
from sacmil.slides.preview import draw_preview
from sacmil.slides.readers import Slide, open_slide
from sacmil.slides.resolution import check_target, slide_mpp
from sacmil.slides.tile_file import TileSheet, read_tiles, write_tiles
from sacmil.slides.tiling import Tiles, lay_tiles
from sacmil.slides.tissue import Tissue
from sacmil.units import MicronsPerPixel

_NOTHING = '{"type":"FeatureCollection","features":[]}'


class EncoderFacts(NamedTuple):
    """What of an encoder decides about pixels and features."""

    name: str
    hash: str
    input_px: int
    resample: str
    engine: str
    device: str
    precision: str
    resizes: bool
    """Whether it takes tiles as they are cut."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """One slide, and what is wanted of it."""

    path: Path
    settings: Settings
    folder: Folder | None = None
    """Where outlines and tiles are kept; None keeps nothing."""
    encoder: EncoderFacts | None = None
    """None stops before features."""
    tiles_wanted: bool = True
    """False stops when tissue is found."""
    batch_size: int = 32
    """Tiles encoded at once."""

    @property
    def slide_id(self) -> str:
        """File stem of the slide."""
        return self.path.stem

    def content(self, mask_hash: str) -> dict[str, Any]:
        """Everything that decides what is in the bag, up to rounding."""
        settings = self.settings
        chosen = asdict(settings.tiles) | {
            "allow_upsampling": settings.allow_upsampling,
            "drop_white": settings.drop_white,
            "drop_blurred": settings.drop_blurred,
            "dtype": settings.dtype,
            "mask": mask_hash,
        }
        if self.encoder is not None:
            facts = ("name", "hash", "input_px", "resample")
            chosen |= {f"encoder_{fact}": getattr(self.encoder, fact) for fact in facts}
        return chosen

    def provenance(self, mask_hash: str, reader: str) -> dict[str, Any]:
        """Everything that decides what is in the bag, to the last bit."""
        assert self.encoder is not None
        engine = {name: getattr(self.encoder, name) for name in ("engine", "device", "precision")}
        return self.content(mask_hash) | engine | {"batch_size": self.batch_size, "reader": reader}


class Survey(NamedTuple):
    """What was found."""

    slide_id: str
    mpp: MicronsPerPixel
    size: tuple[int, int]
    bounds_origin: tuple[int, int] | None
    reader: str
    mask_hash: str
    tiles: Tiles | None
    """None where only tissue was wanted."""
    bag_is_there: bool
    """Whether an earlier run has made this very bag."""


def survey(request: Request) -> Survey:
    """Look at a slide, and keep its outline, preview and tiles in the folder."""
    settings = request.settings
    with open_slide(request.path, settings.reader) as slide:
        mpp = slide_mpp(slide, settings.resolutions)
        check_target(
            settings.tiles.mpp,
            mpp,
            allow_upsampling=settings.allow_upsampling,
            name=request.path,
        )
        tissue = _tissue(request, slide, mpp)
        tiles = _tiles(request, slide, mpp, tissue) if request.tiles_wanted else None
        return Survey(
            request.slide_id,
            mpp,
            slide.size,
            slide.bounds_origin,
            slide.reader,
            tissue.hash,
            tiles,
            _bag_is_there(request, tissue.hash),
        )


def _tissue(request: Request, slide: Slide, mpp: MicronsPerPixel) -> Tissue:
    """As the outline in the folder says, which is made first where there is none."""
    kept = request.folder.outline(request.slide_id) if request.folder else None
    outline = kept.read_bytes() if kept and kept.exists() else None
    is_new = outline is None
    if outline is None:
        outline = _found_outline(request, slide, mpp)
        if kept:
            with whole_file(kept) as partial:
                partial.write_bytes(outline)
    try:
        downsample = tissues.mask_downsample(slide, mpp, request.settings.tissue)
        source = kept or request.path
        tissue = from_geojson(outline, slide.size, slide.bounds_origin, downsample, source=source)
    except NoTissueError:
        _draw(request, slide, None, None, is_new=True)
        raise
    if not request.tiles_wanted:
        _draw(request, slide, tissue, None, is_new=is_new)
    return tissue


def _found_outline(request: Request, slide: Slide, mpp: MicronsPerPixel) -> bytes:
    try:
        tissue = tissues.find_tissue(slide, mpp, request.settings.tissue)
    except NoTissueError:
        if request.folder is None:
            raise
        return _NOTHING.encode()  # so that there is a file to draw tissue into
    return to_geojson(tissue, slide.bounds_origin).encode()


def _tiles(request: Request, slide: Slide, mpp: MicronsPerPixel, tissue: Tissue) -> Tiles:
    """Those in the folder, unless they were laid for another outline or in another way."""
    spec = request.settings.tiles
    kept = request.folder.tiles(request.slide_id) if request.folder else None
    if kept and kept.exists():
        sheet = _read_or_none(kept)
        made_for = (spec, mpp, slide.size, tissue.hash)
        if sheet and (sheet.spec, sheet.slide_mpp, sheet.slide_size, sheet.mask_hash) == made_for:
            _draw(request, slide, tissue, sheet.tiles, is_new=False)
            return sheet.tiles
    try:
        tiles = lay_tiles(tissue, mpp, spec)
    except NoTissueError as error:
        _draw(request, slide, tissue, None, is_new=True)
        raise NoTissueError(f"{request.path}: {error}") from error
    if kept:
        write_tiles(kept, TileSheet(request.slide_id, tiles, spec, mpp, slide.size, tissue.hash))
    _draw(request, slide, tissue, tiles, is_new=True)
    return tiles


def _read_or_none(path: Path) -> TileSheet | None:
    try:
        return read_tiles(path)
    except FormatError:  # damaged: it is made again
        return None


def _draw(
    request: Request, slide: Slide, tissue: Tissue | None, tiles: Tiles | None, *, is_new: bool
) -> None:
    if request.folder is None:
        return
    preview = request.folder.preview(request.slide_id)
    if is_new or not preview.exists():
        draw_preview(slide, tissue, tiles, preview, title=request.slide_id)


def _bag_is_there(request: Request, mask_hash: str) -> bool:
    bag = request.folder.bag(request.slide_id) if request.folder else None
    if bag is None or not bag.exists():
        return False
    try:
        made_by = read_provenance(bag)
    except FormatError:  # damaged: it is made again
        return False
    wanted = request.content(mask_hash)
    return {name: made_by.get(name) for name in wanted} == wanted
