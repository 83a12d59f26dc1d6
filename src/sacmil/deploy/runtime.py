"""Inference without torch: NumPy makes the plan, onnxruntime runs the model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.bag import Bag
from sacmil.card import CARD_FILE, ONNX_FILE, Card, find_model_folders, read_card
from sacmil.errors import (
    BagError,
    InputError,
    MissingExtraError,
    ModelError,
    ModelFolderError,
    check_type,
)
from sacmil.plans import make_plan
from sacmil.results import Ensemble, Prediction
from sacmil.tasks import Task, get_model_task
from sacmil.tasks.calibration import Calibration

Array = npt.NDArray[Any]

SCHEMA_VERSION = 1
"""Version of the ``export`` entry of a card."""


def load_runtime(
    path: str | Path, *, threads: int | None = None, calibrated: bool = False
) -> Runtime | Ensemble[Runtime]:
    """Load what ``sacmil export`` wrote; both results have ``predict(bag)``.

    Args:
        path: a folder with model.onnx and card.json, or one with member_0, member_1, … of them.
        threads: CPU cores for one prediction; None means all.
        calibrated: whether to apply the temperatures and thresholds of sacmil.calibrate.
    """
    folder = Path(path)
    members = [
        Runtime(member, threads=threads, calibrated=calibrated)
        for member in find_model_folders(folder)
    ]
    if members[0].folder == folder:
        return members[0]
    return Ensemble(members, name=folder.name, path=folder)


load = load_runtime
"""The name it has in scripts of earlier versions."""


class Runtime:
    """One exported model.

    Args:
        folder: with model.onnx and card.json.
        threads: CPU cores for one prediction; None means all.
        calibrated: whether to apply the card's calibration.
    """

    def __init__(
        self, folder: Path, *, threads: int | None = None, calibrated: bool = False
    ) -> None:
        self.folder = folder
        self.card = read_card(folder)
        self.calibration = Calibration.from_card(self.card, folder) if calibrated else None
        self._info = _read_export_info(folder, self.card)
        if self.card.task and (reason := self.task.explain_unlearned()):
            raise ModelFolderError(f"{folder}: {reason}")
        graph = _read_checked_graph(folder, self._info["onnx_sha256"])
        self._session = _create_session(folder / ONNX_FILE, graph, threads)
        self._input_names = [value.name for value in self._session.get_inputs()]
        self._output_names = [value.name for value in self._session.get_outputs()]
        _check_inputs_and_outputs(folder, self._info, self._input_names, self._output_names)

    @cached_property
    def task(self) -> Task:
        """What is predicted."""
        return get_model_task(self.card)

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; class_0, class_1, … if the model does not name them."""
        return self.task.value_names

    @property
    def hash(self) -> str:
        """SHA-256 of the weights the model was exported from, and of the calibration if used."""
        weights = self.card.weights_sha256
        return self.calibration.combine_hash(weights) if self.calibration else weights

    def predict(self, bag: Bag) -> Prediction:
        """Predict one bag; its features must be of the encoder the model was trained on."""
        check_type("bag", bag, Bag, "a sacmil.Bag; read a file with sacmil.read_bag(path)")
        output = self.run(bag.features, bag.patch_coords, source=bag.slide_id)
        found = self.task.make_prediction(
            bag.slide_id,
            output[self._output_names[0]].astype(np.float64),
            output["scores"],
            output.get("class_scores"),
        )
        return self.calibration.calibrate(found, self.task) if self.calibration else found

    def run(self, features: Array, coords: Array, *, source: str = "the bag") -> dict[str, Array]:
        """Return the graph's outputs by name: probabilities (or predictions), scores, …"""
        width = self._info["dim"]
        if features.shape[1] != width:
            raise InputError(
                f"{source}: features are {features.shape[1]} wide; this {self.card.model} "
                f"expects {width}: use bags of the encoder it was trained on"
            )
        planner = self._info["planner"]
        try:
            plan = make_plan(planner["name"], planner["options"], coords, features)
        except BagError as error:
            raise type(error)(f"{source}: {error}") from error
        inputs = {"features": np.asarray(features, np.float32), "coords": coords, **plan}
        values = self._session.run(
            self._output_names, {name: inputs[name] for name in self._input_names}
        )
        return dict(zip(self._output_names, values, strict=True))


def _read_export_info(folder: Path, card: Card) -> Mapping[str, Any]:
    """Return the ``export`` entry of a card: the graph's hash, inputs, outputs and planner."""
    facts = card.export
    if not isinstance(facts, dict):
        raise ModelFolderError(
            f"{folder}: is not an exported model (its card does not mention {ONNX_FILE}); export "
            "it with sacmil export or sacmil.export_model"
        )
    if facts.get("schema_version") != SCHEMA_VERSION:
        raise ModelFolderError(
            f"{folder}: has export version {facts.get('schema_version')!r}; this sacmil reads "
            f"version {SCHEMA_VERSION}: export the model again, or pip install -U sacmil"
        )
    if card.card_sha256 is None:  # read_card has compared it
        raise ModelFolderError(
            f"{folder}: {CARD_FILE} was changed after the export, it has no card_sha256; copy the "
            "folder again, or export the model again"
        )
    return facts


def _read_checked_graph(folder: Path, digest: str) -> bytes:
    try:
        graph = (folder / ONNX_FILE).read_bytes()
    except OSError as error:
        raise ModelFolderError(
            f"{folder}: {ONNX_FILE} cannot be read ({error.strerror}); copy the folder again"
        ) from error
    if hashlib.sha256(graph).hexdigest() != digest:
        raise ModelFolderError(
            f"{folder}: {ONNX_FILE} is not the file its card was written for (truncated or of "
            "another model); copy the folder again"
        )
    return graph


def _create_session(file: Path, graph: bytes, threads: int | None) -> Any:
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtraError("runtime", "running an exported model") from None
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # errors are raised, so do not print them too
    options.intra_op_num_threads = threads or 0
    try:
        return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a class per status code and no common root
        reason = str(error).strip().splitlines()[0]
        raise ModelError(
            f"{file}: onnxruntime cannot load it ({reason}); update it: pip install -U onnxruntime"
        ) from error


def _check_inputs_and_outputs(
    folder: Path, info: Mapping[str, Any], inputs: list[str], outputs: list[str]
) -> None:
    if inputs != info["inputs"] or outputs != info["outputs"]:
        raise ModelFolderError(
            f"{folder}: {ONNX_FILE} takes {', '.join(inputs)} and returns {', '.join(outputs)}; "
            "its card has other names: export the model again"
        )
