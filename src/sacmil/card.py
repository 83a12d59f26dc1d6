"""The card beside every model's weights: what the model is, readable without torch."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from sacmil._version import __version__
from sacmil.atomic import write_file
from sacmil.errors import (
    ModelFolderError,
    RunError,
    RunWarning,
    explain_validation_error,
    shorten_value,
)

CARD_FILE = "card.json"
ONNX_FILE = "model.onnx"
SCHEMA_VERSION = 1
_MEMBER_NAMES = ("member", "part")
"""Folders of an export are member_0, member_1, …; earlier versions wrote part_0, …"""


class _TrainingNotes(BaseModel):
    """What must be usable of the notes of training: the slides the model was trained on."""

    seen: tuple[str, ...] = ()


class Card(BaseModel):
    """The content of card.json."""

    model_config = ConfigDict(frozen=True)

    schema_version: int = SCHEMA_VERSION
    sacmil_version: str = __version__
    model: str
    """Registered name."""
    options: dict[str, Any]
    """Every argument of its constructor."""
    classes: tuple[str, ...] | None = None
    """Names of the outputs, where they are known."""
    task: dict[str, Any] | None = None
    """What is predicted, with what was learned from the training set; None means classes."""
    calibration: dict[str, Any] | None = None
    """Temperature and thresholds, if it was calibrated: see tasks/calibration.py."""
    weights_sha256: str
    """Of the file of weights, so that the two cannot be mixed up."""
    notes: dict[str, Any] = {}
    """Anything else JSON can hold."""
    export: dict[str, Any] | None = None
    """About model.onnx, in an exported model: see deploy/runtime.py."""
    card_sha256: str | None = Field(None, exclude=True)
    """Of the file's other entries; cards of old models, and edited ones, have none."""

    @field_validator("notes")
    @classmethod
    def _check_training(cls, notes: dict[str, Any]) -> dict[str, Any]:
        _TrainingNotes.model_validate(notes.get("training", {}))
        return notes

    @property
    def training(self) -> Mapping[str, Any]:
        """How the model was trained; empty if unknown."""
        return self._get_note("training")

    @property
    def bags(self) -> Mapping[str, Any]:
        """The bags it was trained on: encoder, tile size; empty if unknown."""
        return self._get_note("bags")

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Metrics of its test set; empty if unknown."""
        return self._get_note("metrics")

    def _get_note(self, name: str) -> Mapping[str, Any]:
        found = self.notes.get(name)
        return found if isinstance(found, dict) else {}

    @property
    def training_ids(self) -> frozenset[str]:
        """Anonymized ids of the slides and patients it was trained on."""
        return frozenset(self.training.get("seen", ()))

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes, at least two; see name_classes."""
        outputs = self.options.get("num_classes", len(self.classes or ()))
        return name_classes(self.classes, outputs if isinstance(outputs, int) else 0)

    def to_dict(self) -> dict[str, Any]:
        """Return the content of the file, with its hash."""
        optional = ("calibration", "export", "task")
        unused = {name for name in optional if getattr(self, name) is None}
        content = self.model_dump(exclude=unused)
        content["classes"] = list(self.classes) if self.classes else None
        return {**content, "card_sha256": hash_card(content)}

    def to_json(self) -> str:
        """Return the text of the file."""
        return json.dumps(self.to_dict(), indent=2) + "\n"


def name_classes(names: Sequence[str] | None, outputs: int) -> tuple[str, ...]:
    """Return the names of a model's classes, at least two: a single output is of class 1.

    >>> name_classes(None, 3), name_classes(["tumor"], 1)
    (('class_0', 'class_1', 'class_2'), ('not tumor', 'tumor'))

    Raises:
        ModelFolderError: the names are not different, or not one per output.
    """
    known = tuple(names or ())
    count = max(2, outputs)
    if not known:
        return tuple(f"class_{number}" for number in range(count))
    if outputs == 1 and len(known) == 1:
        known = (f"not {known[0]}", *known)
    if len(known) != count or len(set(known)) < count:
        raise ModelFolderError(
            f"the classes are {', '.join(known)} for {outputs} outputs; expected a different name "
            "for each: copy the model's folder again"
        )
    return known


def read_card(folder: str | Path) -> Card:
    """Read and check the card of a model folder; the weights are not read."""
    file = Path(folder) / CARD_FILE
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        digest = hash_card(found) if isinstance(found, dict) else None
    except FileNotFoundError:
        raise ModelFolderError(
            f"{folder}: there is no {CARD_FILE}; expected a folder that save_model wrote"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFolderError(
            f"{file}: cannot be read as JSON ({error}); copy the folder again"
        ) from error
    card = _make_card(file, found)
    if found.get("card_sha256", digest) != digest:
        raise ModelFolderError(
            f"{file}: was changed after it was written; copy the folder again. If you changed it "
            "yourself, remove card_sha256 from it"
        )
    return card


def update_card(folder: str | Path, **changes: Any) -> None:
    """Write the card of a model folder with other values of some entries, atomically.

    Args:
        folder: with a card.
        changes: new values by the entry.
    """
    card = read_card(folder).model_copy(update=changes)
    write_file(Path(folder) / CARD_FILE, card.to_json())


def hash_card(content: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a card's JSON, to detect damage; cards of old models have none."""
    content = {key: value for key, value in content.items() if key != "card_sha256"}
    content = json.loads(json.dumps(content))  # as it is read back
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _make_card(file: Path, found: Any) -> Card:
    if not isinstance(found, dict):
        raise ModelFolderError(f"{file}: holds a {type(found).__name__}; expected a model card")
    unknown = found.keys() - Card.model_fields.keys()
    if unknown and "card_sha256" not in found:  # its name may be what was damaged
        raise ModelFolderError(
            f"{file}: has the unknown entry {shorten_value(min(unknown))}; expected "
            f"{', '.join(sorted(Card.model_fields))}: copy the folder again"
        )
    try:
        card = Card(**{"schema_version": None, "sacmil_version": "unknown", **found})
    except ValidationError as error:
        raise ModelFolderError(
            f"{file}: {explain_validation_error(error)}; expected a sacmil model card, copy the "
            "folder again"
        ) from None
    if not 1 <= card.schema_version <= SCHEMA_VERSION:
        raise ModelFolderError(
            f"{file}: has schema version {card.schema_version}; this sacmil ({__version__}) reads "
            f"up to {SCHEMA_VERSION}, install a newer one: pip install -U sacmil"
        )
    return card


def find_model_folders(path: str | Path) -> list[Path]:
    """Return the model folders of a path: itself, the members of an export, or those of a run.

    A run or an export of one is accepted wherever a model is, and means the mean of its members.
    """
    folder = Path(path)
    if (folder / CARD_FILE).is_file():
        return [folder]
    if exported := _find_exported_members(folder):
        return exported
    found = sorted(file.parent for file in folder.glob("**/fold_*/" + CARD_FILE))
    models = sorted({member.parent.parent for member in found})
    if not found:
        raise RunError(
            f"{folder}: is neither a model folder (no {CARD_FILE}) nor a run with trained models; "
            "expected what sacmil train, sacmil crossval or save_model wrote"
        )
    if len(models) > 1:
        names = ", ".join(str(model) for model in models)
        raise RunError(f"{folder}: holds several models; name one of {names}")
    _warn_of_unfinished_folds(models[0], found)
    return found


def _find_exported_members(folder: Path) -> list[Path]:
    for name in _MEMBER_NAMES:
        if not is_exported_run(folder, name):
            continue
        count = len(list(folder.glob(f"{name}_*/")))
        members = [folder / f"{name}_{number}" for number in range(count)]
        for member in members:
            if not (member / ONNX_FILE).is_file():  # the other members would predict differently
                raise ModelFolderError(
                    f"{folder}: {member.name}/{ONNX_FILE} is missing, found {count} models; copy "
                    "the folder again"
                )
        return members
    return []


def is_exported_run(folder: Path, *names: str) -> bool:
    """Whether a folder holds the exported members of a run."""
    return any(any(folder.glob(f"{name}_*/{ONNX_FILE}")) for name in names or _MEMBER_NAMES)


def _warn_of_unfinished_folds(model: Path, found: Sequence[Path]) -> None:
    """Warn if some folds of the run are not trained yet."""
    folds = len(list((model.parent / "splits").glob("splits_*.csv")))
    wanted = folds * len({part.parent for part in found})
    if len(found) < wanted:
        warnings.warn(
            f"{model}: {len(found)} of {wanted} models are trained, and only these are used; to "
            "train the others, repeat the command of the run",
            RunWarning,
            stacklevel=3,
        )


def anonymized_id(kind: str, name: str) -> str:
    """Return the id of a slide or patient in cards: enough to recognize it, without its name.

    Args:
        kind: slide or patient.
        name: its id.
    """
    return hashlib.sha256(f"{kind}:{name}".encode()).hexdigest()[:16]
