"""A Bag rejects what is not one, in a sentence, and keeps what is."""

from __future__ import annotations

import warnings
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sacmil.bag import Bag, EncoderId, _is_all_finite
from sacmil.errors import BagError, BagWarning, InputError, SacMILError

FEATURES = np.arange(12, dtype=np.float32).reshape(4, 3)
COORDS = np.array([[0, 0], [256, 0], [0, 256], [256, 256]])

few = settings(deadline=None, max_examples=40, derandomize=True)


def bag(**changes: Any) -> Bag:
    arguments = {"slide_id": "s1", "features": FEATURES, "coords": COORDS, "patch_size": 256}
    return Bag(**(arguments | changes))


def with_value(value: float) -> np.ndarray:
    features = FEATURES.copy()
    features[2, 1] = value
    return features


def test_every_float16_that_is_not_finite_is_found_and_no_other() -> None:
    every = np.arange(2**16, dtype=np.uint16).view(np.float16)
    found = [_is_all_finite(value[None]) for value in every]
    assert found == np.isfinite(every).tolist()


def test_one_missing_value_among_many_is_found_wherever_it_stands() -> None:
    values = np.zeros((3, 2**18), np.float16)
    assert _is_all_finite(values)
    for place in [(0, 0), (0, -1), (1, 0), (2, -1)]:
        values[place] = np.nan
        assert not _is_all_finite(values)
        values[place] = 65504.0


@pytest.mark.parametrize(
    ("changes", "found", "expected"),
    [
        ({"features": with_value(np.nan)}, "1 of 4 instances hold NaN", "finite"),
        ({"features": with_value(-np.inf)}, "first: row 2", "finite"),
        ({"features": FEATURES.astype(np.float64) * 1e300}, "infinity", "finite"),
        ({"features": FEATURES[None]}, "(1, 4, 3)", "(N, D)"),
        ({"features": FEATURES[0]}, "(3,)", "(N, D)"),
        ({"features": None}, "()", "(N, D)"),
        ({"features": [[1.0, 2.0], [3.0]]}, "do not make an array", ""),
        ({"features": FEATURES.astype(int)}, "int64", "float32"),
        ({"features": FEATURES.astype(object)}, "object", "float32"),
        ({"features": FEATURES * 1j}, "complex64", "float32"),
        ({"features": FEATURES[:0], "coords": COORDS[:0]}, "empty", "at least one"),
        ({"features": FEATURES[:, :0]}, "empty", "at least one"),
        ({"coords": None}, "no coordinates", "(4, 2)"),
        ({"coords": COORDS[:3]}, "(3, 2)", "(4, 2)"),
        ({"coords": COORDS.T}, "(2, 4)", "(4, 2)"),
        ({"coords": COORDS * np.nan}, "NaN", "level-0"),
        ({"coords": COORDS.astype(object)}, "object", "whole numbers"),
        ({"coords": COORDS.astype(str)}, "<U", "whole numbers"),
        ({"coords": COORDS.astype(np.uint64) - np.uint64(1)}, "reach 1.84467e+19", "level-0"),
        ({"coords": COORDS + 1e300}, "reach 1e+300", "level-0"),
        ({"coords": COORDS - 2**60}, "reach -1.15292e+18", "level-0"),
        ({"slide_size": (2**70, 1)}, "slide_size", "level-0"),
        ({"labels": [0, 1, 0]}, "(3,)", "(4,)"),
        ({"labels": [[0], [1], [0], [1]]}, "(4, 1)", "(4,)"),
        ({"labels": [0.0, 1.0, 0.0, 0.5]}, "float64", "whole numbers"),
        ({"patch_size": "256"}, "'256'", "above zero"),
        ({"patch_size": None}, "patch_size is missing", "level-0"),
        ({"patch_size": float("inf")}, "inf", "above zero"),
        ({"patch_size": 1e308}, "1e+308", "1e-06 to 1e+09"),
        ({"mpp": 0}, "mpp is 0", "above zero"),
        ({"mpp": -0.25}, "-0.25", "above zero"),
        ({"mpp": float("nan")}, "nan", "above zero"),
        ({"stride": 0.0}, "stride is 0.0", "above zero"),
        ({"tile_px": -1}, "tile_px is -1", "above zero"),
        ({"slide_size": (1000,)}, "slide_size is (1000,)", "two whole numbers"),
        ({"slide_size": "ab"}, "'ab'", "two whole numbers"),
        ({"bounds_origin": (0.5, 1)}, "(0.5, 1)", "two whole numbers"),
        ({"encoder": "uni"}, "'uni'", "EncoderId(name, hash)"),
        ({"encoder": (None, None)}, "(None, None)", "EncoderId(name, hash)"),
        ({"encoder": EncoderId("uni", "")}, "hash=''", "EncoderId(name, hash)"),
        ({"encoder": EncoderId("u\0ni")}, "u\\x00ni", "EncoderId(name, hash)"),
        ({"slide_id": ""}, "''", "as text"),
        ({"slide_id": 7}, "7", "as text"),
        ({"slide_id": "a\0b"}, "'a\\x00b'", "UTF-8"),
        ({"slide_id": "a\udcff"}, "\\udcff", "UTF-8"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, dict) else "",
)
def test_what_is_not_a_bag_is_rejected_in_one_sentence(
    changes: dict[str, Any], found: str, expected: str
) -> None:
    with pytest.raises(BagError) as raised:
        bag(**changes)
    message = str(raised.value)
    assert found in message
    assert expected in message
    assert "\n" not in message
    assert "slide_id" in changes or message.startswith("s1: ")


def test_a_bag_error_is_caught_as_sacmil_error_and_as_value_error() -> None:
    assert issubclass(BagError, SacMILError)
    assert issubclass(BagError, ValueError)


def test_equal_coordinates_are_allowed_with_a_warning_that_points_at_the_caller() -> None:
    with pytest.warns(BagWarning, match="s1: 2 of 4 instances repeat") as caught:
        made = bag(coords=COORDS * 0 + [[0, 0], [1, 0], [0, 0], [0, 0]])
    assert len(made) == 4
    assert caught[0].filename == __file__


@pytest.mark.parametrize("coords", [COORDS, [[0, 0], [0, 1], [1, 0], [1, 1]]])
def test_equal_rows_or_columns_by_themselves_are_no_duplicates(coords: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        bag(coords=coords)


@pytest.mark.parametrize(
    ("given_type", "kept"),
    [("f2", "f2"), ("f4", "f4"), ("f8", "f4"), (">f4", "f4"), (np.longdouble, "f4")],
)
def test_features_keep_half_and_single_precision_and_become_single_otherwise(
    given_type: str, kept: str
) -> None:
    made = bag(features=FEATURES.astype(given_type))
    assert made.features.dtype == np.dtype(kept)
    np.testing.assert_array_equal(made.features, FEATURES)


@few
@given(
    coords=hnp.arrays(
        st.sampled_from([np.int16, np.int32, np.uint32, np.int64, np.float32, np.float64]),
        (4, 2),
        elements=st.integers(0, 2**15 - 1),
    )
)
@pytest.mark.filterwarnings("ignore::sacmil.errors.BagWarning")
def test_whole_coordinates_become_int64_whatever_type_they_come_in(coords: np.ndarray) -> None:
    made = bag(coords=coords)
    assert made.coords.dtype == np.int64
    np.testing.assert_array_equal(made.coords, coords)


@few
@given(coords=hnp.arrays(np.float64, (4, 2), elements=st.floats(-(2**53) + 1, 2**53 - 1)))
@pytest.mark.filterwarnings("ignore::sacmil.errors.BagWarning")
def test_coordinates_that_a_slide_can_have_keep_their_value(coords: np.ndarray) -> None:
    np.testing.assert_array_equal(bag(coords=coords).coords, coords)


def test_patch_coordinates_are_in_units_of_the_level0_patch_not_the_tile() -> None:
    made = bag(patch_size=512, tile_px=256, coords=COORDS * 2)
    np.testing.assert_array_equal(made.patch_coords, [[0, 0], [1, 0], [0, 1], [1, 1]])


def test_a_side_in_microns_needs_a_resolution() -> None:
    assert bag(patch_size=512, mpp=0.25).patch_size_um == 128
    assert bag(patch_size=512).patch_size_um is None


def test_a_bag_cannot_be_given_other_arrays_afterwards() -> None:
    with pytest.raises(AttributeError):
        bag().features = FEATURES


def test_a_bag_shows_its_size_not_its_numbers() -> None:
    assert repr(bag()) == "Bag('s1', 4 instances x 3)"


WHOLE = {
    "labels": [1, 0, -1, 1],
    "mpp": 0.25,
    "slide_size": (900, 800),
    "bounds_origin": (1, 2),
    "stride": 128,
    "tile_px": 224,
    "encoder": EncoderId("uni", "ab"),
    "provenance": {"made": "here"},
}


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        (slice(1, 3), [1, 2]),
        (slice(None, None, -2), [3, 1]),
        (2, [2]),
        (-1, [3]),
        (np.int64(2), [2]),
        ([3, 0], [3, 0]),
        (np.array([1, -1], dtype=np.int16), [1, 3]),
        ([True, False, False, True], [0, 3]),
        (COORDS[:, 0] > 0, [1, 3]),
    ],
)
def test_a_window_holds_the_chosen_instances_and_everything_else(index: Any, rows: list) -> None:
    whole = bag(**WHOLE)
    for window in (whole[index], whole.take(index)):
        np.testing.assert_array_equal(window.features, FEATURES[rows])
        np.testing.assert_array_equal(window.coords, COORDS[rows])
        np.testing.assert_array_equal(window.labels, np.array(WHOLE["labels"])[rows])
        for name in {field.name for field in fields(Bag)} - {"features", "coords", "labels"}:
            assert getattr(window, name) == getattr(whole, name), name


def test_a_window_of_a_bag_without_labels_has_none() -> None:
    assert bag()[:2].labels is None


@pytest.mark.parametrize(
    ("index", "found"),
    [
        ([], "selects none of 4 instances"),
        (slice(4, 9), "selects none of 4 instances"),
        ([False] * 4, "selects none of 4 instances"),
        ([True] * 3, r"is bool of shape \(3,\); expected .* mask of shape \(4,\)"),
        (4, "runs from 4 to 4; expected whole numbers from -4 to 3"),
        ([0, -5], "runs from -5 to 0; expected whole numbers from -4 to 3"),
        ([0.0, 1.0], "is float64"),
        ([[0, 1]], r"is int64 of shape \(1, 2\)"),
        ((slice(None), 0), "is object"),
        ("0", "is <U1"),
    ],
)
def test_an_index_that_does_not_fit_is_rejected_in_one_sentence(index: Any, found: str) -> None:
    with pytest.raises(InputError, match=f"^s1: the index {found}"):
        bag()[index]


def test_a_bag_is_indexed_but_not_iterated() -> None:
    with pytest.raises(TypeError, match="not iterable"):
        list(bag())
