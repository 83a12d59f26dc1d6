"""What a slide offers: its resolution, its tissue, its tiles; runs in a worker process.

What was there before is taken up: an outline edited by hand is read, not made again, and tiles
are laid anew only where the outline or the way of cutting has changed.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from sacmil.atomic import atomic_write
from sacmil.errors import FormatError, NoTissueError, SlideError
from sacmil.extraction.output_folder import OutputFolder
from sacmil.extraction.settings import ExtractionSettings
from sacmil.formats.native import read_provenance
from sacmil.slides import tissue as tissues
from sacmil.slides.outline import add_tissue_mode, from_geojson, read_tissue_mode, to_geojson
from sacmil.slides.preview import draw_preview, read_metadata
from sacmil.slides.readers import Slide, open_slide
from sacmil.slides.resolution import check_target_mpp, find_slide_mpp
from sacmil.slides.tile_file import SlideTiles, read_tiles, write_tiles
from sacmil.slides.tiling import Tiles, lay_tiles
from sacmil.slides.tissue import Tissue
from sacmil.units import MicronsPerPixel

_TITLE_SUFFIXES = {"all": " · whole image", "outline": " · outline of the folder"}
_EMPTY_OUTLINE = '{"type":"FeatureCollection","features":[]}'


class EncoderInfo(NamedTuple):
    """What of an encoder decides about pixels and features."""

    name: str
    hash: str
    input_px: int
    resample: str
    engine: str
    device: str
    precision: str
    can_resize: bool
    """Whether it takes tiles as they are cut."""
    file_sha256: str | None = None
    """Of an ONNX file without a card."""


@dataclass(frozen=True, kw_only=True)
class SlideRequest:
    """One slide, and what is wanted of it."""

    path: Path
    settings: ExtractionSettings
    folder: OutputFolder | None = None
    """Where outlines and tiles are kept; None keeps nothing."""
    encoder: EncoderInfo | None = None
    """None stops before features."""
    needs_tiles: bool = True
    """False stops when tissue is found."""
    batch_size: int = 32
    """Tiles encoded at once."""

    @property
    def slide_id(self) -> str:
        """File stem of the slide."""
        return self.path.stem

    def describe_content(self, prepared: PreparedSlide) -> dict[str, Any]:
        """Everything that decides what is in the bag, up to rounding."""
        settings = self.settings
        chosen = asdict(settings.tiles) | {
            "slide": prepared.fingerprint,
            "slide_mpp": prepared.mpp,
            "allow_upsampling": settings.allow_upsampling,
            "drop_white": settings.drop_white,
            "drop_blurred": settings.drop_blurred,
            "dtype": settings.dtype,
            "mask": prepared.mask_hash,
        }
        if self.encoder is not None:
            facts = ("name", "hash", "input_px", "resample")
            chosen |= {f"encoder_{fact}": getattr(self.encoder, fact) for fact in facts}
        return chosen

    def make_provenance(self, prepared: PreparedSlide) -> dict[str, Any]:
        """Everything that decides what is in the bag, to the last bit."""
        assert self.encoder is not None
        engine = {name: getattr(self.encoder, name) for name in ("engine", "device", "precision")}
        rest = {
            "batch_size": self.batch_size,
            "reader": prepared.reader,
            "tissue": prepared.tissue,
            "tissue_mode": self.settings.tissue_mode,
        }
        if self.encoder.file_sha256 is not None:
            rest["encoder_file_sha256"] = self.encoder.file_sha256
        return self.describe_content(prepared) | engine | rest


class FileStamp(NamedTuple):
    """What changes when a file is written again."""

    size: int
    modified_ns: int


def read_stamp(path: Path) -> FileStamp | None:
    """Of a file as it is now; None where there is none."""
    try:
        facts = path.stat()
    except OSError:
        return None
    return FileStamp(facts.st_size, facts.st_mtime_ns)


class PreparedSlide(NamedTuple):
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
    has_bag: bool = False
    """Whether an earlier run has made this very bag."""
    source_stamps: tuple[FileStamp | None, FileStamp | None] = (None, None)
    """Of the slide and its outline, taken before they were read."""


def prepare_slide(request: SlideRequest) -> PreparedSlide:
    """Look at a slide, and keep its outline, preview and tiles in the folder."""
    settings = request.settings
    _check_name(request)
    outline = request.folder.outline_path(request.slide_id) if request.folder else None
    before = read_stamp(request.path), read_stamp(outline) if outline else None
    fingerprint = _compute_fingerprint(request.path)
    _check_same_slide(request, fingerprint)
    with open_slide(request.path, settings.reader) as slide:
        mpp = _find_mpp(request, slide)
        picture = _Preview(request, slide, fingerprint)
        tissue, mode = _find_tissue(request, slide, mpp or settings.tiles.tissue_mpp, picture)
        tiles = _find_tiles(request, slide, mpp, tissue, picture) if request.needs_tiles else None
        found = PreparedSlide(
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
        sources = before[0], before[1] or (read_stamp(outline) if outline else None)
        return found._replace(has_bag=_has_bag(request, found), source_stamps=sources)


def _find_mpp(request: SlideRequest, slide: Slide) -> MicronsPerPixel | None:
    """Microns per level-0 pixel, fine enough for the tiles; None where they are counted in pixels.

    A scale the file states is then left out of the bag: its tiles do not follow from it.
    """
    settings = request.settings
    if settings.tiles.mpp is None:
        return None
    mpp = find_slide_mpp(slide, settings.resolutions)
    allow = settings.allow_upsampling
    check_target_mpp(settings.tiles.mpp, mpp, allow_upsampling=allow, name=request.path)
    return mpp


def _check_name(request: SlideRequest) -> None:
    try:
        request.slide_id.encode()
    except UnicodeEncodeError:
        raise SlideError(
            f"{_to_printable(request.path)}: its name is not UTF-8, tables could not hold it; "
            "rename it"
        ) from None


def _to_printable(path: Path) -> str:
    return str(path).encode(errors="backslashreplace").decode()


def _compute_fingerprint(path: Path, end_bytes: int = 2**16) -> str:
    """16 hexadecimal digits that change when the file is another, without reading all of it."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(end_bytes))
        file.seek(max(0, size - end_bytes))
        digest.update(file.read(end_bytes))
    return digest.hexdigest()[:16]


def _check_same_slide(request: SlideRequest, fingerprint: str) -> None:
    """An outline is taken up for the slide it was drawn on, and for no other of that name."""
    if request.folder is None:
        return
    preview = request.folder.preview_path(request.slide_id)
    outline = request.folder.outline_path(request.slide_id)
    if outline.exists() and read_metadata(preview).get("slide", fingerprint) != fingerprint:
        raise SlideError(
            f"{request.path}: {outline} was made for another slide of this name, or for this one "
            "before it was replaced; give another --out, rename the slide, or delete that file "
            f"and {preview.name} beside it"
        )


class _Preview:
    """The preview of a slide, drawn when what it would show has changed."""

    def __init__(self, request: SlideRequest, slide: Slide, fingerprint: str) -> None:
        self._request, self._slide, self._fingerprint = request, slide, fingerprint
        self.mode = ""

    def update(self, tissue: Tissue | None, tiles: Tiles | None) -> None:
        folder, slide_id = self._request.folder, self._request.slide_id
        if folder is None:
            return
        facts = {
            "slide": self._fingerprint,
            "mask": tissue.hash if tissue else "none",
            "tiles": f"{folder.cut_folder.name} {len(tiles)}" if tiles else "none",
        }
        preview = folder.preview_path(slide_id)
        if facts.items() - read_metadata(preview).items():
            title = slide_id + _TITLE_SUFFIXES.get(self.mode, "")
            draw_preview(self._slide, tissue, tiles, preview, title=title, metadata=facts)


def _find_tissue(
    request: SlideRequest, slide: Slide, mpp: MicronsPerPixel, preview: _Preview
) -> tuple[Tissue, str]:
    """As the outline in the folder says, which is made first where there is none; and its mode."""
    kept = request.folder.outline_path(request.slide_id) if request.folder else None
    outline = kept.read_bytes() if kept and kept.exists() else None
    if outline is None or _has_other_mode(outline, request.settings.tissue_mode):
        outline = _make_outline(request, slide, mpp)
        if kept:
            with atomic_write(kept) as partial:
                partial.write_bytes(outline)
    try:
        downsample = tissues.mask_downsample(slide, mpp, request.settings.tissue)
        source = kept or request.path
        tissue = from_geojson(outline, slide.size, slide.bounds_origin, downsample, source=source)
    except NoTissueError as error:
        preview.update(None, None)
        if outline == _EMPTY_OUTLINE.encode() and request.folder:
            raise NoTissueError(
                f"{request.path}: nothing on the slide looks like tissue; look at "
                f"{request.folder.preview_path(request.slide_id)}, and where there is some, draw "
                "it in "
                f"QuPath and export it as GeoJSON over {kept}"
            ) from error
        raise
    mode = read_tissue_mode(outline) or "outline"
    preview.mode = mode
    if not request.needs_tiles:
        preview.update(tissue, None)
    return tissue, mode


def _has_other_mode(outline: bytes, mode: str) -> bool:
    """Whether the program made an outline in another way; one made by hand always stays."""
    made_by = "detect" if outline == _EMPTY_OUTLINE.encode() else read_tissue_mode(outline)
    return mode != "auto" and made_by not in (None, mode)


def _make_outline(request: SlideRequest, slide: Slide, mpp: MicronsPerPixel) -> bytes:
    settings = request.settings
    mode = tissues.choose_tissue_mode(slide, settings.tissue_mode)
    find = tissues.mark_all_as_tissue if mode == "all" else tissues.find_tissue
    try:
        tissue = find(slide, mpp, settings.tissue)
    except NoTissueError:
        if request.folder is None:
            raise
        return _EMPTY_OUTLINE.encode()  # so that there is a file to draw tissue into
    return add_tissue_mode(to_geojson(tissue, slide.bounds_origin), mode).encode()


def _find_tiles(
    request: SlideRequest,
    slide: Slide,
    mpp: MicronsPerPixel | None,
    tissue: Tissue,
    preview: _Preview,
) -> Tiles:
    """Those in the folder, unless they were laid for another outline or in another way."""
    spec = request.settings.tiles
    kept = request.folder.tiles_path(request.slide_id) if request.folder else None
    if kept and kept.exists():
        sheet = _try_read_tiles(kept)
        made_for = (spec, mpp, slide.size, tissue.hash)
        if sheet and (sheet.spec, sheet.slide_mpp, sheet.slide_size, sheet.mask_hash) == made_for:
            preview.update(tissue, sheet.tiles)
            return sheet.tiles
    try:
        tiles = lay_tiles(tissue, mpp, spec)
    except NoTissueError as error:
        preview.update(tissue, None)
        raise NoTissueError(f"{request.path}: {error}") from error
    if kept:
        write_tiles(kept, SlideTiles(request.slide_id, tiles, spec, mpp, slide.size, tissue.hash))
    preview.update(tissue, tiles)
    return tiles


def _try_read_tiles(path: Path) -> SlideTiles | None:
    try:
        return read_tiles(path)
    except FormatError:  # damaged: it is made again
        return None


def _has_bag(request: SlideRequest, prepared: PreparedSlide) -> bool:
    bag = request.folder.bag_path(request.slide_id) if request.folder else None
    if bag is None or not bag.exists():
        return False
    try:
        made_by = read_provenance(bag)
    except FormatError:  # damaged: it is made again
        return False
    wanted = request.describe_content(prepared)
    return {name: made_by.get(name) for name in wanted} == wanted
