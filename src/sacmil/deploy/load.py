"""The loader of predict, evaluate and heatmap: model folders, runs and exported models.

Only a model that is not exported needs torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sacmil.bag import Bag
from sacmil.card import ONNX_FILE, find_model_folders, read_card
from sacmil.deploy.runtime import Runtime
from sacmil.errors import MissingExtraError, ModelFolderError, OptionError
from sacmil.results import Ensemble, Prediction
from sacmil.results.prediction import explain_different_outputs
from sacmil.tasks import get_model_task
from sacmil.tasks.calibration import Calibration

ENSEMBLE_NAME = "ensemble"
"""Name of an ensemble of several models."""


class TorchModel:
    """A model folder, loaded with torch; it has what Runtime has."""

    def __init__(self, folder: Path, device: str, *, calibrated: bool = False) -> None:
        try:
            from sacmil.models import load_model
            from sacmil.models._predict import Predictor
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise MissingExtraError("torch", "a model that is not exported") from error
        from sacmil.environment import select_device

        self.card = read_card(folder)
        try:
            self.task = get_model_task(self.card)
            self.classes = self.task.value_names
        except (ModelFolderError, OptionError) as error:
            raise ModelFolderError(f"{folder}: {error}") from error
        if reason := self.task.explain_unlearned():
            raise ModelFolderError(f"{folder}: {reason}")
        self.calibration = Calibration.from_card(self.card, folder) if calibrated else None
        self._predictor = Predictor(load_model(folder).to(select_device(device)))

    @property
    def hash(self) -> str:
        """SHA-256 of the weights, and of the calibration if it is used."""
        weights = self.card.weights_sha256
        return self.calibration.combine_hash(weights) if self.calibration else weights

    def predict(self, bag: Bag) -> Prediction:
        """Return its prediction for a bag."""
        found = self._predictor.predict(bag)
        return self.calibration.calibrate(found, self.task) if self.calibration else found


LoadedModel = Ensemble[TorchModel | Runtime]
"""A model, or the models of a run, ready to predict."""


def load_ensembles(
    paths: Sequence[str | Path], *, device: str = "cpu", calibrated: bool = False
) -> tuple[LoadedModel, ...]:
    """Load the model or run of each path; all must predict the same.

    Args:
        paths: model folders, exported models, or runs, each the mean of its models.
        device: auto, cpu, cuda:0, …; exported models run on the CPU.
        calibrated: whether to apply the calibrations in the models' cards.
    """
    distinct = {Path(path).resolve(): Path(path) for path in paths}
    names = _make_names(list(distinct))
    found = tuple(
        load_ensemble(path, name=name, device=device, calibrated=calibrated)
        for name, path in zip(names, distinct.values(), strict=True)
    )
    _check_same_outputs(found)
    return found


def _check_same_outputs(models: Sequence[LoadedModel]) -> None:
    if not (reason := explain_different_outputs([one.task for one in models])):
        return
    are_classes = all(one.task.has_classes for one in models)
    listed = "; ".join(
        f"{one.name}: {', '.join(one.classes) if are_classes else description}"
        for description, one in {one.task.output_description: one for one in models}.items()
    )
    raise ModelFolderError(
        f"the models {reason} ({listed}); expected the same. Use each model by itself, with "
        "another `out`"
    )


def load_ensemble(
    path: str | Path, *, name: str | None = None, device: str = "cpu", calibrated: bool = False
) -> LoadedModel:
    """Load a model folder, an exported model, or the models of a run.

    Args:
        path: of one of these.
        name: in tables and on pages; None means that of the folder.
        device: as for load_ensembles.
        calibrated: as for load_ensembles; each member before the mean.
    """
    path = Path(path)
    folders = find_model_folders(path)
    members = [_load_member(folder, device, calibrated=calibrated) for folder in folders]
    return Ensemble(members, name=name or path.resolve().name, path=path)


def _make_names(paths: Sequence[Path]) -> list[str]:
    """Return the shortest ends of the paths that are distinct."""
    for length in range(1, max(len(path.parts) for path in paths) + 1):
        names = ["/".join(path.parts[-length:]) for path in paths]
        if len({*names, ENSEMBLE_NAME}) == len(paths) + 1:
            return names
    return [str(path) for path in paths]


def _load_member(folder: Path, device: str, *, calibrated: bool) -> TorchModel | Runtime:
    if (folder / ONNX_FILE).is_file():
        return Runtime(folder, calibrated=calibrated)
    return TorchModel(folder, device, calibrated=calibrated)
