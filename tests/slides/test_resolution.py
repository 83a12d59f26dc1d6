from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacmil.errors import ResolutionError
from sacmil.slides.readers import Level, Pixels, Slide
from sacmil.slides.resolution import (
    MAX_MPP,
    MIN_MPP,
    SlideResolutions,
    check_target_mpp,
    find_slide_mpp,
    magnification_to_mpp,
)


class StatedSlide(Slide):
    """A slide with only a name and a stated resolution."""

    reader = "none"
    levels = (Level(1, 1, 1.0),)

    def __init__(self, path: str, mpp: float | None) -> None:
        self.path, self.mpp = Path(path), mpp

    def read(self, x: int, y: int, level: int, width: int, height: int) -> Pixels:
        raise NotImplementedError

    def close(self) -> None:
        pass


def table(tmp_path: Path, text: str) -> SlideResolutions:
    path = tmp_path / "mpp.csv"
    path.write_text(text, encoding="utf-8")
    return SlideResolutions.parse(str(path))


def test_a_stated_value_is_taken_as_it_is() -> None:
    assert find_slide_mpp(StatedSlide("a.svs", 0.499)) == 0.499
    assert find_slide_mpp(StatedSlide("idc.tif", 4.0)) == 4.0


@pytest.mark.parametrize("stated", [None, 896, 0.0, -0.5, 0.001, 25_400, float("inf")])
def test_the_error_for_a_missing_or_absurd_value_names_both_fixes(stated: float | None) -> None:
    with pytest.raises(ResolutionError) as caught:
        find_slide_mpp(StatedSlide("cohort/a.svs", stated))
    message = str(caught.value)
    assert message.startswith("cohort/a.svs: ")
    assert "`slide_mpp=0.25`" in message
    assert "`slide_mpp=FILE.csv` (columns wsi,mpp)" in message
    assert stated is None or f"{stated:g}" in message


def test_one_value_replaces_what_every_file_states() -> None:
    resolutions = SlideResolutions.parse("0.25")
    assert [
        find_slide_mpp(StatedSlide("a.svs", stated), resolutions) for stated in (None, 0.5, 896)
    ] == [0.25] * 3


@pytest.mark.parametrize("text", ["896", "0", "-1", "nan", "inf", "1e-9"])
def test_the_users_value_is_checked_too(text: str) -> None:
    with pytest.raises(ResolutionError, match=f"`slide_mpp={text}` states .*expected 0.05 to 20"):
        SlideResolutions.parse(text)


@pytest.mark.parametrize("text", ["0,25", "absent.csv", "", ".", "a\0b"])
def test_text_that_is_neither_number_nor_file_is_rejected(text: str) -> None:
    with pytest.raises(ResolutionError, match="neither a number nor a CSV file"):
        SlideResolutions.parse(text)


@pytest.mark.parametrize("key", ["a.svs", "a", "sub/a.svs", "sub/a", "./sub/a.svs", "sub\\a.svs"])
def test_a_table_finds_a_slide_by_name_by_path_and_by_stem(tmp_path: Path, key: str) -> None:
    resolutions = table(tmp_path, f"wsi,mpp\nother.svs,1\n{key},0.25\n")
    assert find_slide_mpp(StatedSlide("cohort/sub/a.svs", None), resolutions) == 0.25


def test_the_end_of_a_name_is_not_enough_to_match(tmp_path: Path) -> None:
    resolutions = table(tmp_path, "wsi,mpp\na.svs,0.25\n")
    assert find_slide_mpp(StatedSlide("cohort/ba.svs", 0.5), resolutions) == 0.5


def test_the_longest_path_wins(tmp_path: Path) -> None:
    resolutions = table(tmp_path, "wsi,mpp\na.svs,1\na,2\nsub/a.svs,3\nother/a.svs,4\n")
    assert find_slide_mpp(StatedSlide("cohort/sub/a.svs", None), resolutions) == 3
    assert find_slide_mpp(StatedSlide("cohort/a.svs", None), resolutions) == 1
    assert find_slide_mpp(StatedSlide("cohort/a.tif", None), resolutions) == 2


def test_a_slide_the_table_lacks_keeps_its_own_value(tmp_path: Path) -> None:
    resolutions = table(tmp_path, "wsi,mpp\nother.svs,1\n")
    assert find_slide_mpp(StatedSlide("a.svs", 0.5), resolutions) == 0.5
    with pytest.raises(ResolutionError, match="states no µm per pixel"):
        find_slide_mpp(StatedSlide("a.svs", None), resolutions)


def test_lines_that_match_no_slide_are_returned(tmp_path: Path) -> None:
    table = tmp_path / "mpp.csv"
    table.write_text("wsi,mpp\na.svs,0.5\nsub/b,0.5\nnotthere,0.5\n")
    resolutions = SlideResolutions.parse(str(table))
    assert resolutions.find_unmatched([Path("x/a.svs"), Path("sub/b.tif")]) == ["notthere"]


def test_tables_from_spreadsheets_are_read(tmp_path: Path) -> None:
    resolutions = table(
        tmp_path, '\ufeffid, mpp ,wsi\r\n1, 0.25 ,"a, b.svs"\r\n,,\r\n\r\n2,0.5,c\r\n'
    )
    assert find_slide_mpp(StatedSlide("a, b.svs", None), resolutions) == 0.25
    assert find_slide_mpp(StatedSlide("c.svs", None), resolutions) == 0.5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1 has the columns none; expected wsi,mpp"),
        ("slide,mpp\na,1\n", "line 1 has the columns slide, mpp; expected wsi,mpp"),
        ("wsi;mpp\na;1\n", "line 1 has the columns wsi;mpp"),
        ("wsi,mpp,mpp\na,1,2\n", "line 1 has the columns"),
        ("wsi,mpp\na,0.5\na,0.5\n", r"line 3 names 'a' again \(first in line 2\)"),
        ("wsi,mpp\nx/a,1\nx\\a,1\n", r"line 3 names .* again"),
        ("wsi,mpp\na,fine\n", r"line 2 \(a\): mpp is 'fine'; expected a number"),
        ("wsi,mpp\na,\n", r"line 2 \(a\): mpp is ''"),
        ("wsi,mpp\na\n", r"line 2 \(a\): mpp is ''"),
        ("wsi,mpp\na,1\n,0.5\n", "line 3 names no slide"),
        ("wsi,mpp\na,1\nb,896\n", r"line 3 \(b\) states 896"),
        ("wsi,mpp\na,nan\n", r"line 2 \(a\) states nan"),
    ],
)
def test_a_faulty_table_is_rejected_with_the_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ResolutionError, match=message):
        table(tmp_path, text)


def test_a_table_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "mpp.csv"
    path.write_bytes(b"\xff\xfe\x00w")
    with pytest.raises(ResolutionError, match="it is not text"):
        SlideResolutions.parse(str(path))


@pytest.mark.parametrize(("target", "has"), [(0.5, 0.5), (0.5, 0.504), (0.5, 0.25), (4, 4.05)])
def test_a_target_within_two_percent_of_the_slide_is_accepted(target: float, has: float) -> None:
    check_target_mpp(target, has)


@pytest.mark.parametrize(("target", "has"), [(0.25, 0.5), (0.5, 0.52), (0.5, 4.0)])
def test_a_target_finer_than_the_scan_is_rejected_with_the_fix(target: float, has: float) -> None:
    with pytest.raises(ResolutionError, match=f"a.svs: .*`mpp={has:g}`.*`allow_upsampling=True`"):
        check_target_mpp(target, has, name="a.svs")
    check_target_mpp(target, has, allow_upsampling=True)


@given(st.floats(MIN_MPP, MAX_MPP))
def test_the_mpp_that_an_error_proposes_is_accepted(has: float) -> None:
    with pytest.raises(ResolutionError) as caught:
        check_target_mpp(has / 2, has)
    check_target_mpp(float(str(caught.value).split("`mpp=")[1].split("`")[0]), has)


@pytest.mark.parametrize(
    ("power", "mpp"), [(80, 0.125), (40, 0.25), (20, 0.5), (10, 1.0), (5, 2.0), (2.5, 4.0)]
)
def test_objective_powers_mean_what_other_tools_mean(power: float, mpp: float) -> None:
    assert magnification_to_mpp(power) == mpp


@pytest.mark.parametrize("power", [0, -20, float("nan"), float("inf")])
def test_a_power_must_be_positive(power: float) -> None:
    with pytest.raises(ResolutionError, match="expected a number above zero"):
        magnification_to_mpp(power)
