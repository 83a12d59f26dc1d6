"""Inference without torch: NumPy makes the plan, onnxruntime runs the model."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from sacmil.bag import Bag
from sacmil.card import CARD_FILE, combine_hashes, read_card
from sacmil.errors import BagError, InputError, MissingExtraError, ModelError, ModelFolderError
from sacmil.plans import make_plan
from sacmil.results import Prediction
from sacmil.results.prediction import most_probable_class, select_class_scores

Array = npt.NDArray[Any]

GRAPH = "model.onnx"
SCHEMA_VERSION = 1
"""Version of the ``export`` entry of a card."""


def load_runtime(path: str | Path, *, threads: int | None = None) -> Runtime | Ensemble:
    """What ``sacmil export`` wrote, ready to predict.

    Args:
        path: a folder with model.onnx and card.json, or one with part_0, part_1, … of them.
        threads: cores one answer may take; None means all.
    """
    folder = Path(path)
    parts = sorted(folder.glob(f"part_*/{CARD_FILE}"), key=lambda card: (len(str(card)), card))
    if parts and not (folder / CARD_FILE).is_file():
        return Ensemble([Runtime(card.parent, threads=threads) for card in parts])
    return Runtime(folder, threads=threads)


load = load_runtime
"""The name it has in scripts of earlier versions."""


class Runtime:
    """One exported model.

    Args:
        folder: with model.onnx and card.json.
        threads: CPU cores for one prediction; None means all.
    """

    def __init__(self, folder: Path, *, threads: int | None = None) -> None:
        self.card = _read_checked_card(folder)
        graph = _read_checked_graph(folder, self.card["export"]["onnx_sha256"])
        self._session = _create_session(folder / GRAPH, graph, threads)
        self._input_names = [value.name for value in self._session.get_inputs()]
        self._output_names = [value.name for value in self._session.get_outputs()]
        _check_inputs_and_outputs(folder, self.card, self._input_names, self._output_names)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, if the model has them."""
        return tuple(self.card["classes"]) if self.card["classes"] else None

    @property
    def hash(self) -> str:
        """SHA-256 of the weights the model was exported from."""
        return str(self.card["weights_sha256"])

    def predict(self, bag: Bag) -> Prediction:
        """Predict one bag; its features must be of the encoder the model was trained on."""
        output = self.run(bag.features, bag.patch_coords, source=bag.slide_id)
        return Prediction.from_output(
            bag.slide_id,
            output["probabilities"].astype(np.float64),
            output["scores"],
            output.get("class_scores"),
            self.classes,
        )

    def run(self, features: Array, coords: Array, *, source: str = "the bag") -> dict[str, Array]:
        """Return the graph's outputs by name: probabilities, scores, and class_scores if any."""
        width = self.card["export"]["dim"]
        if features.shape[1] != width:
            raise InputError(
                f"{source}: features are {features.shape[1]} wide; this {self.card['model']} "
                f"expects {width}: use bags of the encoder it was trained on"
            )
        planner = self.card["export"]["planner"]
        try:
            plan = make_plan(planner["name"], planner["options"], coords, features)
        except BagError as error:
            raise type(error)(f"{source}: {error}") from error
        inputs = {"features": np.asarray(features, np.float32), "coords": coords, **plan}
        values = self._session.run(
            self._output_names, {name: inputs[name] for name in self._input_names}
        )
        return dict(zip(self._output_names, values, strict=True))


class Ensemble:
    """The exported members of one run; predicts the mean of their predictions."""

    def __init__(self, members: list[Runtime]) -> None:
        self.members = members
        if len({member.classes for member in members}) > 1:
            found = "; ".join(sorted(", ".join(member.classes or ("?",)) for member in members))
            raise ModelFolderError(f"the members have different classes ({found}); load one member")

    @property
    def card(self) -> Mapping[str, Any]:
        """The card of the first member."""
        return self.members[0].card

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, if the models have them."""
        return self.members[0].classes

    @property
    def hash(self) -> str:
        """SHA-256 of the members' hashes; the same as that of the exported run."""
        return combine_hashes([member.hash for member in self.members])

    def predict(self, bag: Bag) -> Prediction:
        """Return the mean probabilities, and the mean scores for the class they predict.

        A single member may predict another class.
        """
        predictions = [member.predict(bag) for member in self.members]
        by_class = [one.class_scores for one in predictions if one.class_scores is not None]
        mean = np.mean([one.probabilities for one in predictions], axis=0)
        label = most_probable_class(mean)
        scores = [select_class_scores(one.scores, one.class_scores, label) for one in predictions]
        return Prediction(
            slide_id=bag.slide_id,
            probabilities=mean,
            scores=np.mean(scores, axis=0),
            class_scores=np.mean(by_class, axis=0) if len(by_class) == len(scores) else None,
            classes=self.classes,
        )


def _read_checked_card(folder: Path) -> dict[str, Any]:
    card = read_card(folder)
    facts = card.get("export")
    if not isinstance(facts, dict):
        raise ModelFolderError(
            f"{folder}: is not an exported model (its card does not mention {GRAPH}); export it: "
            f"sacmil export {folder} --out DIR"
        )
    if facts.get("schema_version") != SCHEMA_VERSION:
        raise ModelFolderError(
            f"{folder}: has export version {facts.get('schema_version')!r}; this sacmil reads "
            f"version {SCHEMA_VERSION}: export the model again, or pip install -U sacmil"
        )
    if "card_sha256" not in card:  # read_card has compared it
        raise ModelFolderError(
            f"{folder}: {CARD_FILE} was changed after the export, it has no card_sha256; copy the "
            "folder again, or export the model again"
        )
    return card


def _read_checked_graph(folder: Path, digest: str) -> bytes:
    try:
        graph = (folder / GRAPH).read_bytes()
    except OSError as error:
        raise ModelFolderError(
            f"{folder}: {GRAPH} cannot be read ({error.strerror}); copy the folder again"
        ) from error
    if hashlib.sha256(graph).hexdigest() != digest:
        raise ModelFolderError(
            f"{folder}: {GRAPH} is not the file its card was written for (truncated or of another "
            "model); copy the folder again"
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
    folder: Path, card: Mapping[str, Any], inputs: list[str], outputs: list[str]
) -> None:
    if inputs != card["export"]["inputs"] or outputs != card["export"]["outputs"]:
        raise ModelFolderError(
            f"{folder}: {GRAPH} takes {', '.join(inputs)} and returns {', '.join(outputs)}; its "
            "card has other names: export the model again"
        )
