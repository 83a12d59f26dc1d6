"""The tasks studies share, as sources in JSON, and how large a study is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.accuracy._bags import features_hash
from benchmarks.accuracy._job import Source

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "metastasis": {"contrast": 3.0, "lesion_share": [0.005, 0.03], "likeness": 0.8},
    "subtype": {"contrast": 2.0, "own": 5.0, "other": 2.0},
    "cluster": {"contrast": 4.0, "density": 0.8, "clusteredness": [[0.0, 0.2], [0.4, 0.8]]},
    "margin": {"contrast": 4.0, "stray": 0.0, "infiltration": [[0.1, 0.4], [0.6, 0.9]]},
}
"""Where variants differ; what is not said is the task's own default."""

RECIPE: Mapping[str, Any] = {
    "optimiser": "adamw",
    "lr": 5e-4,
    "weight_decay": 1e-2,
    "exempt_vectors": True,
    "schedule": "cosine",
    "warmup_epochs": 1.0,
    "epochs": 10,
    "monitor": "val_auc",
}
"""How everything is trained, unless a study tunes: the same for all models."""

LENGTHS = 4
"""Slides of a synthetic cohort have one of so many lengths, so that a step can be recorded."""

WINDOWS: Mapping[str, int] = {"window": 10, "step": 5, "fewest": 25}
"""Of IDC, in patches: those that train overlap by half, those that test do not."""


@dataclass(frozen=True, kw_only=True)
class Size:
    """How large a study is."""

    train: int = 800
    val: int = 80
    test: int = 240
    """Slides of a synthetic cohort."""
    few: int = 400
    many: int = 1_200
    """Instances of a slide; see LENGTHS."""
    dim: int = 64
    """Width of their features."""
    epochs: int | None = None
    """Of training, where the recipe's are too many."""
    options: Mapping[str, Any] | None = None
    """Of sac_mil, to make it small."""
    folds: int | None = None
    """How many of the folds of a cross-validation are done."""


SIZES: Mapping[str, Size] = {
    "full": Size(),
    "tiny": Size(
        train=12, val=8, test=8, few=60, many=90, epochs=2, options={"dim": 128, "k": 4}, folds=1
    ),
}
"""tiny is for trying a study out on a CPU: its figures mean nothing."""


def synthetic(
    task: str,
    seed: int,
    size: Size,
    settings: Mapping[str, Any] | None = None,
    *,
    further: Sequence[tuple[str, int, int, int]] = (),
    outlines: bool = False,
) -> Source:
    """A synthetic cohort in three pieces, and perhaps more to be tested on.

    Args:
        task: metastasis, subtype, cluster or margin.
        seed: of the cohort.
        size: of the study.
        settings: of the task, where not those of the studies.
        further: pieces (name, slides, fewest and most instances).
        outlines: whether lesions have the shapes of real ones.
    """
    counts = {"train": size.train, "val": size.val, "test": size.test}
    pieces = [(name, count, size.few, size.many) for name, count in counts.items()]
    return {
        "kind": "synthetic",
        "task": task,
        "settings": dict(SETTINGS[task] if settings is None else settings),
        "seed": seed,
        "dim": size.dim,
        "pieces": [part for piece in (*pieces, *further) for part in _by_length(*piece)],
        "outlines": "camelyon16" if outlines else "",
    }


def _by_length(name: str, count: int, few: int, many: int) -> list[list[Any]]:
    """A piece in parts whose slides have the same length, equally far apart on a logarithm."""
    lengths = np.unique(np.rint(np.geomspace(few, many, LENGTHS)).astype(int))
    counts = [len(part) for part in np.array_split(np.arange(count), len(lengths))]
    return [
        [name, number, int(length), int(length)]
        for number, length in zip(counts, lengths, strict=True)
        if number
    ]


def real(kind: str, encoder: str, features: Path | None) -> Source:
    """A real set: colon, breast, or idc in windows of 10 × 10 patches.

    Args:
        kind: of the set.
        encoder: lite0, lite0_mid or rgb.
        features: the folder that features.py filled; its hash goes into the source.
    """
    made = features_hash(kind, encoder, features)
    windows = WINDOWS if kind == "idc" else {}
    return {"kind": kind, "encoder": encoder, "made": made, **windows}


def recipe(size: Size, **changes: Any) -> dict[str, Any]:
    """The common recipe, shortened where the study is."""
    shortened = {} if size.epochs is None else {"epochs": size.epochs}
    return {**RECIPE, **changes, **shortened}
