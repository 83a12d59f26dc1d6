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
from sacmil.slides.outline import add_mode, from_geojson, read_mode, to_geojson
from sacmil.slides.preview import draw_preview, read_facts
from sacmil.slides.readers import Slide, open_slide
from sacmil.slides.resolution import check_target, slide_mpp
from sacmil.slides.tile_file import TileSheet, read_tiles, write_tiles
from sacmil.slides.tiling import Tiles, lay_tiles
from sacmil.slides.tissue import Tissue
from sacmil.units import MicronsPerPixel

_TITLES = {"all": " · whole image", "outline": " · outline of the folder"}
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
    file_sha256: str | None = None
    """Of an ONNX file without a card."""


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
        rest = {
            "batch_size": self.batch_size,
            "reader": found.reader,
            "tissue": found.tissue,
            "tissue_mode": self.settings.tissue_mode,
        }
        if self.encoder.file_sha256 is not None:
            rest["encoder_file_sha256"] = self.encoder.file_sha256
        return self.content(found) | engine | rest


class Stamp(NamedTuple):
    """What changes when a file is written again."""

    size: int
    modified_ns: int


def stamp(path: Path) -> Stamp | None:
    """Of a file as it is now; None where there is none."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return Stamp(facts.st_size, facts.st_mtime_ns)


class Survey(NamedTuple):
    """What was found."""

    slide_id: str
    mpp: MicronsPerPixel | None
    """None where tiles are counted in pixels."""
    size: tuple[int, int]
    bounds_origin: tuple[int, int] | None
    reader: str
    fingerprint: str
    """Of the file: its size, beginning and end."""
    mask_hash: str
    tiles: Tiles | None
    """None where only tissue was wanted."""
    tissue: str
    """How tissue was found: detect, all, or outline for one made by hand."""
    bag_is_there: bool = False
    """Whether an earlier run has made this very bag."""
    sources: tuple[Stamp | None, Stamp | None] = (None, None)
    """Of the slide and its outline, taken before they were read."""


def survey(request: Request) -> Survey:
    """Look at a slide, and keep its outline, preview and tiles in the folder."""
    settings = request.settings
    _check_name(request)
    outline = request.folder.outline(request.slide_id) if request.folder else None
    before = stamp(request.path), stamp(outline) if outline else None
    fingerprint = _fingerprint(request.path)
    _check_same_slide(request, fingerprint)
    with open_slide(request.path, settings.reader) as slide:
        mpp = _resolution(request, slide)
        picture = _Picture(request, slide, fingerprint)
        tissue, mode = _tissue(request, slide, mpp or settings.tiles.tissue_mpp, picture)
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
            mode,
        )
        sources = before[0], before[1] or (stamp(outline) if outline else None)
        return found._replace(bag_is_there=_bag_is_there(request, found), sources=sources)


def _resolution(request: Request, slide: Slide) -> MicronsPerPixel | None:
    """Microns per level-0 pixel, fine enough for the tiles; None where they are counted in pixels.

    A scale the file states is then left out of the bag: its tiles do not follow from it.
    """
    settings = request.settings
    if settings.tiles.mpp is None:
        return None
    mpp = slide_mpp(slide, settings.resolutions)
    allow = settings.allow_upsampling
    check_target(settings.tiles.mpp, mpp, allow_upsampling=allow, name=request.path)
    return mpp


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
        self.mode = ""

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
            title = slide_id + _TITLES.get(self.mode, "")
            draw_preview(self._slide, tissue, tiles, preview, title=title, facts=facts)


def _tissue(
    request: Request, slide: Slide, mpp: MicronsPerPixel, picture: _Picture
) -> tuple[Tissue, str]:
    """As the outline in the folder says, which is made first where there is none; and its mode."""
    kept = request.folder.outline(request.slide_id) if request.folder else None
    outline = kept.read_bytes() if kept and kept.exists() else None
    if outline is None or _is_of_other_mode(outline, request.settings.tissue_mode):
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
    mode = read_mode(outline) or "outline"
    picture.mode = mode
    if not request.tiles_wanted:
        picture.show(tissue, None)
    return tissue, mode


def _is_of_other_mode(outline: bytes, mode: str) -> bool:
    """Whether the program made an outline in another way; one made by hand always stays."""
    made_by = "detect" if outline == _NOTHING.encode() else read_mode(outline)
    return mode != "auto" and made_by not in (None, mode)


def _found_outline(request: Request, slide: Slide, mpp: MicronsPerPixel) -> bytes:
    settings = request.settings
    mode = tissues.choose_mode(slide, settings.tissue_mode)
    find = tissues.take_all if mode == "all" else tissues.find_tissue
    try:
        tissue = find(slide, mpp, settings.tissue)
    except NoTissueError:
        if request.folder is None:
            raise
        return _NOTHING.encode()  # so that there is a file to draw tissue into
    return add_mode(to_geojson(tissue, slide.bounds_origin), mode).encode()


def _tiles(
    request: Request,
    slide: Slide,
    mpp: MicronsPerPixel | None,
    tissue: Tissue,
    picture: _Picture,
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
