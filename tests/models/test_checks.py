"""A model takes tensors and arrays in patch units, and says what is wrong with anything else."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sacmil import Bag, create_model, list_models, predict
from sacmil.errors import BagWarning, InputError
from sacmil.models import MILModel, _checks
from sacmil.models._registry import get_model_class

DIM = 12
CELLS = np.argwhere(np.random.default_rng(0).random((20, 20)) < 0.3)


@pytest.fixture(autouse=True)
def _warn_again() -> Iterator[None]:
    _checks._has_warned = False
    yield
    _checks._has_warned = False


def model_of(name: str = "sac_mil_local") -> MILModel:
    torch.manual_seed(0)
    return create_model(
        name, in_dim=DIM, num_classes=2, **get_model_class(name).small_options
    ).eval()


def is_warned_of(coords: np.ndarray) -> bool:
    _checks._has_warned = False
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        _checks.warn_if_pixels(coords)
    return bool(found)


# --- arrays --------------------------------------------------------------------------------------


def test_arrays_give_what_tensors_give() -> None:
    model = model_of()
    features = np.random.default_rng(1).random((len(CELLS), DIM), np.float32)
    expected = model(torch.from_numpy(features), torch.from_numpy(CELLS))
    frozen = features.copy()
    frozen.setflags(write=False)
    for array in (features, frozen, features.astype(np.float64), np.asfortranarray(features)):
        assert model(array, CELLS).logits.equal(expected.logits)
    assert model(features[::-1], CELLS[::-1]).logits.allclose(expected.logits)
    assert model(torch.from_numpy(features), CELLS).logits.equal(expected.logits)


@pytest.mark.parametrize("name", list_models())
def test_every_model_takes_arrays_of_every_precision(name: str) -> None:
    model = model_of(name)
    half = np.random.default_rng(2).random((30, DIM)).astype(np.float16)
    coords = np.argwhere(np.ones((5, 6)))
    with torch.no_grad():
        expected = model(torch.from_numpy(half), torch.from_numpy(coords).float())
        for dtype, unit in ((np.float16, np.uint8), (np.float32, np.int64), (np.float64, float)):
            output = model(half.astype(dtype), coords.astype(unit))
            assert isinstance(output.logits, torch.Tensor)
            assert output.logits.equal(expected.logits)
            assert output.scores.equal(expected.scores)


def test_arrays_are_taken_by_a_model_of_half_precision() -> None:
    logits = model_of().bfloat16()(np.ones((5, DIM)), np.arange(10).reshape(5, 2)).logits
    assert logits.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ("slide.h5", r"a str; expected a tensor or array\. Read the file first: sacmil\.read_bag"),
        ([[1.0] * DIM], "a list of length 1; expected a tensor or array"),
        (np.full((1, DIM), "one"), r"an array of <U3, shape \(1, 12\), which torch cannot take"),
        (np.full((1, DIM), None), "an array of object, .*features.astype"),
        ((np.ones((1, DIM)), np.zeros((1, 2))), "a tuple of length 2; expected a tensor or array"),
        (np.ones((1, DIM), np.int64), r"int64, shape \(1, 12\); expected floats"),
        (torch.ones(1, DIM, dtype=torch.uint8), "uint8, .*; expected floats"),
        (np.ones((1, DIM), np.complex64), "complex64, .*; expected floats"),
        (np.ones((1, DIM), bool), "bool, .*; expected floats"),
    ],
)
def test_features_of_another_type_are_rejected_with_the_types_that_are_taken(
    features: Any, words: str
) -> None:
    with pytest.raises(InputError, match=f"features are {words}"):
        model_of()(features, np.zeros((1, 2)))


def test_coords_of_another_type_are_rejected_with_their_unit() -> None:
    for coords, found in (
        (None, "None"),
        ([[0, 0]], "a list of length 1"),
        (np.zeros((1, 2), complex), "complex128, .*"),
    ):
        with pytest.raises(InputError, match=f"coords are {found}; .* in patch units"):
            model_of()(np.ones((1, DIM)), coords)


@pytest.mark.parametrize(
    ("features", "coords", "words"),
    [
        (
            (1, 3, DIM),
            (3, 2),
            r"features have shape \(1, 3, 12\); .* batch axis: give features\[0\]",
        ),
        ((2, 3, DIM), (3, 2), "batch axis: call the model for each bag"),
        ((3, DIM), (1, 3, 2), r"coords have shape \(1, 3, 2\); .* give coords\[0\]"),
        ((3, DIM), (2, 3), r"coords have shape \(2, 3\); expected \(N, 2\)"),
        ((3, DIM), (4, 2), "4 coordinates for 3 instances; expected one"),
        ((DIM,), (3, 2), r"features have shape \(12,\); expected \(N, 12\)"),
        ((0, DIM), (0, 2), "with N >= 1"),
    ],
)
def test_shapes_that_are_not_one_bag_are_rejected_with_the_fix(
    features: tuple[int, ...], coords: tuple[int, ...], words: str
) -> None:
    for make in (np.ones, torch.ones):
        with pytest.raises(InputError, match=words):
            model_of()(make(features), make(coords))


def test_tensors_on_another_device_than_the_model_are_rejected_with_both() -> None:
    features, coords = torch.ones(3, DIM), torch.ones(3, 2)
    words = r"are on meta, the model is on cpu; .*\.to\('cpu'\)"
    with pytest.raises(InputError, match=f"features {words}"):
        model_of()(features.to("meta"), coords.to("meta"))
    with pytest.raises(InputError, match=f"coords {words}"):
        model_of()(features, coords.to("meta"))


def test_a_bag_given_to_a_model_is_rejected_with_two_calls_that_work(
    make_bag: Callable[..., Bag],
) -> None:
    model, bag = model_of(), make_bag(9, DIM)
    with pytest.raises(InputError) as raised:
        model(bag)
    assert "sacmil.predict(model, bag)" in str(raised.value)
    assert "model(bag.features, bag.patch_coords)" in str(raised.value)
    scores = model(bag.features, bag.patch_coords).scores.detach()
    np.testing.assert_allclose(predict(model, bag).scores, scores)


# --- pixels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sac_mil_local", "abmil"])
def test_level_0_pixels_are_warned_of_once(name: str) -> None:
    model, features = model_of(name), torch.ones(len(CELLS), DIM)
    pixels = torch.from_numpy(CELLS * 512)
    with pytest.warns(BagWarning, match="look like level-0 pixels; expected patch units"):
        model(features, pixels)
    model(features, pixels)  # a second warning would be an error
    model.plan(pixels.numpy())


def test_pixels_are_warned_of_where_a_plan_is_made_beforehand() -> None:
    with pytest.warns(BagWarning, match="divide them by the patch size"):
        model_of().plan(CELLS * 256)


def test_a_bag_whose_patch_size_is_in_another_unit_is_warned_of() -> None:
    bag = Bag("slide", np.ones((len(CELLS), DIM), np.float32), CELLS * 512, patch_size=1)
    with pytest.warns(BagWarning, match="level-0 pixels"):
        predict(model_of(), bag)


def test_a_plan_that_is_given_costs_no_look_at_the_coordinates() -> None:
    model, features = model_of(), torch.ones(len(CELLS), DIM)
    model(features, torch.from_numpy(CELLS * 512), model.plan(CELLS))


@pytest.mark.parametrize(
    "pixels",
    [
        CELLS * 224 + 37,
        (CELLS * 128).astype(np.float32),
        CELLS[:8] * 50,
        np.round(CELLS * 1012.7),  # a tile's side that is no whole number of pixels
        np.random.default_rng(0).random((500, 2)) * 80_000,  # nuclei
    ],
)
def test_pixels_are_distinguished_from_patch_units(pixels: np.ndarray) -> None:
    assert is_warned_of(pixels)


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    instances=st.integers(1, 400),
    side=st.sampled_from([1, 3, 40, 300, 2000]),
    step=st.sampled_from([1.0, 0.5, 0.25, 1 / 3, 0.0]),
    size=st.sampled_from([1, 224, 359, 512]),
)
def test_patch_units_are_never_warned_of(
    seed: int, instances: int, side: int, step: float, size: int
) -> None:
    """Sparse and dense bags, overlapping tiles, nuclei (step 0), grids that begin anywhere."""
    random = np.random.default_rng(seed)
    cells = random.integers(0, side, (instances, 2))
    coords = cells * step if step else random.random((instances, 2)) * side
    assert not is_warned_of((coords * size + random.integers(0, 50_000, 2)) / size)
    assert not is_warned_of(coords.astype(np.float32))


@pytest.mark.parametrize("axis", [0, 1])
def test_a_single_row_or_column_of_tiles_is_not_warned_of(axis: int) -> None:
    coords = np.zeros((40, 2))
    coords[:, axis] = np.arange(40)
    assert not is_warned_of(coords)
    assert not is_warned_of(np.zeros((40, 2)))


def test_features_beyond_float32_are_an_error() -> None:
    model = model_of("mean_pool")
    with pytest.raises(InputError, match=r"features of 3 of 3 instances hold .* as float32"):
        model(np.full((3, DIM), 1e300), CELLS[:3])
    assert model.double()(np.full((3, DIM), 1e30), CELLS[:3]).logits.isfinite().all()
