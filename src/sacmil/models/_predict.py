"""Inference of one bag with torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sacmil.bag import Bag
from sacmil.errors import BagError, InputError, ModelError
from sacmil.formats import read_bag
from sacmil.models._base import MILModel, Output
from sacmil.models._captured import ComputeOutput, make_compute_output
from sacmil.models._checks import describe_value, to_tensor
from sacmil.results import Prediction


@torch.inference_mode()
def predict(model: MILModel, bag: Bag | str | Path) -> Prediction:
    """Predict one bag on the device of the model.

    Args:
        model: used in evaluation mode; its mode is restored afterwards.
        bag: features of the encoder the model was trained on, or the path of a file ``read_bag``
            reads without further arguments.
    """
    return _make_prediction(model, *_run(model, bag))


class Predictor:
    """Predicts bags by a model whose weights do not change any more.

    On a GPU predictions are captured where a shape repeats.
    """

    def __init__(self, model: MILModel) -> None:
        self._model = model
        self._compute = make_compute_output(model, _find_device(model))

    @torch.inference_mode()
    def predict(self, bag: Bag) -> Prediction:
        """Predict one bag; the same as ``sacmil.predict``."""
        return _make_prediction(self._model, *_run(self._model, bag, self._compute))


def _make_prediction(model: MILModel, bag: Bag, output: Output) -> Prediction:
    return model.known_task.make_prediction(
        bag.slide_id,
        _to_numpy(model.probabilities(output)).astype(np.float64),
        _to_numpy(output.scores),
        None if output.class_scores is None else _to_numpy(output.class_scores),
    )


@torch.inference_mode()
def embed(model: MILModel, bag: Bag | str | Path) -> npt.NDArray[np.float32]:
    """Return the slide embedding (E,): the vector that the model's head sees.

    Args:
        model: as for ``predict``.
        bag: as for ``predict``.

    Raises:
        ModelError: the model has none, as max pooling of instances.
    """
    bag, output = _run(model, bag)
    if output.embedding is None:
        raise ModelError(
            f"{model.name} has no slide embedding; expected a model that pools instances into one "
            "vector, such as abmil"
        )
    vector = _to_numpy(output.embedding).astype(np.float32)
    if not np.isfinite(vector).all():
        raise InputError(
            f"{bag.slide_id}: the embedding is NaN or infinite; expected features like those the "
            "model was trained on"
        )
    return vector


def _find_device(model: MILModel) -> torch.device:
    return next((p.device for p in model.parameters()), torch.device("cpu"))


def _run(
    model: MILModel, given: object, compute: ComputeOutput | None = None
) -> tuple[Bag, Output]:
    _check_model(model)
    bag, device = _to_bag(given), _find_device(model)
    coords = bag.patch_coords
    was_training = model.training
    model.eval()
    try:
        plan = model.plan(coords, bag.features)
        # As tensors: a compiled model takes no arrays in inference mode.
        tensors = {key: to_tensor(key, value, device) for key, value in plan.items()}
        features = to_tensor("features", bag.features, device)
        output = (compute or model)(features, to_tensor("coords", coords, device), tensors)
    except BagError as error:
        raise type(error)(f"{bag.slide_id}: {error}") from error
    finally:
        model.train(was_training)
    return bag, output


def _check_model(model: object) -> None:
    # By its plan, not its class: torch.compile returns a wrapper of another class.
    if not callable(getattr(model, "plan", None)):
        raise ModelError(
            f"model is a {type(model).__name__}; expected what sacmil.create_model or "
            "sacmil.load_model returns, then the bag"
        )


def _to_bag(bag: object) -> Bag:
    if isinstance(bag, str | Path):
        return read_bag(bag)
    if not isinstance(bag, Bag):
        raise InputError(
            f"bag is {describe_value(bag)}; expected a sacmil.Bag or the path of its file. For "
            "arrays use model(features, coords), or make a bag: "
            "sacmil.Bag(slide_id, features, coords, patch_size)"
        )
    return bag


def _to_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    return tensor.float().cpu().numpy()
