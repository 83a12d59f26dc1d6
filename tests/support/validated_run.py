"""Runs with validation sets: small models, and make-believe predictions that are too certain."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from answering import BAGS, CLASSES, DIM, write_model

from sacmil import create_model, save_model
from sacmil.results import PREDICTIONS_FILE, Predictions, write_predictions
from sacmil.tasks import Classification, MultiLabel, Task

LABELS = MultiLabel(("er", "pr"))


def draw_predictions(
    task: Task, fold: int, *, val: int = 40, test: int = 60, seed: int = 0, sharpness: float = 3.0
) -> Predictions:
    """Of one job; its calibrated logits are multiplied by the sharpness."""
    random = np.random.default_rng([seed, fold])
    count = val + test
    logits = 1.5 * random.standard_normal((count, len(task.prediction_columns)))
    if task.calibrated_as == "labels":
        targets = (random.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(float)
        targets[random.random(logits.shape) < 0.2] = np.nan
        values = 1 / (1 + np.exp(-sharpness * logits))
    else:
        odds = np.exp(logits)
        edges = (odds / odds.sum(axis=1, keepdims=True)).cumsum(axis=1)[:, :-1]
        targets = (random.random((count, 1)) > edges).sum(axis=1, keepdims=True).astype(float)
        odds = odds**sharpness
        values = odds / odds.sum(axis=1, keepdims=True)
    splits = ["val"] * val + ["test"] * test
    rows = [
        (f"{split}{fold}-{n}", f"p{fold}-{n}", split, fold, 0, "abmil", tuple(targets[n]))
        for n, split in enumerate(splits)
    ]
    return Predictions.from_rows(task.card, rows, values)


def write_validated_run(
    folder: Path, folds: int = 2, *, task: Task | None = None, kind: str = "abmil", val: int = 40
) -> Path:
    """A run as sacmil crossval leaves it, with a trained model for each fold."""
    task = task or Classification(CLASSES)
    made = [draw_predictions(task, fold, val=val) for fold in range(folds)]
    for fold, predictions in enumerate(made):
        job = folder / "abmil" / "seed_0" / f"fold_{fold}"
        write_task_model(job, task, fold, kind=kind)
        write_predictions(job / PREDICTIONS_FILE, predictions)
    write_predictions(folder / PREDICTIONS_FILE, Predictions.concatenate(made))
    return folder


def write_task_model(folder: Path, task: Task, seed: int = 0, *, kind: str = "abmil") -> Path:
    """A model folder for a task."""
    if task.has_classes:
        return write_model(folder, seed, kind=kind, classes=task.levels, num_classes=task.outputs)
    torch.manual_seed(seed)
    model = create_model(kind, in_dim=DIM, num_classes=task.outputs)
    save_model(folder, model, notes={"bags": BAGS}, task=task)
    return folder


def change_rows(predictions: Predictions, split: str) -> Predictions:
    """The same with other targets and values in one split."""
    rows = predictions.split == split
    targets, values = predictions.targets.copy(), predictions.values.copy()
    targets[rows], values[rows] = 1 - targets[rows], values[rows][:, ::-1]
    return replace(predictions, targets=targets, values=values)
