"""Ensembles: a model, the models of a run, or several of these.

Only a model that is not exported needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from sacmil.bag import Bag
from sacmil.card import CARD_FILE, combine_hashes, find_model_folders, read_card
from sacmil.errors import ModelFolderError
from sacmil.heatmap.normalization import normalize_scores
from sacmil.results import InstanceScores, Prediction

ONNX_FILE = "model.onnx"
ENSEMBLE_NAME = "ensemble"
"""Name of an ensemble of several models."""


class Member(Protocol):
    """A loaded model."""

    @property
    def card(self) -> Mapping[str, Any]:
        """Its card."""

    def predict(self, bag: Bag) -> Prediction:
        """Return its prediction."""


class MemberPredictions(NamedTuple):
    """Prediction of one or several members for one bag."""

    probabilities: npt.NDArray[np.float64]
    """(C,), the mean of the members."""
    member_probabilities: npt.NDArray[np.float64]
    """(M, C), of each member."""
    scores: npt.NDArray[np.float32]
    """(N,), for the predicted class; with several members, the mean of ranks from 0 to 1."""
    class_scores: npt.NDArray[np.float32] | None = None
    """(N, C), likewise."""
    score_class: int | None = None
    """The class of ``scores``; None if one score serves all classes."""

    @property
    def spread(self) -> npt.NDArray[np.float64] | None:
        """(C,), the standard deviation over members; None for a single one."""
        return self.member_probabilities.std(axis=0) if len(self.member_probabilities) > 1 else None

    @property
    def label(self) -> int:
        """Index of the most probable class."""
        return int(self.probabilities.argmax())

    def to_scores(self, bag: Bag) -> InstanceScores:
        """Return the scores with the positions of the bag's instances."""
        size = float(bag.patch_size)
        return InstanceScores(bag.coords, size, self.scores, self.class_scores, self.score_class)

    def scores_for(self, label: int) -> npt.NDArray[np.float32]:
        """Return scores for a class, (N,); the only scores if there are none by class."""
        return self.scores if self.class_scores is None else self.class_scores[:, label]


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """One model, or the models of one run."""

    name: str
    path: Path
    classes: tuple[str, ...]
    members: tuple[Member, ...]
    hash: str
    """SHA-256 of the weights, or of the members' hashes if there are several."""

    @property
    def card(self) -> Mapping[str, Any]:
        """Card of the first member; the others differ in their training data."""
        return self.members[0].card

    def predict(self, bag: Bag) -> MemberPredictions:
        """Return the prediction for a bag."""
        return average_predictions(
            [_to_member_predictions(member.predict(bag)) for member in self.members]
        )


def average_predictions(predictions: Sequence[MemberPredictions]) -> MemberPredictions:
    """Return the unweighted mean of several predictions for one bag."""
    if len(predictions) == 1:
        return predictions[0]
    members = np.stack([one.probabilities for one in predictions])
    mean = members.mean(axis=0)
    label = int(mean.argmax())
    by_class = [one.class_scores for one in predictions if one.class_scores is not None]
    return MemberPredictions(
        mean,
        members,
        # of the class that the mean predicts; a single member may predict another
        _mean_rank([one.scores_for(label) for one in predictions]),
        _mean_class_ranks(by_class) if len(by_class) == len(predictions) else None,
        _find_score_class(predictions, label),
    )


def _find_score_class(predictions: Sequence[MemberPredictions], label: int) -> int | None:
    """Return the class of the mean scores, or None if members score different classes."""
    about = {label if one.class_scores is not None else one.score_class for one in predictions} - {
        None
    }
    return about.pop() if len(about) == 1 else None


def _mean_class_ranks(scores: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    columns = zip(*(one.T for one in scores), strict=True)
    return np.stack([_mean_rank(column) for column in columns], axis=1)


def _mean_rank(scores: Sequence[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    """Return the mean of ranks, because members' scores have different scales."""
    ranked = np.stack([normalize_scores(one, "rank") for one in scores])
    return np.asarray(ranked.mean(axis=0), dtype=np.float32)


def _to_member_predictions(prediction: Prediction) -> MemberPredictions:
    given = np.asarray(prediction.probabilities, dtype=np.float64)
    prediction.check_is_finite()
    by_class = prediction.class_scores
    if len(given) == 1:  # of class 1 only, and so are its scores
        given, by_class = np.array([1 - given[0], given[0]]), None
    return MemberPredictions(
        given, given[None], prediction.scores, by_class, prediction.score_class
    )


def load_ensembles(paths: Sequence[str | Path], *, device: str = "cpu") -> tuple[Ensemble, ...]:
    """Load the model or run of each path; all must have the same classes.

    Args:
        paths: model folders, exported models, or runs, each the mean of its models.
        device: auto, cpu, cuda:0, …; exported models run on the CPU.
    """
    distinct = {Path(path).resolve(): Path(path) for path in paths}
    names = _make_names(list(distinct))
    found = tuple(
        _load_ensemble(path, name, device)
        for name, path in zip(names, distinct.values(), strict=True)
    )
    names_by_classes = {one.classes: one.name for one in found}
    if len(names_by_classes) > 1:
        listed = "; ".join(f"{name}: {', '.join(c)}" for c, name in names_by_classes.items())
        raise ModelFolderError(
            f"the models have different classes ({listed}); expected the same. Use one command "
            "for each, with another --out"
        )
    return found


def _make_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that are distinct."""
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len({*names, ENSEMBLE_NAME}) == len(paths) + 1:
            return names
    return [str(path) for path in paths]


def _load_ensemble(path: Path, name: str, device: str) -> Ensemble:
    folders = list_member_folders(path)
    members = tuple(_load_member(folder, device) for folder in folders)
    classes = {read_class_names(m.card, folder) for m, folder in zip(members, folders, strict=True)}
    if len(classes) > 1:
        listed = "; ".join(", ".join(names) for names in sorted(classes))
        raise ModelFolderError(
            f"{path}: its models have different classes ({listed}); give the folder of one model"
        )
    return Ensemble(
        name=name,
        path=path,
        classes=classes.pop(),
        members=members,
        hash=combine_hashes([str(member.card["weights_sha256"]) for member in members]),
    )


def list_member_folders(path: Path) -> list[Path]:
    """Return the folders of a path's models, exported or not."""
    if (path / CARD_FILE).is_file() or not any(path.glob(f"part_*/{ONNX_FILE}")):
        return find_model_folders(path)
    found = len(list(path.glob("part_*/")))
    members = [path / f"part_{number}" for number in range(found)]
    for member in members:
        if not (member / ONNX_FILE).is_file():  # the other members would predict differently
            raise ModelFolderError(
                f"{path}: {member.name}/{ONNX_FILE} is missing, found {found} models; copy the "
                "folder again"
            )
    return members


def _load_member(folder: Path, device: str) -> Member:
    if not (folder / ONNX_FILE).is_file():
        return _TorchModel(folder, device)
    from sacmil.deploy.runtime import load

    exported: Member = load(folder)
    return exported


class _TorchModel:
    def __init__(self, folder: Path, device: str) -> None:
        from sacmil import load_model  # its error says how to install torch
        from sacmil.environment import select_device

        self.card: Mapping[str, Any] = read_card(folder)
        self._model = load_model(folder).to(select_device(device))

    def predict(self, bag: Bag) -> Prediction:
        from sacmil.models import predict

        return predict(self._model, bag)


def read_class_names(card: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    """Return the class names of a model, at least two; a single output is of class 1."""
    names = tuple(card.get("classes") or ())
    outputs = card.get("options", {}).get("num_classes", len(names))
    count = max(2, outputs) if isinstance(outputs, int) else 0
    if not names:
        names = tuple(f"class_{number}" for number in range(count))
    elif outputs == 1 and len(names) == 1:
        names = (f"not {names[0]}", *names)
    if len(names) != count or len(set(names)) < count:
        raise ModelFolderError(
            f"{folder}: its card names the classes {', '.join(names) or 'none'} for "
            f"{outputs} outputs; expected a different name for each; copy the folder again"
        )
    return names
