"""From a bag to a prediction, in torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from sacmil.bag import Bag
from sacmil.errors import BagError
from sacmil.models._base import MILModel
from sacmil.results import Prediction


@torch.inference_mode()
def predict(model: MILModel, bag: Bag) -> Prediction:
    """Answer one bag on the device the model is on.

    Args:
        model: its weights are used as in evaluation; its mode is left as it was.
        bag: features of the encoder the model was trained on.
    """
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    coords = bag.patch_coords
    was_training = model.training
    model.eval()
    try:
        plan = model.plan(coords, bag.features)
        # torch warns of arrays that cannot be written to, such as memory-mapped ones
        features = torch.from_numpy(np.require(bag.features, requirements="W")).to(device)
        output = model(features, torch.from_numpy(coords).to(device), plan)
    except BagError as error:
        raise type(error)(f"{bag.slide_id}: {error}") from error
    finally:
        model.train(was_training)
    return Prediction.of(
        bag.slide_id,
        _numpy(model.probabilities(output)).astype(np.float64),
        _numpy(output.scores),
        None if output.class_scores is None else _numpy(output.class_scores),
        model.classes,
    )


def _numpy(tensor: Tensor) -> npt.NDArray[Any]:
    return tensor.float().cpu().numpy()
