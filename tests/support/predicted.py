"""Make-believe predictions of models of given strength on the same patients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sacmil.results import Predictions


def predicted(
    models: Sequence[str] = ("abmil", "sac_mil"),
    *,
    classes: Sequence[str] = ("normal", "tumour"),
    strengths: Sequence[float] = (),
    patients: int = 60,
    folds: int = 3,
    seeds: int = 1,
    slides: int = 1,
    seed: int = 0,
) -> Predictions:
    """Patient i is of class i modulo C; a stronger model finds that more often."""
    random = np.random.default_rng(seed)
    size = len(classes)
    label = np.arange(patients) % size
    fold = np.arange(patients) // size % folds
    hard = random.normal(size=(patients, size))  # what makes a patient hard for every model
    strengths = list(strengths) or [1.5] * len(models)
    rows, probabilities = [], []
    for model, strength in zip(models, strengths, strict=True):
        for run in range(seeds):
            for i in range(patients):
                for slide in range(slides):
                    logits = (
                        hard[i]
                        + random.normal(size=size)
                        + strength * (np.arange(size) == label[i])
                    )
                    p = np.exp(logits - logits.max())
                    rows.append((f"s{i}-{slide}", f"p{i}", "test", fold[i], run, model, label[i]))
                    probabilities.append(p / p.sum())
    return Predictions.from_rows(classes, rows, probabilities)
