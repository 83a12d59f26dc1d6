"""From a bag to a prediction without torch: numpy plans, onnxruntime answers."""

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
"""Of what a card says about the graph beside it."""


def load(path: str | Path, *, threads: int | None = None) -> Runtime | Ensemble:
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


class Runtime:
    """One exported model.

    Args:
        folder: with model.onnx and card.json.
        threads: cores one answer may take; None means all.
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
        """Names of the classes, where the model knows them."""
        return tuple(self.card["classes"]) if self.card["classes"] else None

    @property
    def hash(self) -> str:
        """SHA-256 of the weights the model was exported from."""
        return str(self.card["weights_sha256"])

    def predict(self, bag: Bag) -> Prediction:
        """Answer one bag of features of the encoder the model was trained on."""
        found = self.run(bag.features, bag.patch_coords, source=bag.slide_id)
        return Prediction.from_output(
            bag.slide_id,
            found["probabilities"].astype(np.float64),
            found["scores"],
            found.get("class_scores"),
            self.classes,
        )

    def run(self, features: Array, coords: Array, *, source: str = "the bag") -> dict[str, Array]:
        """The graph's outputs by name: probabilities, scores, and class_scores if it has any."""
        width = self.card["export"]["dim"]
        if features.shape[1] != width:
            raise InputError(
                f"{source}: features are {features.shape[1]} wide; this {self.card['model']} was "
                f"made for {width}: give it bags of the encoder it was trained on"
            )
        planner = self.card["export"]["planner"]
        try:
            plan = make_plan(planner["name"], planner["options"], coords, features)
        except BagError as error:
            raise type(error)(f"{source}: {error}") from error
        given = {"features": np.asarray(features, np.float32), "coords": coords, **plan}
        values = self._session.run(
            self._output_names, {name: given[name] for name in self._input_names}
        )
        return dict(zip(self._output_names, values, strict=True))


class Ensemble:
    """The exported parts of one run, which answer together: the mean of what they say."""

    def __init__(self, members: list[Runtime]) -> None:
        self.members = members
        if len({part.classes for part in members}) > 1:
            told = "; ".join(sorted(", ".join(part.classes or ("?",)) for part in members))
            raise ModelFolderError(f"the parts tell different classes apart ({told}); load one")

    @property
    def card(self) -> Mapping[str, Any]:
        """Of the first part."""
        return self.members[0].card

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Names of the classes, where the models know them."""
        return self.members[0].classes

    @property
    def hash(self) -> str:
        """SHA-256 over the hashes of the parts, as that of the run they were exported from."""
        return combine_hashes([part.hash for part in self.members])

    def predict(self, bag: Bag) -> Prediction:
        """Probabilities and scores are the means of the parts', scores for the class they predict.

        A part by itself may predict another class.
        """
        said = [part.predict(bag) for part in self.members]
        by_class = [one.class_scores for one in said if one.class_scores is not None]
        mean = np.mean([one.probabilities for one in said], axis=0)
        label = most_probable_class(mean)
        return Prediction(
            slide_id=bag.slide_id,
            probabilities=mean,
            scores=np.mean(
                [select_class_scores(one.scores, one.class_scores, label) for one in said], axis=0
            ),
            class_scores=np.mean(by_class, axis=0) if len(by_class) == len(said) else None,
            classes=self.classes,
        )


def _read_checked_card(folder: Path) -> dict[str, Any]:
    card = read_card(folder)
    facts = card.get("export")
    if not isinstance(facts, dict):
        raise ModelFolderError(
            f"{folder}: is not an exported model (its card says nothing of {GRAPH}); write one: "
            f"sacmil export {folder} --out DIR"
        )
    if facts.get("schema_version") != SCHEMA_VERSION:
        raise ModelFolderError(
            f"{folder}: was exported in version {facts.get('schema_version')!r}; this sacmil reads "
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
    options.log_severity_level = 4  # what goes wrong is raised; it is not also printed
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
            f"{folder}: {GRAPH} takes {', '.join(inputs)} and gives {', '.join(outputs)}, which is "
            "not what its card says; export the model again"
        )
