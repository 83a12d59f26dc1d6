"""Finds the resolution, tissue and tiles of a slide; runs in a worker process.

Existing files are used: an outline edited by hand is read and never replaced. Tiles are laid again
only if the outline or the tile settings have changed.
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
from sacmil.slides.tiling import SlideTiles, Tiles, lay_tiles, read_tiles, write_tiles
from sacmil.slides.tissue import Tissue
from sacmil.units import MicronsPerPixel

_TITLE_SUFFIXES = {"all": " · whole image", "outline": " · outline of the folder"}
_EMPTY_OUTLINE = '{"type":"FeatureCollection","features":[]}'


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


@dataclass(frozen=True, kw_only=True)
class SlideRequest:
    """A slide and what to extract from it."""

    path: Path
    settings: ExtractionSettings
    folder: OutputFolder | None = None
    """Where outlines and tiles are stored; None stores nothing."""
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

    def describe_content(self, prepared: PreparedSlide) -> dict[str, Any]:
        """Return everything that decides the bag's content, up to rounding."""
        settings = self.settings
        content = asdict(settings.tiles) | {
            "slide": prepared.fingerprint,
            "slide_mpp": prepared.mpp,
            "allow_upsampling": settings.allow_upsampling,
            "drop_white": settings.drop_white,
            "drop_blurred": settings.drop_blurred,
            "dtype": settings.dtype,
            "mask": prepared.mask_hash,
        }
        if self.encoder is not None:
            names = ("name", "hash", "input_px", "resample")
            content |= {f"encoder_{name}": getattr(self.encoder, name) for name in names}
        return content

    def make_provenance(self, prepared: PreparedSlide) -> dict[str, Any]:
        """Return everything that decides the bag's content, to the last bit."""
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
    """Size and time of a file; one of them changes when the file is written again."""

    size: int
    modified_ns: int


def read_stamp(path: Path) -> FileStamp | None:
    """Return the stamp of a file; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return FileStamp(status.st_size, status.st_mtime_ns)


class PreparedSlide(NamedTuple):
    """Resolution, tissue and tiles of a slide."""

    slide_id: str
    mpp: MicronsPerPixel | None
    """None if tiles are counted in pixels."""
    size: tuple[int, int]
    bounds_origin: tuple[int, int] | None
    reader: str
    fingerprint: str
    """A hash of the file's size, beginning and end."""
    mask_hash: str
    tiles: Tiles | None
    """None if only tissue was requested."""
    tissue: str
    """How tissue was found: detect, all, or outline for one drawn by hand."""
    has_bag: bool = False
    """Whether an earlier run wrote exactly this bag."""
    source_stamps: tuple[FileStamp | None, FileStamp | None] = (None, None)
    """Stamps of the slide and its outline, taken before they were read."""


def prepare_slide(request: SlideRequest) -> PreparedSlide:
    """Find a slide's tissue and tiles; store outline, preview and tiles in the folder."""
    settings = request.settings
    _check_name(request)
    outline = request.folder.outline_path(request.slide_id) if request.folder else None
    before = read_stamp(request.path), read_stamp(outline) if outline else None
    fingerprint = _compute_fingerprint(request.path)
    _check_same_slide(request, fingerprint)
    with open_slide(request.path, settings.reader) as slide:
        mpp = _find_mpp(request, slide)
        preview = _Preview(request, slide, fingerprint)
        tissue, mode = _find_tissue(request, slide, mpp or settings.tiles.tissue_mpp, preview)
        tiles = _find_tiles(request, slide, mpp, tissue, preview) if request.needs_tiles else None
        prepared = PreparedSlide(
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
        return prepared._replace(has_bag=_has_bag(request, prepared), source_stamps=sources)


def _find_mpp(request: SlideRequest, slide: Slide) -> MicronsPerPixel | None:
    """Return microns per level-0 pixel, checked against the tiles' resolution.

    None if tiles are counted in pixels. The bag then omits a scale that the file states, because
    its tiles do not depend on it.
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
            f"{_to_printable(request.path)}: the file name is not UTF-8, so tables cannot hold it; "
            "rename the file"
        ) from None


def _to_printable(path: Path) -> str:
    return str(path).encode(errors="backslashreplace").decode()


def _compute_fingerprint(path: Path, end_bytes: int = 2**16) -> str:
    """Return 16 hexadecimal digits that identify a file, without reading all of it."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(end_bytes))
        file.seek(max(0, size - end_bytes))
        digest.update(file.read(end_bytes))
    return digest.hexdigest()[:16]


def _check_same_slide(request: SlideRequest, fingerprint: str) -> None:
    """Reject an outline that was drawn on another slide of the same name."""
    if request.folder is None:
        return
    preview = request.folder.preview_path(request.slide_id)
    outline = request.folder.outline_path(request.slide_id)
    if outline.exists() and read_metadata(preview).get("slide", fingerprint) != fingerprint:
        raise SlideError(
            f"{request.path}: {outline} was made for another slide of this name, or for this one "
            "before it was replaced; give another `out`, rename the slide, or delete that file "
            f"and {preview.name} beside it"
        )


class _Preview:
    """The preview of a slide, drawn again when its content changes."""

    def __init__(self, request: SlideRequest, slide: Slide, fingerprint: str) -> None:
        self._request, self._slide, self._fingerprint = request, slide, fingerprint
        self.mode = ""

    def update(self, tissue: Tissue | None, tiles: Tiles | None) -> None:
        folder, slide_id = self._request.folder, self._request.slide_id
        if folder is None:
            return
        metadata = {
            "slide": self._fingerprint,
            "mask": tissue.hash if tissue else "none",
            "tiles": f"{folder.cut_folder.name} {len(tiles)}" if tiles else "none",
        }
        preview = folder.preview_path(slide_id)
        if metadata.items() - read_metadata(preview).items():
            title = slide_id + _TITLE_SUFFIXES.get(self.mode, "")
            draw_preview(self._slide, tissue, tiles, preview, title=title, metadata=metadata)


def _find_tissue(
    request: SlideRequest, slide: Slide, mpp: MicronsPerPixel, preview: _Preview
) -> tuple[Tissue, str]:
    """Return the tissue of the outline in the folder, made first if missing, and its mode."""
    path = request.folder.outline_path(request.slide_id) if request.folder else None
    outline = path.read_bytes() if path and path.exists() else None
    if outline is None or _has_other_mode(outline, request.settings.tissue_mode):
        outline = _make_outline(request, slide, mpp)
        if path:
            with atomic_write(path) as partial:
                partial.write_bytes(outline)
    try:
        downsample = tissues.mask_downsample(slide, mpp, request.settings.tissue)
        source = path or request.path
        tissue = from_geojson(outline, slide.size, slide.bounds_origin, downsample, source=source)
    except NoTissueError as error:
        preview.update(None, None)
        if outline == _EMPTY_OUTLINE.encode() and request.folder:
            raise NoTissueError(
                f"{request.path}: nothing on the slide looks like tissue; look at "
                f"{request.folder.preview_path(request.slide_id)}, and if there is some, draw it "
                f"in QuPath and export it as GeoJSON over {path}"
            ) from error
        raise
    mode = read_tissue_mode(outline) or "outline"
    preview.mode = mode
    if not request.needs_tiles:
        preview.update(tissue, None)
    return tissue, mode


def _has_other_mode(outline: bytes, mode: str) -> bool:
    """Whether an outline was found in another mode; outlines drawn by hand always stay."""
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
        return _EMPTY_OUTLINE.encode()  # a file that tissue can be drawn into
    return add_tissue_mode(to_geojson(tissue, slide.bounds_origin), mode).encode()


def _find_tiles(
    request: SlideRequest,
    slide: Slide,
    mpp: MicronsPerPixel | None,
    tissue: Tissue,
    preview: _Preview,
) -> Tiles:
    """Return the tiles in the folder, or new ones if the outline or the settings changed."""
    spec = request.settings.tiles
    path = request.folder.tiles_path(request.slide_id) if request.folder else None
    if path and path.exists():
        old = _try_read_tiles(path)
        expected = (spec, mpp, slide.size, tissue.hash)
        if old and (old.spec, old.slide_mpp, old.slide_size, old.mask_hash) == expected:
            preview.update(tissue, old.tiles)
            return old.tiles
    try:
        tiles = lay_tiles(tissue, mpp, spec)
    except NoTissueError as error:
        preview.update(tissue, None)
        raise NoTissueError(f"{request.path}: {error}") from error
    if path:
        write_tiles(path, SlideTiles(request.slide_id, tiles, spec, mpp, slide.size, tissue.hash))
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
        provenance = read_provenance(bag)
    except FormatError:  # damaged: it is made again
        return False
    expected = request.describe_content(prepared)
    return {name: provenance.get(name) for name in expected} == expected
