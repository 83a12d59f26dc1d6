from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import tifffile
from exhaustive import choose_count
from PIL import Image

from sacmil.errors import MissingExtraError, SlideError
from sacmil.slides.readers import image as image_reader
from sacmil.slides.readers import list_readers, open_slide
from sacmil.slides.readers import openslide as openslide_reader
from sacmil.slides.readers import tiff as tiff_reader
from sacmil.slides.readers.image import ImageSlide
from sacmil.slides.readers.openslide import OpenSlideSlide
from sacmil.slides.readers.tiff import TiffSlide

MakeSlide = Callable[..., Path]

KINDS = {
    "JPEG, chroma halved": {},
    "JPEG, RGB": {"photometric": "rgb"},
    "deflate": {"photometric": "rgb", "compression": "deflate"},
    "LZW": {"photometric": "rgb", "compression": "lzw"},
    "not compressed": {"photometric": "rgb", "compression": None},
    "Aperio, JPEG": {"vendor": "aperio"},
    "Aperio, JPEG, RGB": {"vendor": "aperio", "photometric": "rgb"},
    "small tiles": {"tile": 64},
}


@pytest.fixture
def without_openslide(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> None:
        raise MissingExtraError("slides", "reading slides")

    monkeypatch.setattr(openslide_reader, "_import_openslide", missing)


def regions(slide: TiffSlide, count: int) -> list[tuple[int, int, int, int, int]]:
    """Return regions inside, across and outside of each level, at whole pixels."""
    random = np.random.default_rng(0)
    found = []
    for number, level in enumerate(slide.levels):
        for _ in range(count):
            width, height = random.integers(1, 400, 2).tolist()
            column = int(random.integers(-300, level.width + 100))
            row = int(random.integers(-300, level.height + 100))
            step = round(level.downsample)
            found.append((column * step, row * step, number, width, height))
    return found


@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_the_fast_reader_gives_openslides_pixels_levels_and_resolution(
    make_slide: MakeSlide, options: dict
) -> None:
    path = make_slide(**options)
    with open_slide(path) as fast, OpenSlideSlide(path) as reference:
        assert fast.reader == "tiff"
        assert fast.levels == reference.levels
        assert len(fast.levels) == 3
        assert fast.mpp == pytest.approx(reference.mpp, rel=1e-6)
        for number, level in enumerate(fast.levels):
            whole = (0, 0, number, level.width, level.height)
            np.testing.assert_array_equal(fast.read(*whole), reference.read(*whole))
        for region in regions(fast, 6):
            np.testing.assert_array_equal(fast.read(*region), reference.read(*region))


JPEG_2000 = {"vendor": "aperio", "photometric": "rgb", "compression": 33005}


def test_jpeg_2000_is_left_to_openslide(make_slide: MakeSlide) -> None:
    path = make_slide(**JPEG_2000)
    with open_slide(path) as slide:
        assert slide.reader == "openslide"


@pytest.mark.usefixtures("without_openslide")
def test_jpeg_2000_is_read_without_openslide(make_slide: MakeSlide, make_pixels: Callable) -> None:
    with open_slide(make_slide(**JPEG_2000)) as slide:
        assert slide.reader == "tiff"
        np.testing.assert_array_equal(slide.read(0, 0, 0, 900, 700), make_pixels(900, 700))


@pytest.mark.parametrize("vendor", ["generic", "aperio", "ome"])
@pytest.mark.usefixtures("without_openslide")
def test_lossless_pixels_come_back_without_openslide(
    make_slide: MakeSlide, make_pixels: Callable, vendor: str
) -> None:
    path = make_slide(vendor=vendor, photometric="rgb", compression="deflate")
    pixels = make_pixels(900, 700)
    canvas = np.full((1500, 1700, 3), 255, np.uint8)
    canvas[400:1100, 400:1300] = pixels
    with open_slide(path) as slide:
        assert (slide.reader, slide.size, slide.mpp) == ("tiff", (900, 700), pytest.approx(0.5))
        assert [level.downsample for level in slide.levels] == [1, 2, 4]
        np.testing.assert_array_equal(slide.read(-400, -400, 0, 1700, 1500), canvas)
        for x, y, _, width, height in regions(slide, 10)[:10]:
            expected = canvas[y + 400 : y + 400 + height, x + 400 : x + 400 + width]
            seen = slide.read(x, y, 0, width, height)
            np.testing.assert_array_equal(seen[: expected.shape[0], : expected.shape[1]], expected)


def test_ome_levels_that_openslide_does_not_see_are_kept(make_slide: MakeSlide) -> None:
    path = make_slide("slide.ome.tif", vendor="ome", photometric="rgb", compression="deflate")
    with open_slide(path) as slide, OpenSlideSlide(path) as reference:
        assert (len(slide.levels), len(reference.levels)) == (3, 1)
        assert (slide.reader, slide.mpp, reference.mpp) == ("tiff", 0.5, None)


def test_a_reader_with_other_pixels_is_not_used(
    make_slide: MakeSlide, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = make_slide()
    decode = TiffSlide._decode_tile
    monkeypatch.setattr(TiffSlide, "_decode_tile", lambda *args: decode(*args) ^ 1)
    with open_slide(path) as slide:
        assert slide.reader == "openslide"
    with pytest.raises(SlideError, match="pixels differ from OpenSlide's"):
        open_slide(path, reader="tiff")


def test_a_reader_with_another_resolution_is_not_used(
    make_slide: MakeSlide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiff_reader, "_read_mpp", lambda page: 0.25)
    with open_slide(make_slide()) as slide:
        assert (slide.reader, slide.mpp) == ("openslide", pytest.approx(0.5))


def test_a_reader_with_other_levels_is_not_used(
    make_slide: MakeSlide, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiff_reader, "_find_level_pages", lambda file: [file.pages.first])
    with open_slide(make_slide()) as slide:
        assert (slide.reader, len(slide.levels)) == ("openslide", 3)


@pytest.mark.parametrize("reader", ["tiff", "openslide"])
@pytest.mark.parametrize("unit", ["CENTIMETER", "INCH"])
def test_resolution_tags_are_read_in_both_units_by_both_readers(
    make_slide: MakeSlide, unit: str, reader: str
) -> None:
    with open_slide(make_slide(mpp=0.3, unit=unit), reader=reader) as slide:
        assert slide.mpp == pytest.approx(0.3, rel=1e-5)


@pytest.mark.parametrize("reader", ["tiff", "openslide"])
@pytest.mark.parametrize("vendor", ["generic", "aperio"])
def test_a_file_that_states_no_resolution_has_none(
    make_slide: MakeSlide, vendor: str, reader: str
) -> None:
    with open_slide(make_slide(mpp=None, vendor=vendor), reader=reader) as slide:
        assert slide.mpp is None


def test_an_absurd_resolution_is_passed_on_as_stated(make_slide: MakeSlide) -> None:
    with open_slide(make_slide(mpp=896)) as slide:
        assert slide.mpp == pytest.approx(896)


def test_a_level_of_odd_size_has_openslides_downsample(make_slide: MakeSlide) -> None:
    path = make_slide(width=1001, height=701, downsamples=(1, 3), photometric="rgb")
    with open_slide(path) as slide, OpenSlideSlide(path) as reference:
        assert (slide.reader, slide.levels) == ("tiff", reference.levels)
        assert slide.levels[1].downsample == pytest.approx((1001 / 333 + 701 / 233) / 2)
        level = slide.levels[1]
        np.testing.assert_array_equal(
            slide.read(0, 0, 1, level.width, level.height),
            reference.read(0, 0, 1, level.width, level.height),
        )


def test_every_pixel_of_an_odd_level_is_found_at_its_rounded_position(
    make_slide: MakeSlide,
) -> None:
    path = make_slide(
        width=1001, height=701, downsamples=(1, 3), compression="deflate", photometric="rgb"
    )
    with TiffSlide(path) as slide:
        level = slide.levels[1]
        whole = slide.read(0, 0, 1, level.width, level.height)
        for column in range(0, level.width, 7):
            seen = slide.read(round(column * level.downsample), 0, 1, 1, level.height)
            np.testing.assert_array_equal(seen, whole[:, column : column + 1])


@pytest.mark.parametrize("reader", ["tiff", "openslide"])
def test_tiles_that_were_not_scanned_are_white(make_slide: MakeSlide, reader: str) -> None:
    path = make_slide(downsamples=(1,))
    with tifffile.TiffFile(path, mode="r+") as file:
        tag = file.pages[0].tags["TileByteCounts"]
        tag.overwrite((0, *tag.value[1:]))
    with open_slide(path, reader=reader) as slide:
        assert (slide.read(0, 0, 0, 256, 256) == 255).all()
        assert (slide.read(256, 0, 0, 256, 256) != 255).any()


def test_gray_slides_become_rgb(tmp_path: Path, make_pixels: Callable) -> None:
    gray = make_pixels(600, 500)[..., 1]
    path = tmp_path / "gray.tif"
    tifffile.imwrite(path, gray, tile=(128, 128), photometric="minisblack", compression="deflate")
    with open_slide(path) as slide:
        np.testing.assert_array_equal(
            slide.read(0, 0, 0, 600, 500), np.repeat(gray[..., None], 3, axis=2)
        )


def test_writing_into_a_region_does_not_reach_the_next_read(make_slide: MakeSlide) -> None:
    with TiffSlide(make_slide()) as slide:
        first = slide.read(0, 0, 0, 256, 256)
        kept = first.copy()
        first[:] = 0
        np.testing.assert_array_equal(slide.read(0, 0, 0, 256, 256), kept)


def test_the_tile_cache_respects_its_limit_and_changes_no_pixel(make_slide: MakeSlide) -> None:
    path = make_slide(tile=64)
    limit = 5 * 64 * 64 * 3
    with TiffSlide(path, cache_bytes=limit) as small, TiffSlide(path, cache_bytes=0) as none:
        for region in regions(small, 8):
            np.testing.assert_array_equal(small.read(*region), none.read(*region))
            size = sum(tile.nbytes for tile in small._tiles._tiles.values())
            assert size <= limit
            assert size == small._tiles._max_bytes - small._tiles._free_bytes
        assert not none._tiles._tiles


def test_readers_are_tried_in_order_of_speed() -> None:
    assert list_readers() == ["tiff", "openslide", "image"]


def test_the_error_for_a_wrong_reader_name_suggests_the_right_one(make_slide: MakeSlide) -> None:
    with pytest.raises(SlideError, match="did you mean 'openslide'"):
        open_slide(make_slide(), reader="open_slide")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"this file is empty \(0 bytes\)"),
        (b"wsi,mpp\nslide,0.25\n", "found a text file of 19 bytes"),
        (b"II*\0\x08\0\0\0", "found a TIFF file of 8 bytes"),
        (b"\x89PNG\r\n\x1a\n", "found a PNG image of 8 bytes"),
        (b"\xff\xd8\xff\xe0", "found a JPEG image of 4 bytes"),
        (b"PK\x03\x04", "found a ZIP archive of 4 bytes"),
        (bytes(range(256)), "found a file of an unknown kind of 256 bytes"),
    ],
)
def test_the_error_for_other_files_says_what_they_are(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "slide.svs"
    path.write_bytes(content)
    with pytest.raises(SlideError, match=message) as caught:
        open_slide(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_a_missing_file_a_folder_and_an_impossible_name_have_their_own_errors(
    tmp_path: Path,
) -> None:
    with pytest.raises(SlideError, match="no such file"):
        open_slide(tmp_path / "absent.svs")
    with pytest.raises(SlideError, match="this is a folder"):
        open_slide(tmp_path)
    with pytest.raises(SlideError, match="no such file"):
        open_slide("a\0b.svs")


@pytest.mark.usefixtures("without_openslide")
def test_a_file_only_openslide_could_read_says_what_to_install(tmp_path: Path) -> None:
    path = tmp_path / "slide.mrxs"
    path.write_bytes(b"not a real one")
    with pytest.raises(SlideError, match=r"openslide: .*pip install 'sacmil\[slides\]'"):
        open_slide(path)


def read_all(path: Path) -> None:
    with open_slide(path) as slide:
        for number, level in enumerate(slide.levels):
            slide.read(0, 0, number, level.width, level.height)


@pytest.mark.parametrize("vendor", ["generic", "aperio"])
def test_a_file_cut_anywhere_is_rejected_or_fails_on_reading(
    make_slide: MakeSlide, tmp_path: Path, vendor: str
) -> None:
    content = make_slide(vendor=vendor).read_bytes()
    for share in np.linspace(0.02, 0.98, 12):
        cut = tmp_path / "cut.svs"
        cut.write_bytes(content[: int(share * len(content))])
        with pytest.raises(SlideError):
            read_all(cut)


def test_the_error_for_a_cut_slide_with_its_directory_says_so(make_slide: MakeSlide) -> None:
    path = make_slide(downsamples=(1,))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 5000)
    with pytest.raises(SlideError, match="the TIFF is cut off: its tiles extend to byte"):
        open_slide(path)


def damage(content: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(content)
    head = min(600, len(content))
    for _ in range(int(rng.integers(1, 20))):
        index = int(rng.integers(0, head if rng.random() < 0.5 else len(content)))
        changed[index] = int(rng.integers(0, 256))
    return bytes(changed)


def try_damaged(path: Path, kind: Callable, tmp_path: Path, count: int) -> None:
    content, rng = path.read_bytes(), np.random.default_rng(0)
    for _ in range(count):
        damaged = tmp_path / f"damaged{path.suffix}"
        damaged.write_bytes(damage(content, rng))
        try:
            with kind(damaged) as slide:
                width, height = (min(side, 2000) for side in slide.size)
                slide.read(0, 0, 0, width, height)
        except SlideError as error:
            assert str(error).startswith(f"{damaged}: ")  # noqa: PT017


@pytest.mark.parametrize("options", [{}, {"photometric": "rgb", "compression": "deflate"}])
def test_damaged_tiffs_give_pixels_or_a_reason(
    make_slide: MakeSlide, tmp_path: Path, options: dict
) -> None:
    try_damaged(make_slide(width=300, height=200, **options), TiffSlide, tmp_path, 40)


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".bmp"])
def test_damaged_images_give_pixels_or_a_reason(
    tmp_path: Path, make_pixels: Callable, suffix: str
) -> None:
    path = tmp_path / f"whole{suffix}"
    Image.fromarray(make_pixels(90, 70)).save(path)
    try_damaged(path, ImageSlide, tmp_path, 40)


@pytest.mark.slow
@pytest.mark.parametrize("options", KINDS.values(), ids=KINDS)
def test_many_damaged_tiffs_give_pixels_or_a_reason(
    make_slide: MakeSlide, tmp_path: Path, options: dict
) -> None:
    try_damaged(
        make_slide(width=300, height=200, **options),
        TiffSlide,
        tmp_path,
        choose_count(400, sample=80),
    )


def test_a_tile_that_claims_gigabytes_is_rejected(make_slide: MakeSlide) -> None:
    path = make_slide(downsamples=(1,))
    with tifffile.TiffFile(path) as file:
        offset = file.pages[0].dataoffsets[0]
    content = bytearray(path.read_bytes())
    frame = content.index(b"\xff\xc0", offset)
    content[frame + 5 : frame + 9] = struct.pack(">HH", 65_000, 65_000)
    path.write_bytes(content)
    with TiffSlide(path) as slide, pytest.raises(SlideError, match="claims 65000 x 65000 pixels"):
        slide.read(0, 0, 0, 256, 256)


def test_half_a_tile_is_an_error(make_slide: MakeSlide) -> None:
    path = make_slide(downsamples=(1,))
    with tifffile.TiffFile(path, mode="r+") as file:
        tag = file.pages[0].tags["TileByteCounts"]
        tag.overwrite((tag.value[0] // 2, *tag.value[1:]))
    with TiffSlide(path) as slide, pytest.raises(SlideError, match="its JPEG data are cut off"):
        slide.read(0, 0, 0, 256, 256)


def test_openslides_own_errors_become_ours_and_name_the_file(make_slide: MakeSlide) -> None:
    path = make_slide(downsamples=(1,))
    with tifffile.TiffFile(path) as file:
        offset, length = file.pages[0].dataoffsets[0], file.pages[0].databytecounts[0]
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(bytes(length))
    with OpenSlideSlide(path) as slide:
        for x in (0, 512):  # after the first error, intact tiles fail too
            with pytest.raises(SlideError, match=f"{path}: OpenSlide cannot read"):
                slide.read(x, 0, 0, 256, 256)


@pytest.mark.parametrize("suffix", [".png", ".bmp", ".tif"])
def test_a_plain_image_is_a_slide_of_one_level(
    tmp_path: Path, make_pixels: Callable, suffix: str
) -> None:
    pixels, path = make_pixels(300, 200), tmp_path / f"plain{suffix}"
    Image.fromarray(pixels).save(path, dpi=(50_800, 50_800))
    with open_slide(path) as slide:
        assert (slide.reader, slide.levels, slide.mpp) == ("image", ((300, 200, 1.0),), None)
        np.testing.assert_array_equal(slide.read(0, 0, 0, 300, 200), pixels)
        outside = slide.read(-10, -20, 0, 400, 400)
        np.testing.assert_array_equal(outside[20:220, 10:310], pixels)
        outside[20:220, 10:310] = 255
        assert (outside == 255).all()
        assert (slide.read(-50, -50, 0, 40, 40) == 255).all()
        with pytest.raises(SlideError, match="only level 0"):
            slide.read(0, 0, 1, 10, 10)


def test_every_kind_of_image_becomes_the_rgb_it_shows(tmp_path: Path) -> None:
    gray = np.arange(256, dtype=np.uint8).reshape(16, 16)
    rgb = np.repeat(gray[..., None], 3, axis=2)
    clear = np.dstack([rgb, np.where(gray < 100, 0, 255).astype(np.uint8)])
    on_white = np.where(gray[..., None] < 100, 255, rgb)
    pictures = {
        "gray": (Image.fromarray(gray), rgb),
        "sixteen": (Image.fromarray(gray.astype(np.uint16) * 257), rgb),
        "palette": (Image.fromarray(rgb).quantize(256), rgb),
        "transparent": (Image.fromarray(clear), on_white),
        "two_colours": (Image.fromarray(gray > 99), np.where(rgb > 99, 255, 0)),
    }
    for name, (picture, expected) in pictures.items():
        path = tmp_path / f"{name}.png"
        picture.save(path)
        with open_slide(path) as slide:
            np.testing.assert_array_equal(slide.read(0, 0, 0, 16, 16), expected, err_msg=name)


def test_an_image_of_floats_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "fractions.tif"
    Image.fromarray(np.random.default_rng(0).random((8, 8), np.float32)).save(path)
    with pytest.raises(SlideError, match="expected 8 or 16 bits"):
        open_slide(path)


def test_an_image_beyond_the_limit_is_rejected_before_it_is_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, limit = tmp_path / "large.png", Image.MAX_IMAGE_PIXELS
    Image.new("L", (200, 100)).save(path)
    monkeypatch.setattr(image_reader, "MAX_PIXELS", 19_999)
    with pytest.raises(SlideError, match=r"200 x 100 pixels; expected at most 19,999"):
        open_slide(path)
    assert limit == Image.MAX_IMAGE_PIXELS


@pytest.mark.usefixtures("without_openslide")
def test_a_tiled_tiff_that_needs_openslide_is_not_read_as_a_plain_image(tmp_path: Path) -> None:
    path = tmp_path / "planes.tif"
    planes = np.zeros((3, 300, 300), np.uint8)
    tifffile.imwrite(path, planes, tile=(128, 128), photometric="rgb", planarconfig="separate")
    with pytest.raises(SlideError, match=r"separate colour planes.*image: this is a tiled TIFF"):
        open_slide(path)
