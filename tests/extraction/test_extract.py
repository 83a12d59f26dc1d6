"""``sacmil.extract``: the command as a function."""

from __future__ import annotations

import inspect
from contextlib import contextmanager
from pathlib import Path

import pytest

import sacmil
from sacmil.cli.extract import command
from sacmil.encoders import load_encoder
from sacmil.errors import CohortWarning, OptionError, SlideError
from sacmil.extraction import ExtractionSettings, extract, extract_slides
from sacmil.slides.search import find_slides
from sacmil.slides.tiling import TileSpec

pytestmark = pytest.mark.usefixtures("inline_workers")


def test_every_option_of_the_command_is_an_argument_of_the_same_name_and_default() -> None:
    arguments = inspect.signature(sacmil.extract).parameters
    options = command.make_context("extract", ["slides", "--out", "out"]).params
    assert options.keys() == arguments.keys() - {"progress"}
    texts = {"slides", "out", "mpp", "patch_size", "include", "exclude"}
    chosen = {name: arguments[name].default for name in options.keys() - texts}
    assert chosen == {name: options[name] for name in chosen}


def test_it_writes_the_same_bags_as_loaded_encoders_and_settings(
    cohort: Path, tmp_path: Path, encoder: str
) -> None:
    slides = [str(cohort / "slide-0.tif"), str(cohort / "slide-1.tif")]
    summary = sacmil.extract(slides, tmp_path / "a", encoder=encoder, patch_size=64, gpus=[])
    rows = extract_slides(
        find_slides(slides),
        tmp_path / "b",
        encoders=[load_encoder(encoder)],
        settings=ExtractionSettings(tiles=TileSpec(patch_size=64)),
    )
    assert summary.done == ["slide-0", "slide-1"] == list(summary.bags)
    assert summary.failures == {}
    assert list(summary.to_frame()["bag"]) == [row.bag for row in rows]
    for row in rows:
        bag = summary.bags[row.slide_id]
        assert bag.read_bytes() == (tmp_path / "b" / row.bag).read_bytes()


def test_a_slide_that_fails_is_a_reason_and_the_others_go_on(cohort: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.tif").write_bytes(b"II*\0")
    files = [tmp_path / "broken.tif", cohort / "slide-1.tif"]
    summary = extract(files, tmp_path / "out", until="tissue")
    assert summary.done == ["slide-1"]
    assert list(summary.failures) == ["broken"]
    assert "broken.tif" in summary.failures["broken"]


def test_names_are_chosen_by_one_pattern_or_several(cohort: Path, tmp_path: Path) -> None:
    one = extract(cohort, tmp_path / "one", until="tissue", include="*-0.tif")
    two = extract(cohort, tmp_path / "two", until="tissue", exclude=["*-0.tif", "*-1*"])
    assert (one.done, two.done) == (["slide-0"], ["slide-2"])


def test_a_magnification_is_a_resolution(cohort: Path, tmp_path: Path) -> None:
    summary = extract(cohort / "slide-1.tif", tmp_path, until="tiles", magnification=10)
    assert summary.rows[0].cut == "1mpp_256px"


def test_progress_starts_with_the_number_of_slides(cohort: Path, tmp_path: Path) -> None:
    seen = []

    class Callbacks:
        def on_tiles(self, encoded: int, found: int) -> None:
            pass

        def on_slide(self, row, left: int) -> None:
            seen.append((row.slide_id, left))

    @contextmanager
    def track(slides: int):
        seen.append(("slides", slides))
        yield Callbacks()
        seen.append(("end", 0))

    extract(cohort, tmp_path, until="tissue", progress=track)
    assert seen == [("slides", 3), ("slide-0", 2), ("slide-1", 1), ("slide-2", 0), ("end", 0)]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"mpp": 0.5, "magnification": 20}, "`mpp` and `magnification` both set"),
        ({"mpp": None, "slide_mpp": 0.5}, "leave `slide_mpp` out"),
        ({"magnification": 0}, "magnification is 0"),
        ({"slide_mpp": 250}, "0.05 to 20"),
        ({"tissue_mode": "most"}, "tissue_mode='most'"),
        ({"encoder": "uni"}, "uni_v1"),
        ({"reader": "openslyde"}, "`reader=openslyde`; did you mean 'openslide'"),
        ({"until": "tile"}, "`until=tile`; did you mean 'tiles'"),
        ({"engine": "rey"}, "`engine=rey`; did you mean 'ray'"),
        ({"address": "auto"}, "add `engine='ray'`"),
        ({"until": "tiles", "engine": "ray"}, "leave `engine='ray'` out"),
        ({"gpus": "0,1"}, r"a list of numbers such as \[0, 1\]"),
        ({"workers": -1}, "workers=-1"),
    ],
)
def test_wrong_arguments_are_rejected_before_slides_are_searched_for(
    tmp_path: Path, arguments: dict, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        extract(tmp_path / "missing", tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_no_slides_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SlideError, match="no slides found"):
        extract(tmp_path, tmp_path / "out")


def test_a_resolution_of_a_slide_that_is_not_there_is_a_warning(
    cohort: Path, tmp_path: Path
) -> None:
    (tmp_path / "mpp.csv").write_text("wsi,mpp\nslide-1,0.5\nslide-9,0.5\n")
    with pytest.warns(CohortWarning, match="no slide is named slide-9"):
        extract(
            cohort / "slide-1.tif",
            tmp_path / "out",
            until="tissue",
            slide_mpp=tmp_path / "mpp.csv",
        )
