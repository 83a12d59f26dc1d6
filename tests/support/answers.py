"""Predictions of made-up models over made-up patients, for tests of statistics."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sacmil.results import Predictions


def answers(
    skills: Mapping[str, float],
    *,
    patients: int = 60,
    folds: int = 3,
    repeats: int = 1,
    seeds: int = 1,
    classes: int = 2,
    slides: int = 1,
    seed: int = 0,
) -> Predictions:
    """Predictions of models that are the better the greater their skill.

    Args:
        skills: by how much the true class's logit is raised, of each model.
        patients: each is in one test part of every repeat.
        folds: in every repeat.
        repeats: of the cross-validation.
        seeds: of every model.
        classes: how many.
        slides: of every patient, each with noise of its own.
        seed: of all that is random.
    """
    random = np.random.default_rng(seed)
    labels = np.arange(patients) % classes
    parts = [random.permutation(patients) % folds + folds * repeat for repeat in range(repeats)]
    rows, probabilities = [], []
    for model, skill in skills.items():
        for repeat in range(repeats):
            for run in range(seeds):
                logits = random.normal(size=(slides, patients, classes))
                logits += skill * np.eye(classes)[labels]
                values = np.exp(logits) / np.exp(logits).sum(2, keepdims=True)
                probabilities.append(values.reshape(-1, classes))
                rows += [
                    (f"p{p}-s{s}", f"p{p}", "test", parts[repeat][p], run, model, labels[p])
                    for s in range(slides)
                    for p in range(patients)
                ]
    names = [f"class {number}" for number in range(classes)]
    return Predictions.from_rows(names, rows, np.concatenate(probabilities))


def shuffled(predictions: Predictions, seed: int = 0) -> Predictions:
    """The same rows in another order."""
    return predictions.select(np.random.default_rng(seed).permutation(len(predictions)))
