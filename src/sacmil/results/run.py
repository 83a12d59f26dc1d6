"""A run: the folder that train and cross_validate write, read without torch."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from sacmil.errors import RunError, check_type, suggest_names
from sacmil.results.predictions import (
    KEY_COLUMNS,
    PREDICTIONS_FILE,
    Predictions,
    read_predictions,
)
from sacmil.results.slide_localization import SlideLocalization, read_localization
from sacmil.yaml_values import read_yaml

if TYPE_CHECKING:
    import pandas

_CARD_FILE = "card.json"
_CONFIG_FILE = "config.yaml"
_PROVENANCE_FILE = "provenance.json"


@dataclass(frozen=True)
class Run:
    """A run folder of train or cross_validate.

    Args:
        folder: the run folder, or a Run.
        failures: error message by job, from the call that trained.

    Raises:
        RunError: the folder is no run.

    Example:
        >>> Run("no/such/folder")
        Traceback (most recent call last):
        sacmil.errors.RunError: no/such/folder: does not exist; expected a run folder
    """

    folder: Path
    failures: Mapping[str, str] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        given: object = self.folder
        if isinstance(given, Run):
            object.__setattr__(self, "failures", self.failures or given.failures)
            given = given.folder
        check_type("folder", given, (str, os.PathLike), "the path of a run folder")
        object.__setattr__(self, "folder", Path(given))  # type: ignore[arg-type]
        if not self.folder.is_dir():
            raise RunError(f"{self.folder}: does not exist; expected a run folder")
        if not any((self.folder / name).is_file() for name in (_PROVENANCE_FILE, PREDICTIONS_FILE)):
            raise RunError(
                f"{self.folder}: is no run folder (no {_PROVENANCE_FILE} or {PREDICTIONS_FILE}); "
                "expected one that train or cross_validate wrote"
            )

    @cached_property
    def models(self) -> tuple[str, ...]:
        """Names of the models, in the order of the configuration."""
        values = _read_config(self.folder / _CONFIG_FILE)
        if isinstance(values.get("model"), str):  # of train: one model
            return (values["model"],)
        return tuple(values) or tuple(dict.fromkeys(self.predictions.model.tolist()))

    @property
    def has_predictions(self) -> bool:
        """Whether a job is finished."""
        return (self.folder / PREDICTIONS_FILE).is_file()

    @cached_property
    def predictions(self) -> Predictions:
        """Predictions of all finished jobs."""
        return read_predictions(self.folder / PREDICTIONS_FILE)

    @cached_property
    def localization(self) -> list[SlideLocalization]:
        """Localisation of each test slide; empty unless bags have instance labels."""
        return read_localization(self.folder)

    def to_frame(self) -> pandas.DataFrame:
        """Return the predictions as a pandas frame, with the columns of predictions.csv."""
        import pandas

        found = self.predictions
        columns: dict[str, Any] = {name: getattr(found, name) for name in KEY_COLUMNS}
        columns["label"] = [found.classes[label] for label in found.label]
        for number, name in enumerate(found.classes):
            columns[f"p_{name}"] = found.probabilities[:, number]
        return pandas.DataFrame(columns)

    def model_folders(self, name: str | None = None) -> list[Path]:
        """Return the model folders of finished jobs, in the order of seeds and folds.

        Args:
            name: of a model; None returns those of all models.
        """
        if name is not None and name not in self.models:
            raise RunError(
                f"{self.folder}: has no model {name!r}; {suggest_names(name, self.models)}"
            )
        if (self.folder / _CARD_FILE).is_file():
            return [self.folder]
        found = [
            card.parent
            for model in (self.models if name is None else (name,))
            for card in (self.folder / model).glob(f"seed_*/fold_*/{_CARD_FILE}")
        ]
        return sorted(found, key=natural_sort_key)


def natural_sort_key(path: Path) -> list[object]:
    """Sort fold_10 after fold_9."""
    words = re.split(r"(\d+)", str(path))
    return [int(word) if word.isdigit() else word for word in words]


def _read_config(file: Path) -> dict[str, Any]:
    try:
        values = read_yaml(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RunError(f"{file}: cannot be read ({error}); restore it") from error
    return values if isinstance(values, dict) else {}
