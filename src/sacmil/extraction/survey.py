"""What a slide offers: its resolution, its tissue, its tiles; runs in a worker process.

What was there before is taken up: an outline edited by hand is read, not made again, and tiles
are laid anew only where the outline or the way of cutting has changed.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sacmil.atomic import whole_file
from sacmil.errors import FormatError, NoTissueError, SlideError
from sacmil.extraction.folder import Folder
from sacmil.extraction.settings import Settings
from sacmil.formats.native import read_provenance
from sacmil.slides import tissue as tissues
from sacmil.slides.outline import from_geojson, to_geojson
from sacmil.slides.preview import draw_preview, read_facts
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

    def content(self, found: Survey) -> dict[str, Any]:
        """Everything that decides what is in the bag, up to rounding."""
        settings = self.settings
        chosen = asdict(settings.tiles) | {
            "slide": found.fingerprint,
            "slide_mpp": found.mpp,
            "allow_upsampling": settings.allow_upsampling,
            "drop_white": settings.drop_white,
            "drop_blurred": settings.drop_blurred,
            "dtype": settings.dtype,
            "mask": found.mask_hash,
        }
        if self.encoder is not None:
            facts = ("name", "hash", "input_px", "resample")
            chosen |= {f"encoder_{fact}": getattr(self.encoder, fact) for fact in facts}
        return chosen

    def provenance(self, found: Survey) -> dict[str, Any]:
        """Everything that decides what is in the bag, to the last bit."""
        assert self.encoder is not None
        engine = {name: getattr(self.encoder, name) for name in ("engine", "device", "precision")}
        rest = {"batch_size": self.batch_size, "reader": found.reader}
        return self.content(found) | engine | rest


class Survey(NamedTuple):
    """What was found."""

    slide_id: str
    mpp: MicronsPerPixel
    size: tuple[int, int]
    bounds_origin: tuple[int, int] | None
    reader: str
    fingerprint: str
    """Of the file: its size, beginning and end."""
    mask_hash: str
    tiles: Tiles | None
    """None where only tissue was wanted."""
    bag_is_there: bool = False
    """Whether an earlier run has made this very bag."""


def survey(request: Request) -> Survey:
    """Look at a slide, and keep its outline, preview and tiles in the folder."""
    settings = request.settings
    _check_name(request)
    fingerprint = _fingerprint(request.path)
    _check_same_slide(request, fingerprint)
    with open_slide(request.path, settings.reader) as slide:
        mpp = slide_mpp(slide, settings.resolutions)
        check_target(
            settings.tiles.mpp,
            mpp,
            allow_upsampling=settings.allow_upsampling,
            name=request.path,
        )
        picture = _Picture(request, slide, fingerprint)
        tissue = _tissue(request, slide, mpp, picture)
        tiles = _tiles(request, slide, mpp, tissue, picture) if request.tiles_wanted else None
        found = Survey(
            request.slide_id,
            mpp,
            slide.size,
            slide.bounds_origin,
            slide.reader,
            fingerprint,
            tissue.hash,
            tiles,
        )
        return found._replace(bag_is_there=_bag_is_there(request, found))


def _check_name(request: Request) -> None:
    try:
        request.slide_id.encode()
    except UnicodeEncodeError:
        raise SlideError(
            f"{_shown(request.path)}: its name is not UTF-8, tables could not hold it; rename it"
        ) from None


def _shown(path: Path) -> str:
    return str(path).encode(errors="backslashreplace").decode()


def _fingerprint(path: Path, ends: int = 2**16) -> str:
    """16 hexadecimal digits that change when the file is another, without reading all of it."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(ends))
        file.seek(max(0, size - ends))
        digest.update(file.read(ends))
    return digest.hexdigest()[:16]


def _check_same_slide(request: Request, fingerprint: str) -> None:
    """An outline is taken up for the slide it was drawn on, and for no other of that name."""
    if request.folder is None:
        return
    preview = request.folder.preview(request.slide_id)
    outline = request.folder.outline(request.slide_id)
    if outline.exists() and read_facts(preview).get("slide", fingerprint) != fingerprint:
        raise SlideError(
            f"{request.path}: {outline} was made for another slide of this name, or for this one "
            "before it was replaced; give another --out, rename the slide, or delete that file "
            f"and {preview.name} beside it"
        )


class _Picture:
    """The preview of a slide, drawn when what it would show has changed."""

    def __init__(self, request: Request, slide: Slide, fingerprint: str) -> None:
        self._request, self._slide, self._fingerprint = request, slide, fingerprint

    def show(self, tissue: Tissue | None, tiles: Tiles | None) -> None:
        folder, slide_id = self._request.folder, self._request.slide_id
        if folder is None:
            return
        facts = {
            "slide": self._fingerprint,
            "mask": tissue.hash if tissue else "none",
            "tiles": f"{folder.cut.name} {len(tiles)}" if tiles else "none",
        }
        preview = folder.preview(slide_id)
        if facts.items() - read_facts(preview).items():
            draw_preview(self._slide, tissue, tiles, preview, title=slide_id, facts=facts)


def _tissue(request: Request, slide: Slide, mpp: MicronsPerPixel, picture: _Picture) -> Tissue:
    """As the outline in the folder says, which is made first where there is none."""
    kept = request.folder.outline(request.slide_id) if request.folder else None
    outline = kept.read_bytes() if kept and kept.exists() else None
    if outline is None:
        outline = _found_outline(request, slide, mpp)
        if kept:
            with whole_file(kept) as partial:
                partial.write_bytes(outline)
    try:
        downsample = tissues.mask_downsample(slide, mpp, request.settings.tissue)
        source = kept or request.path
        tissue = from_geojson(outline, slide.size, slide.bounds_origin, downsample, source=source)
    except NoTissueError as error:
        picture.show(None, None)
        if outline == _NOTHING.encode() and request.folder:
            raise NoTissueError(
                f"{request.path}: nothing on the slide looks like tissue; look at "
                f"{request.folder.preview(request.slide_id)}, and where there is some, draw it in "
                f"QuPath and export it as GeoJSON over {kept}"
            ) from error
        raise
    if not request.tiles_wanted:
        picture.show(tissue, None)
    return tissue


def _found_outline(request: Request, slide: Slide, mpp: MicronsPerPixel) -> bytes:
    try:
        tissue = tissues.find_tissue(slide, mpp, request.settings.tissue)
    except NoTissueError:
        if request.folder is None:
            raise
        return _NOTHING.encode()  # so that there is a file to draw tissue into
    return to_geojson(tissue, slide.bounds_origin).encode()


def _tiles(
    request: Request, slide: Slide, mpp: MicronsPerPixel, tissue: Tissue, picture: _Picture
) -> Tiles:
    """Those in the folder, unless they were laid for another outline or in another way."""
    spec = request.settings.tiles
    kept = request.folder.tiles(request.slide_id) if request.folder else None
    if kept and kept.exists():
        sheet = _read_or_none(kept)
        made_for = (spec, mpp, slide.size, tissue.hash)
        if sheet and (sheet.spec, sheet.slide_mpp, sheet.slide_size, sheet.mask_hash) == made_for:
            picture.show(tissue, sheet.tiles)
            return sheet.tiles
    try:
        tiles = lay_tiles(tissue, mpp, spec)
    except NoTissueError as error:
        picture.show(tissue, None)
        raise NoTissueError(f"{request.path}: {error}") from error
    if kept:
        write_tiles(kept, TileSheet(request.slide_id, tiles, spec, mpp, slide.size, tissue.hash))
    picture.show(tissue, tiles)
    return tiles


def _read_or_none(path: Path) -> TileSheet | None:
    try:
        return read_tiles(path)
    except FormatError:  # damaged: it is made again
        return None


def _bag_is_there(request: Request, found: Survey) -> bool:
    bag = request.folder.bag(request.slide_id) if request.folder else None
    if bag is None or not bag.exists():
        return False
    try:
        made_by = read_provenance(bag)
    except FormatError:  # damaged: it is made again
        return False
    wanted = request.content(found)
    return {name: made_by.get(name) for name in wanted} == wanted
