"""Numbers that are no numbers, or absurd ones, are errors in words for every model."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_models import make_bag, make_model

from sacmil import list_models, predict
from sacmil.errors import InputError
from sacmil.models import MILModel

BAG = make_bag(12)


@pytest.fixture(scope="module", params=list_models())
def model(request: pytest.FixtureRequest) -> MILModel:
    found: MILModel = make_model(request.param)
    return found


def error_of(call) -> str | None:
    try:
        call()
    except InputError as error:
        return str(error)
    return None


def test_a_prediction_is_finite_or_the_error_of_the_command(model: MILModel) -> None:
    huge = replace(BAG, features=np.sign(BAG.features) * np.float32(3e38))
    found = []
    error = error_of(lambda: found.append(predict(model, huge)))
    assert error is None or error.startswith(f"{BAG.slide_id}: the model predicts ")
    assert error is None or error.endswith("look for numbers that are far too large")
    assert all(np.isfinite(one.probabilities).all() for one in found)
    assert all(np.isfinite(one.scores).all() for one in found)


def test_features_that_are_not_finite_are_an_error(model: MILModel) -> None:
    features = BAG.features.copy()
    features[7] = np.nan
    error = error_of(lambda: model(features, BAG.patch_coords))
    assert error is not None
    assert "features of 1 of 12 instances hold NaN or infinity (first: row 7)" in error


def test_coordinates_that_no_slide_has_are_an_error(model: MILModel) -> None:
    for wrong, found in ((np.nan, "NaN"), (-np.inf, "infinity"), (1e300, "1e+300"), (-1e12, "-1e")):
        coords = BAG.patch_coords.copy()
        coords[3, 1] = wrong
        error = error_of(lambda coords=coords: model(BAG.features, coords))
        assert error is not None
        assert found in error
        assert "; expected patch units" in error


def test_losses_take_a_class_as_a_number_or_as_a_tensor(model: MILModel) -> None:
    output = model(BAG.features, BAG.patch_coords)
    expected = model.losses(output, torch.tensor(1))
    found = model.losses(output, 1)
    assert {key: float(loss.detach()) for key, loss in found.items()} == pytest.approx(
        {key: float(loss.detach()) for key, loss in expected.items()}
    )
    for wrong in ("tumour", 1.0, 3, -1, None):
        error = error_of(lambda wrong=wrong: model.losses(output, wrong))
        assert error is not None
        assert "target is " in error
