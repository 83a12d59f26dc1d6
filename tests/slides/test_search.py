from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from sacmil.errors import SlideError
from sacmil.slides.readers import _base
from sacmil.slides.search import find_slides, list_extensions


def touch(folder: Path, *names: str) -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")


def names(folder: Path, found: list[Path]) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in found]


def test_folders_are_searched_recursively_in_a_fixed_order(tmp_path: Path) -> None:
    touch(tmp_path, "z.svs", "a/b/c/d.tiff", "a/e.NDPI", "a/notes.txt", "a/features.h5", "k.png")
    found = find_slides([tmp_path])
    assert names(tmp_path, found) == ["a/b/c/d.tiff", "a/e.NDPI", "k.png", "z.svs"]
    assert find_slides([str(tmp_path / "z.svs"), tmp_path / "a", tmp_path]) == found


def test_every_known_extension_is_found(tmp_path: Path) -> None:
    touch(tmp_path, *(f"s{n}{extension}" for n, extension in enumerate(sorted(list_extensions()))))
    assert len(find_slides([tmp_path])) == len(list_extensions())


def test_a_reader_can_add_extensions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    touch(tmp_path, "a.isyntax")
    with pytest.raises(SlideError, match="no slides found"):
        find_slides([tmp_path])
    reader = SimpleNamespace(PRIORITY=9, EXTENSIONS={".isyntax"})
    monkeypatch.setattr(_base, "_find_readers", lambda: {"philips": reader})
    assert [slide.name for slide in find_slides([tmp_path])] == ["a.isyntax"]


def test_hidden_files_and_folders_are_skipped(tmp_path: Path) -> None:
    touch(tmp_path, "a.svs", "._a.svs", ".trash/b.svs", ".a.svs.12345678.partial")
    assert names(tmp_path, find_slides([tmp_path])) == ["a.svs"]


def test_a_named_file_is_taken_whatever_its_extension(tmp_path: Path) -> None:
    touch(tmp_path, "slide.xyz", ".hidden")
    assert len(find_slides([tmp_path / "slide.xyz", tmp_path / ".hidden"])) == 2


def test_circular_links_end(tmp_path: Path) -> None:
    touch(tmp_path, "a/b/s.svs")
    (tmp_path / "a/b/up").symlink_to(tmp_path)
    (tmp_path / "a/self").symlink_to(tmp_path / "a/self")
    (tmp_path / "gone.svs").symlink_to(tmp_path / "absent.svs")
    assert names(tmp_path, find_slides([tmp_path])) == ["a/b/s.svs", "gone.svs"]


def test_links_in_a_folder_are_followed(tmp_path: Path) -> None:
    touch(tmp_path, "store/1.svs", "store/2.svs")
    (tmp_path / "cohort").mkdir()
    (tmp_path / "cohort/patient.svs").symlink_to(tmp_path / "store/1.svs")
    (tmp_path / "cohort/more").symlink_to(tmp_path / "store")
    found = find_slides([tmp_path / "cohort"])
    assert names(tmp_path / "cohort", found) == ["more/2.svs", "patient.svs"]


def test_a_broken_link_is_not_skipped(tmp_path: Path) -> None:
    slide = tmp_path / "whole.svs"
    slide.touch()
    for name in ("lost.svs", "lost too.dcm", "lost as well.vms", "lost.txt"):
        (tmp_path / name).symlink_to(tmp_path / "nowhere" / name)
    found = [file.name for file in find_slides([tmp_path])]
    assert found == ["lost as well.vms", "lost too.dcm", "lost.svs", "whole.svs"]


def test_the_same_file_given_in_several_ways_is_one(tmp_path: Path) -> None:
    touch(tmp_path, "a/s.svs")
    (tmp_path / "s.svs").symlink_to(tmp_path / "a/s.svs")
    spellings = [tmp_path / "a/s.svs", tmp_path / "a/../a/s.svs", tmp_path / "s.svs", tmp_path]
    assert len(find_slides(spellings)) == 1


def test_equal_stems_are_an_error_that_names_both(tmp_path: Path) -> None:
    touch(tmp_path, "a/s.svs", "b/s.tif", "c/t.svs")
    with pytest.raises(SlideError) as caught:
        find_slides([tmp_path])
    assert str(tmp_path / "a/s.svs") in str(caught.value)
    assert str(tmp_path / "b/s.tif") in str(caught.value)


def test_the_error_without_slides_lists_the_extensions(tmp_path: Path) -> None:
    touch(tmp_path, "notes.txt")
    with pytest.raises(SlideError, match=rf"no slides found in {tmp_path}; .*\.ndpi .*\.svs"):
        find_slides([tmp_path])
    with pytest.raises(SlideError, match="no slides found in nothing"):
        find_slides([])


def test_the_error_for_a_missing_path_names_it(tmp_path: Path) -> None:
    with pytest.raises(SlideError, match="absent: there is no such file or folder"):
        find_slides([tmp_path / "absent"])


def test_the_companion_folder_of_a_mirax_slide_is_not_searched(tmp_path: Path) -> None:
    touch(tmp_path, "m.mrxs", "m/Slidedat.ini", "m/Data0000.dat", "m/preview.jpg", "n/o.jpg")
    assert names(tmp_path, find_slides([tmp_path])) == ["m.mrxs", "n/o.jpg"]


def test_the_image_files_of_a_hamamatsu_slide_are_not_slides(tmp_path: Path) -> None:
    touch(tmp_path, "v_0.jpg", "v_map.jpg", "mine.jpg")
    lines = ["[Virtual Microscope Specimen]", "ImageFile=v_0.jpg", "MapFile= v_map.jpg", "NoFocus"]
    (tmp_path / "v.vms").write_text("\r\n".join(lines))
    assert names(tmp_path, find_slides([tmp_path])) == ["mine.jpg", "v.vms"]


def test_the_levels_of_a_dicom_slide_are_one_slide(tmp_path: Path) -> None:
    def dicom(name: str, series: bytes, size: int) -> None:
        element = b"\x20\x00\x0e\x00UI" + len(series).to_bytes(2, "little") + series
        (tmp_path / name).write_bytes(b"\0" * 128 + b"DICM" + element + b"\0" * size)

    dicom("1.dcm", b"1.2.3\0", 10)
    dicom("2.dcm", b"1.2.3\0", 900)
    dicom("3.dcm", b"1.2.4\0", 10)
    touch(tmp_path, "strange.dcm")
    assert names(tmp_path, find_slides([tmp_path])) == ["2.dcm", "3.dcm", "strange.dcm"]


def test_the_output_folder_can_be_excluded(tmp_path: Path) -> None:
    touch(tmp_path, "s.svs", "out/previews/s.png")
    assert names(tmp_path, find_slides([tmp_path], exclude=[tmp_path / "out"])) == ["s.svs"]


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="everything is readable to root")
def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path, "s.svs", "closed/t.svs")
    (tmp_path / "closed").chmod(0)
    try:
        with pytest.raises(SlideError, match="closed: this folder cannot be searched"):
            find_slides([tmp_path])
    finally:
        (tmp_path / "closed").chmod(0o700)


def test_patterns_choose_slides_by_name_or_by_path(tmp_path: Path) -> None:
    touch(tmp_path, "a.bmp", "a_anno.bmp", "b.png", "train/c.bmp", "test/d.bmp")
    chosen = find_slides([tmp_path], include_names=["*.bmp"], exclude_names=["*_anno*", "test/*"])
    assert names(tmp_path, chosen) == ["a.bmp", "train/c.bmp"]
    assert find_slides([tmp_path / "a.bmp", tmp_path / "b.png"], include_names=["b*"]) == [
        tmp_path / "b.png"
    ]


def test_excluded_slides_do_not_clash_with_others_of_their_name(tmp_path: Path) -> None:
    touch(tmp_path, "a.bmp", "a.png")
    assert names(tmp_path, find_slides([tmp_path], exclude_names=["*.png"])) == ["a.bmp"]


def test_an_include_pattern_that_matches_nothing_is_an_error(tmp_path: Path) -> None:
    touch(tmp_path, "a.bmp")
    with pytest.raises(SlideError, match=r"`include` '\*\.jgp' matches none"):
        find_slides([tmp_path], include_names=["*.jgp"])


def test_an_exclude_pattern_may_match_nothing(tmp_path: Path) -> None:
    touch(tmp_path, "a.bmp")
    assert names(tmp_path, find_slides([tmp_path], exclude_names=["*_anno*"])) == ["a.bmp"]
