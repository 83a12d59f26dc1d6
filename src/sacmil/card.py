"""The card beside every model's weights: what the model says of itself, readable without torch."""

from __future__ import annotations

import hashlib
import json
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from sacmil._version import __version__
from sacmil.errors import ModelFolderError, RunError, RunWarning, shorten_value

CARD_FILE = "card.json"
SCHEMA_VERSION = 1


def make_card(
    model: str,
    options: Mapping[str, Any],
    *,
    weights_sha256: str,
    classes: Sequence[str] | None,
    notes: Mapping[str, Any],
) -> dict[str, Any]:
    """What is written beside the weights.

    Args:
        model: registered name.
        options: every argument of its constructor.
        weights_sha256: of the file of weights, so that the two cannot be mixed up.
        classes: names of the outputs.
        notes: anything else JSON can hold.
    """
    return {
        "schema_version": SCHEMA_VERSION,
        "sacmil_version": __version__,
        "model": model,
        "options": dict(options),
        "classes": list(classes) if classes else None,
        "weights_sha256": weights_sha256,
        "notes": dict(notes),
    }


def read_card(folder: str | Path) -> dict[str, Any]:
    """The card of a model folder, checked; the weights are not looked at."""
    file = Path(folder) / CARD_FILE
    try:
        card = json.loads(file.read_text(encoding="utf-8"))
        digest = hash_card(card) if isinstance(card, dict) else None
    except FileNotFoundError:
        raise ModelFolderError(
            f"{folder}: there is no {CARD_FILE}; expected a folder that save_model wrote"
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFolderError(
            f"{file}: cannot be read as JSON ({error}); copy the folder again"
        ) from error
    _check_card(file, card)
    if card.get("card_sha256", digest) != digest:
        raise ModelFolderError(
            f"{file}: was changed after it was written; copy the folder again. If you changed it "
            "yourself, remove card_sha256 from it"
        )
    return {"classes": None, "notes": {}, **card}


def hash_card(card: Mapping[str, Any]) -> str:
    """SHA-256 of all that a card says, so that damage is noticed; cards of old models have none."""
    content = {key: value for key, value in card.items() if key != "card_sha256"}
    content = json.loads(json.dumps(content))  # as it is read back
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


_KNOWN_KEYS = frozenset(
    {"schema_version", "sacmil_version", "model", "options", "classes", "weights_sha256", "notes"}
    | {"card_sha256"}
)
_REQUIRED_KEYS = {"schema_version": int, "model": str, "options": dict, "weights_sha256": str}


def _check_card(file: Path, card: Any) -> None:
    if not isinstance(card, dict):
        raise ModelFolderError(f"{file}: holds a {type(card).__name__}; expected a model card")
    wrong = [key for key, kind in _REQUIRED_KEYS.items() if not isinstance(card.get(key), kind)]
    names = card.get("classes")
    if names is not None and not (
        isinstance(names, list) and all(isinstance(n, str) for n in names)
    ):
        wrong.append("classes")
    if not _has_valid_notes(card.get("notes", {})):
        wrong.append("notes")
    unknown = [key for key in card if key not in _KNOWN_KEYS]
    if unknown and "card_sha256" not in card:  # its name may be what was damaged
        raise ModelFolderError(
            f"{file}: has the unknown entry {shorten_value(unknown[0])}; expected "
            f"{', '.join(sorted(_KNOWN_KEYS))}: copy the folder again"
        )
    if wrong:
        raise ModelFolderError(
            f"{file}: {', '.join(wrong)} missing or of the wrong kind; expected a sacmil model "
            "card, copy the folder again"
        )
    version = card["schema_version"]
    if not 1 <= version <= SCHEMA_VERSION:
        raise ModelFolderError(
            f"{file}: has schema version {version}; this sacmil ({__version__}) reads up to "
            f"{SCHEMA_VERSION}, install a newer one: pip install -U sacmil"
        )


def _has_valid_notes(notes: Any) -> bool:
    """Whether what training wrote down can be looked up: its facts, and the slides it has seen."""
    training = notes.get("training", {}) if isinstance(notes, dict) else None
    seen = training.get("seen", []) if isinstance(training, dict) else None
    return isinstance(seen, list) and all(isinstance(mark, str) for mark in seen)


def find_model_folders(path: str | Path) -> list[Path]:
    """The model folders a path means: itself, or every part of one model's run.

    A run is accepted wherever a model is, and means the mean over its folds and seeds.
    """
    folder = Path(path)
    if (folder / CARD_FILE).is_file():
        return [folder]
    found = sorted(file.parent for file in folder.glob("**/fold_*/" + CARD_FILE))
    models = sorted({part.parent.parent for part in found})
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
    """What a card holds of a slide or a patient trained on: enough to know it again, no name.

    Args:
        kind: slide or patient.
        name: its id.
    """
    return hashlib.sha256(f"{kind}:{name}".encode()).hexdigest()[:16]


def combine_hashes(hashes: Sequence[str]) -> str:
    """Of one model, its own; of several, that of all of them in their order."""
    if len(hashes) == 1:
        return hashes[0]
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()
