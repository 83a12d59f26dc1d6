"""A bag is compared with what the model was trained on, fact by fact."""

from __future__ import annotations

from typing import Any

import pytest
from answering import BAGS, ENCODER, make_bag

from sacmil import EncoderId
from sacmil.card import Card
from sacmil.errors import ModelFolderError
from sacmil.workflows.input_requirements import InputRequirements

NEEDS = InputRequirements(**BAGS)


def make_card(notes: dict[str, Any], **options: Any) -> Card:
    return Card(model="abmil", options=options, weights_sha256="ab", notes=notes)


def test_a_card_says_what_is_needed() -> None:
    assert InputRequirements.from_card(make_card({"bags": BAGS}, in_dim=99), "m") == NEEDS
    assert NEEDS.mpp == 0.5


@pytest.mark.parametrize("notes", [{}, {"bags": None}, {"bags": "x"}])
def test_of_a_card_without_facts_only_the_width_is_known(notes: Any) -> None:
    found = InputRequirements.from_card(make_card(notes, in_dim=6), "m")
    assert found == InputRequirements(dim=6)
    assert len(found.list_missing_for_slides()) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"encoder": 3},
        {"encoder": ""},
        {"dim": "6"},
        {"dim": 6.5},
        {"patch_um": -1},
        {"patch_um": float("nan")},
        {"patch_um": float("inf")},
        {"tile_px": True},
        {"tile_px": [256]},
    ],
)
def test_a_tampered_card_is_refused_by_its_fact(wrong: dict[str, Any]) -> None:
    with pytest.raises(
        ModelFolderError, match=f"m: its card has the invalid value .* for {next(iter(wrong))}"
    ):
        InputRequirements.from_card(make_card({"bags": BAGS | wrong}), "m")


def test_the_bag_it_was_made_for_fits() -> None:
    assert NEEDS.check(make_bag("s")) == ([], [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder": EncoderId("uni", ENCODER.hash)}, "its encoder is uni, the model's lite0"),
        ({"encoder": EncoderId("lite0", "1234")}, "its lite0 has other weights (1234)"),
        ({"mpp": 0.25}, "its tiles are 64 µm wide, the model's 128 µm"),
        ({"mpp": 0.5 * 1.051}, "its tiles are 134.5 µm wide"),
        ({"mpp": 0.5 * 0.949}, "its tiles are 121.5 µm wide"),
    ],
)
def test_a_difference_is_reported_with_both_sides(changes: dict[str, Any], message: str) -> None:
    ((wrong,), unknown) = NEEDS.check(make_bag("s", **changes))
    assert wrong.startswith(message)
    assert unknown == []


@pytest.mark.parametrize(
    "changes",
    [{"mpp": 0.5 * 1.049}, {"mpp": 0.5 * 0.951}, {"encoder": EncoderId("lite0")}, {"tile_px": 224}],
)
def test_small_differences_and_unknown_hashes_are_no_mismatch(changes: dict[str, Any]) -> None:
    assert NEEDS.check(make_bag("s", **changes)) == ([], [])


@pytest.mark.parametrize(
    ("changes", "message"),
    [({"encoder": None}, "encoder"), ({"mpp": None}, "size of a tile in µm")],
)
def test_what_a_bag_does_not_say_is_unknown(changes: dict[str, Any], message: str) -> None:
    assert NEEDS.check(make_bag("s", **changes)) == ([], [message])


def test_a_bag_of_another_width_is_reported() -> None:
    ((wrong,), _) = InputRequirements(dim=7).check(make_bag("s"))
    assert wrong == "its features have 6 numbers, the model takes 7"


def test_models_that_need_the_same_can_be_combined_whatever_one_does_not_state() -> None:
    assert InputRequirements.merge({"a": NEEDS, "b": InputRequirements(dim=6)}) == NEEDS
    with pytest.raises(ModelFolderError, match=r"different encoder: a lite0; b uni"):
        InputRequirements.merge({"a": NEEDS, "b": InputRequirements(encoder="uni")})


def test_the_way_out_says_what_to_extract_and_offers_insisting_only_where_it_helps() -> None:
    line = "extract the slide again with the encoder lite0, tiles of 256 pixels at 0.5 µm per pixel"
    assert line in NEEDS.fix_hint(make_bag("s", mpp=0.25))
    assert "`allow_mismatch=True`" in NEEDS.fix_hint(make_bag("s", mpp=0.25))
    unknown = InputRequirements(dim=7).fix_hint(make_bag("s"))
    assert "with the model's encoder" in unknown
    assert "allow_mismatch" not in unknown


def test_no_hint_names_an_encoder_we_do_not_have() -> None:
    hint = InputRequirements(encoder="synthetic", dim=7).fix_hint(make_bag("s"))
    assert hint == "give a bag made like the model's, with features of synthetic"
    assert "the encoder timm:vit" in InputRequirements(encoder="timm:vit", dim=7).fix_hint(
        make_bag("s")
    )


IN_PIXELS = InputRequirements(
    **BAGS | {"patch_um": None, "patch_px": 115, "tile_px": 115, "tissue": "all"}
)


def pixel_bag(side: int) -> Any:
    return make_bag("s", mpp=None, patch_size=side, stride=side, provenance={"mpp": None})


def test_tiles_counted_in_pixels_fit_only_those_of_the_same_count() -> None:
    assert IN_PIXELS.check(pixel_bag(115)) == ([], [])
    assert IN_PIXELS.list_missing_for_slides() == []
    found, expected = (f"{n} pixels of an image of unknown µm per pixel" for n in (64, 115))
    assert IN_PIXELS.check(pixel_bag(64)).problems == [
        f"its tiles are {found}, the model's {expected}"
    ]
    assert "tiles of 115 pixels of the image (mpp none)" in IN_PIXELS.extraction_hint()


def test_pixels_and_microns_do_not_fit_each_other() -> None:
    (wrong,) = IN_PIXELS.check(make_bag("s")).problems
    assert wrong.startswith("its tiles are 128 µm wide, the model's 115 pixels of an image")
    (wrong,) = NEEDS.check(pixel_bag(115)).problems
    assert wrong.endswith("of unknown µm per pixel, the model's 128 µm wide")


def test_a_bag_that_merely_does_not_say_its_microns_is_not_one_cut_by_pixels() -> None:
    silent = make_bag("s", mpp=None)
    assert NEEDS.check(silent) == ([], ["size of a tile in µm"])
    assert IN_PIXELS.check(silent) == ([], ["size of a tile in µm"])


def test_models_whose_tissue_was_found_in_different_ways_predict_together() -> None:
    needs = {
        "a": InputRequirements(dim=8, tissue="all"),
        "b": InputRequirements(dim=8, tissue="detect"),
    }
    assert InputRequirements.merge(needs) == InputRequirements(dim=8)
