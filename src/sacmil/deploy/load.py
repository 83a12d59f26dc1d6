"""The loader of predict, evaluate and heatmap: model folders, runs and exported models.

Only a model that is not exported needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sacmil.bag import Bag
from sacmil.card import ONNX_FILE, find_model_folders, read_card
from sacmil.deploy.runtime import Runtime
from sacmil.errors import MissingExtraError, ModelFolderError
from sacmil.results import Ensemble, Prediction

ENSEMBLE_NAME = "ensemble"
"""Name of an ensemble of several models."""


class TorchModel:
    """A model folder, loaded with torch; it has what Runtime has."""

    def __init__(self, folder: Path, device: str) -> None:
        try:
            from sacmil.models import load_model
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise MissingExtraError("torch", "a model that is not exported") from error
        from sacmil.environment import select_device

        self.card = read_card(folder)
        try:
            self.classes = self.card.class_names
        except ModelFolderError as error:
            raise ModelFolderError(f"{folder}: {error}") from error
        self.hash = self.card.weights_sha256
        self._model = load_model(folder).to(select_device(device))

    def predict(self, bag: Bag) -> Prediction:
        """Return its prediction for a bag."""
        from sacmil.models import predict

        return predict(self._model, bag)


LoadedModel = Ensemble[TorchModel | Runtime]
"""A model, or the models of a run, ready to predict."""


def load_ensembles(paths: Sequence[str | Path], *, device: str = "cpu") -> tuple[LoadedModel, ...]:
    """Load the model or run of each path; all must have the same classes.

    Args:
        paths: model folders, exported models, or runs, each the mean of its models.
        device: auto, cpu, cuda:0, …; exported models run on the CPU.
    """
    distinct = {Path(path).resolve(): Path(path) for path in paths}
    names = _make_names(list(distinct))
    found = tuple(
        load_ensemble(path, name=name, device=device)
        for name, path in zip(names, distinct.values(), strict=True)
    )
    names_by_classes = {one.classes: one.name for one in found}
    if len(names_by_classes) > 1:
        listed = "; ".join(f"{name}: {', '.join(c)}" for c, name in names_by_classes.items())
        raise ModelFolderError(
            f"the models have different classes ({listed}); expected the same. Use each model "
            "by itself, with another `out`"
        )
    return found


def load_ensemble(path: str | Path, *, name: str | None = None, device: str = "cpu") -> LoadedModel:
    """Load a model folder, an exported model, or the models of a run.

    Args:
        path: of one of these.
        name: in tables and on pages; None means that of the folder.
        device: as for load_ensembles.
    """
    path = Path(path)
    members = [_load_member(folder, device) for folder in find_model_folders(path)]
    return Ensemble(members, name=name or path.resolve().name, path=path)


def _make_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that are distinct."""
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len({*names, ENSEMBLE_NAME}) == len(paths) + 1:
            return names
    return [str(path) for path in paths]


def _load_member(folder: Path, device: str) -> TorchModel | Runtime:
    return Runtime(folder) if (folder / ONNX_FILE).is_file() else TorchModel(folder, device)
