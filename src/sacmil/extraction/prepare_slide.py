"""Finds the resolution, tissue and tiles of a slide, and reads its tiles, in a worker process.

Existing files are used: an outline edited by hand is read and never replaced. Files whose content
would stay the same are not written again.
"""

from __future__ import annotations

import hashlib
import itertools
from contextlib import suppress
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.atomic import atomic_write
from sacmil.errors import FormatError, NoTissueError, SacMILError, SlideError
from sacmil.extraction.slide_request import FileStamp, SlideRequest, read_stamp, to_printable
from sacmil.formats.native import read_provenance
from sacmil.slides import tissue as tissues
from sacmil.slides.outline import add_tissue_mode, from_geojson, read_tissue_mode, to_geojson
from sacmil.slides.pixels import is_blurred, is_white, read_tile
from sacmil.slides.preview import draw_preview, read_metadata
from sacmil.slides.readers import Pixels, Slide, open_slide
from sacmil.slides.resolution import check_target_mpp, find_slide_mpp
from sacmil.slides.tiling import Tiles, lay_tiles, write_tiles
from sacmil.slides.tissue import Tissue
from sacmil.units import Level0Px, MicronsPerPixel, TilePx

_TITLE_SUFFIXES = {"all": " · whole image", "outline": " · outline of the folder"}
_EMPTY_OUTLINE = b'{"type":"FeatureCollection","features":[]}'
_FINGERPRINT_BYTES = 2**16  # read at both ends of a file


class PreparedSlide(NamedTuple):
    """Resolution, tissue and tiles of a slide."""

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

    def describe_content(self, request: SlideRequest) -> dict[str, Any]:
        """Return everything that decides the bag's content, up to rounding."""
        settings = request.settings
        content = asdict(settings.tiles) | {
            "slide": self.fingerprint,
            "slide_mpp": self.mpp,
            "allow_upsampling": settings.allow_upsampling,
            "drop_white": settings.drop_white,
            "drop_blurred": settings.drop_blurred,
            "dtype": settings.dtype,
            "mask": self.mask_hash,
        }
        if request.encoder is not None:
            names = ("name", "hash", "input_px", "resample")
            content |= {f"encoder_{name}": getattr(request.encoder, name) for name in names}
        return content

    def make_provenance(self, request: SlideRequest) -> dict[str, Any]:
        """Return everything that decides the bag's content, to the last bit."""
        encoder = request.encoder
        assert encoder is not None
        exact = {name: getattr(encoder, name) for name in ("engine", "device", "precision")} | {
            "batch_size": request.batch_size,
            "reader": self.reader,
            "tissue": self.tissue,
            "tissue_mode": request.settings.tissue_mode,
        }
        if encoder.file_sha256 is not None:
            exact["encoder_file_sha256"] = encoder.file_sha256
        return self.describe_content(request) | exact


def prepare_slide(request: SlideRequest) -> PreparedSlide:
    """Find a slide's tissue and tiles; store outline, preview and tiles in the folder."""
    _check_name(request)
    slide_stamp, outline_stamp = read_stamp(request.path), read_stamp(request.outline_path)
    fingerprint = _compute_fingerprint(request.path)
    _check_same_slide(request, fingerprint)
    with open_slide(request.path, request.settings.reader) as slide:
        preparation = _Preparation(request, slide, fingerprint)
        tissue = preparation.find_tissue()
        tiles = preparation.find_tiles(tissue) if request.needs_tiles else None
        prepared = PreparedSlide(
            mpp=preparation.mpp,
            size=slide.size,
            bounds_origin=slide.bounds_origin,
            reader=slide.reader,
            fingerprint=fingerprint,
            mask_hash=tissue.hash,
            tiles=tiles,
            tissue=preparation.mode,
            source_stamps=(slide_stamp, outline_stamp or read_stamp(request.outline_path)),
        )
    return prepared._replace(has_bag=_has_bag(request, prepared))


def _check_name(request: SlideRequest) -> None:
    try:
        request.slide_id.encode()
    except UnicodeEncodeError:
        raise SlideError(
            f"{to_printable(request.path)}: the file name is not UTF-8, so tables cannot hold it; "
            "rename the file"
        ) from None


def _compute_fingerprint(path: Path) -> str:
    """Return 16 hexadecimal digits that identify a file, without reading all of it."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(_FINGERPRINT_BYTES))
        file.seek(max(0, size - _FINGERPRINT_BYTES))
        digest.update(file.read(_FINGERPRINT_BYTES))
    return digest.hexdigest()[:16]


def _check_same_slide(request: SlideRequest, fingerprint: str) -> None:
    """Reject an outline that was drawn on another slide of the same name."""
    preview, outline = request.preview_path, request.outline_path
    if preview is None or outline is None or not outline.exists():
        return
    if read_metadata(preview).get("slide", fingerprint) != fingerprint:
        raise SlideError(
            f"{request.path}: {outline} was made for another slide of this name, or for this one "
            "before it was replaced; give another `out`, rename the slide, or delete that file "
            f"and {preview.name} beside it"
        )


def _has_bag(request: SlideRequest, prepared: PreparedSlide) -> bool:
    if request.bag_path is None or not request.bag_path.exists():
        return False
    expected = prepared.describe_content(request)
    with suppress(FormatError):  # damaged: it is made again
        provenance = read_provenance(request.bag_path)
        return {name: provenance.get(name) for name in expected} == expected
    return False


class _Preparation:
    """An open slide, whose tissue and tiles are found; its preview is drawn when they change."""

    def __init__(self, request: SlideRequest, slide: Slide, fingerprint: str) -> None:
        self._request, self._slide, self._fingerprint = request, slide, fingerprint
        self.mpp = _find_mpp(request, slide)
        self.mode = ""

    def find_tissue(self) -> Tissue:
        """Return the tissue of the outline in the folder, which is made first if missing."""
        request, slide, path = self._request, self._slide, self._request.outline_path
        mpp = self.mpp or request.settings.tiles.tissue_mpp
        outline = path.read_bytes() if path and path.exists() else None
        if outline is None or _has_other_mode(outline, request.settings.tissue_mode):
            outline = _make_outline(request, slide, mpp)
            if path:
                with atomic_write(path) as partial:
                    partial.write_bytes(outline)
        downsample = tissues.mask_downsample(slide, mpp, request.settings.tissue)
        source = path or request.path
        try:
            tissue = from_geojson(
                outline, slide.size, slide.bounds_origin, downsample, source=source
            )
        except NoTissueError as error:
            self._draw_preview(None, None)
            if outline == _EMPTY_OUTLINE and path:
                raise NoTissueError(
                    f"{request.path}: nothing on the slide looks like tissue; look at "
                    f"{request.preview_path}, and if there is some, draw it in QuPath and export "
                    f"it as GeoJSON over {path}"
                ) from error
            raise
        self.mode = read_tissue_mode(outline) or "outline"
        if not request.needs_tiles:
            self._draw_preview(tissue, None)
        return tissue

    def find_tiles(self, tissue: Tissue) -> Tiles:
        """Lay the tiles; write their positions if the outline or the settings changed."""
        request, path, spec = self._request, self._request.tiles_path, self._request.settings.tiles
        try:
            tiles = lay_tiles(tissue, self.mpp, spec)
        except NoTissueError as error:
            self._draw_preview(tissue, None)
            raise NoTissueError(f"{request.path}: {error}") from error
        if path:
            write_tiles(path, request.slide_id, tiles, tissue, self.mpp, spec)
        self._draw_preview(tissue, tiles)
        return tiles

    def _draw_preview(self, tissue: Tissue | None, tiles: Tiles | None) -> None:
        """Draw the preview, unless the one in the folder has the same content."""
        request, path = self._request, self._request.preview_path
        metadata = {
            "slide": self._fingerprint,
            "mask": tissue.hash if tissue else "none",
            "tiles": f"{request.cut} {len(tiles)}" if tiles else "none",
        }
        if path and metadata.items() - read_metadata(path).items():
            title = request.slide_id + _TITLE_SUFFIXES.get(self.mode, "")
            draw_preview(self._slide, tissue, tiles, path, title=title, metadata=metadata)


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


def _has_other_mode(outline: bytes, mode: str) -> bool:
    """Whether an outline was found in another mode; outlines drawn by hand always stay."""
    made_by = "detect" if outline == _EMPTY_OUTLINE else read_tissue_mode(outline)
    return mode != "auto" and made_by not in (None, mode)


def _make_outline(request: SlideRequest, slide: Slide, mpp: MicronsPerPixel) -> bytes:
    settings = request.settings
    mode = tissues.choose_tissue_mode(slide, settings.tissue_mode)
    find = tissues.mark_all_as_tissue if mode == "all" else tissues.find_tissue
    try:
        tissue = find(slide, mpp, settings.tissue)
    except NoTissueError:
        if request.out is None:
            raise
        return _EMPTY_OUTLINE  # a file that tissue can be drawn into
    return add_tissue_mode(to_geojson(tissue, slide.bounds_origin), mode).encode()


# Pixels ----------------------------------------------------------------------------------------


class TileBatch(NamedTuple):
    """The pixels of a batch, as the encoder takes them."""

    pixels: npt.NDArray[np.uint8]
    """(kept, side, side, 3)"""
    kept: npt.NDArray[np.bool_]
    """Which of the requested tiles these are."""


def read_batch(request: SlideRequest, side: Level0Px, corners: npt.NDArray[np.int64]) -> TileBatch:
    """Read tiles by their upper left corners; the settings may drop white and blurred ones."""
    slide = _open_cached(request.path, request.settings.reader)
    tiles = (_read_one_tile(slide, request, side, x, y) for x, y in corners.tolist())
    first = next(tiles)
    pixels = np.empty((len(corners), *first.shape), np.uint8)  # each tile is held once, not twice
    for number, tile in enumerate(itertools.chain([first], tiles)):
        pixels[number] = tile
    kept = np.ones(len(pixels), np.bool_)
    if request.settings.drop_white:
        kept &= ~is_white(pixels)
    if request.settings.drop_blurred:
        kept &= ~is_blurred(pixels)
    return TileBatch(pixels if kept.all() else pixels[kept], kept)


@lru_cache(maxsize=2)
def _open_cached(path: Path, reader: str | None) -> Slide:
    """Open a slide and keep it open: batches of one slide follow each other."""
    return open_slide(path, reader)


def _read_one_tile(slide: Slide, request: SlideRequest, side: Level0Px, x: int, y: int) -> Pixels:
    assert request.encoder is not None
    patch_px = TilePx(request.settings.tiles.patch_size)
    input_px = patch_px if request.encoder.can_resize else TilePx(request.encoder.input_px)
    try:
        return read_tile(slide, x, y, side, patch_px, input_px, request.encoder.resample)
    except (SacMILError, MemoryError):
        raise
    except Exception as error:  # decoders raise anything
        raise SlideError(
            f"{slide.path}: the tile at ({x}, {y}) cannot be read ({type(error).__name__}: {error})"
        ) from error
