"""A captured prediction is a plain one, and every bag has its own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from captured_memory import Memory

from sacmil import Bag, create_model, list_models, predict
from sacmil.models import _predict
from sacmil.models._captured import CapturedModel
from sacmil.models._predict import Predictor
from sacmil.models._registry import get_model_class
from sacmil.results import Prediction
from sacmil.synthetic.tissue_shape import make_tissue_coords

LENGTHS = (60, 80, 60, 60, 80, 100)
WAITING_MODELS = ("hipt",)


def make_bag(number: int) -> Bag:
    n = LENGTHS[number]
    features = np.random.default_rng(number).standard_normal((n, 16), dtype=np.float32)
    return Bag(str(number), features, make_tissue_coords(n, seed=number) * 256, 256)


def make_predictor(monkeypatch, name: str, device: str) -> tuple[torch.nn.Module, Predictor]:
    model = create_model(name, in_dim=16, num_classes=3, **get_model_class(name).small_options)
    model = model.to(device)
    monkeypatch.setattr(_predict, "make_compute_output", CapturedModel)
    return model, Predictor(model)


def check_same(found: Prediction, expected: Prediction, tolerance: float = 0.0) -> None:
    for name in ("probabilities", "scores", "class_scores"):
        one, other = getattr(found, name), getattr(expected, name)
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", list_models())
def test_replayed_predictions_of_every_model_are_plain_ones(monkeypatch, name: str) -> None:
    memory = Memory(monkeypatch)
    model, predictor = make_predictor(monkeypatch, name, "cpu")
    for number in (*range(6), 0):
        bag = make_bag(number)
        check_same(predictor.predict(bag), predict(model, bag))
    assert memory.captures in (1, 2)  # of two lengths; plans of hipt have shapes of their own


@pytest.mark.parametrize(
    ("failure", "tries"), [(RuntimeError("capturing"), 3), (torch.OutOfMemoryError("full"), 1)]
)
def test_captures_that_fail_leave_plain_predictions(monkeypatch, failure, tries) -> None:
    memory = Memory(monkeypatch)
    memory.failure = failure
    model, predictor = make_predictor(monkeypatch, "abmil", "cpu")
    for number in (0, 2, 3, 0, 2):
        bag = make_bag(number)
        check_same(predictor.predict(bag), predict(model, bag))
    assert memory.tries == tries
    assert not memory.captures


def test_a_model_that_waits_for_the_gpu_is_not_captured(monkeypatch) -> None:
    memory = Memory(monkeypatch)
    memory.obstacles.append("it waits for the GPU")
    _, predictor = make_predictor(monkeypatch, "abmil", "cpu")
    for number in (5, 1, 0, 2, 3):
        predictor.predict(make_bag(number))
    assert not memory.tries
    assert memory.watched == 3  # then it is known


def test_a_bag_of_another_type_of_numbers_does_not_share_a_graph(monkeypatch) -> None:
    Memory(monkeypatch)
    model, predictor = make_predictor(monkeypatch, "abmil", "cpu")
    for _ in range(3):
        predictor.predict(make_bag(0))
    half = replace(make_bag(0), features=make_bag(0).features.astype(np.float16))
    check_same(predictor.predict(half), predict(model, half))


@pytest.mark.gpu
@pytest.mark.parametrize("name", list_models())
def test_captured_predictions_of_every_model_are_plain_ones(monkeypatch, name: str) -> None:
    model, predictor = make_predictor(monkeypatch, name, "cuda")
    for _ in range(3):
        for number in range(6):
            bag = make_bag(number)
            check_same(predictor.predict(bag), predict(model, bag), tolerance=1e-5)
    captured = predictor._compute
    assert bool(captured._graphs.obstacle) == (name in WAITING_MODELS)
    assert len(captured._graphs) == (0 if name in WAITING_MODELS else 3)
