"""Predictions of models of known skill for numbers, levels, labels and survival."""

from __future__ import annotations

import numpy as np
from scipy.special import expit, ndtr
from target_cohort import draw_targets

from sacmil.results import Predictions
from sacmil.tasks import MultiLabel, Survival, Task

STEPS = 0.44
"""Thresholds of the latent value that make three levels equally frequent."""
HAZARD = 1.5
"""Log hazard ratio of a latent value that is higher by one."""


def simulate(
    task: Task,
    random: np.random.Generator,
    *,
    models: str = "a",
    patients: int = 60,
    folds: int = 1,
    slides: int = 1,
    seeds: int = 1,
    noise: float = 0.7,
    scales: dict[str, float] | None = None,
) -> Predictions:
    """Predictions of independent models, all equally good.

    Args:
        task: what is predicted.
        random: source of all that is random.
        models: a letter for each.
        patients: spread evenly over the folds.
        folds: of the cross-validation.
        slides: of every patient, with noise of their own.
        seeds: of every model.
        noise: deviation of a prediction from the truth, whose own deviation is one.
        scales: factor of a model's outputs, one if not given: it changes no order.
    """
    truth, latent = _draw_truth(task, patients, random)
    rows, values = [], []
    for model in models:
        factor = (scales or {}).get(model, 1.0)
        for seed in range(seeds):
            for i in range(patients):
                for part in range(slides):
                    found = latent[i] + noise * random.normal(size=latent.shape[1])
                    rows.append((f"s{i}-{part}", f"p{i}", "test", i % folds, seed, model, truth[i]))
                    values.append(_to_values(task, factor * found))
    return Predictions.from_rows(task.card, [(*row[:-1], tuple(row[-1])) for row in rows], values)


def _draw_truth(
    task: Task, patients: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets, and what a perfect model would see of them."""
    if task.kind == "regression":
        latent = random.normal(size=(patients, task.outputs))
        return latent, latent
    if isinstance(task, MultiLabel):
        targets = draw_targets(task, patients, random)
        return targets, 2 * np.nan_to_num(targets, nan=0.5) - 1
    latent = random.normal(size=(patients, 1))
    if isinstance(task, Survival):
        times = random.exponential(12 / np.exp(HAZARD * latent))
        seen = random.uniform(0, 40, (patients, 1))
        return np.hstack([np.minimum(times, seen), times <= seen]), latent
    return np.digitize(latent, [-STEPS, STEPS]).astype(float), latent


def _to_values(task: Task, found: np.ndarray) -> np.ndarray:
    if task.kind == "regression":
        return found
    if isinstance(task, MultiLabel):
        return expit(found)
    if isinstance(task, Survival):
        alive = np.exp(-np.exp(HAZARD * found) * task.curve_times / 12)
        return np.concatenate([found, ndtr(found), alive])
    above = expit(4 * (found - np.array([-STEPS, STEPS])))
    return np.array([1 - above[0], above[0] - above[1], above[1], above.sum()])
