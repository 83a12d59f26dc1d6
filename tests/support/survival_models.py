"""Models of survival as training leaves them: with what their task has learned."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from answering import BAGS, DIM

from sacmil import create_model, save_model
from sacmil.tasks import Survival

TASK = Survival(
    "months", "death", unit="months", horizons=(12, 36), curve_times=(6, 12, 24, 36, 48, 60)
)


def learn(loss: str = "discrete", seed: int = 0, **changes: Any) -> Survival:
    """The task with bins, risks and baseline hazard of a training set; changes as of replace."""
    random = np.random.default_rng(seed)
    targets = np.stack([random.exponential(30, 60), random.random(60) < 0.6], axis=1)
    options: dict[str, Any] = {"label_smoothing": 0.0, "class_weights": "none"}
    task = replace(TASK, loss_name=loss, **changes).fitted(targets, **options)
    outputs = random.normal(-1, 0.5, (60, task.outputs))
    return task.calibrated(outputs, targets)


def write_survival_model(
    folder: Path, seed: int = 0, *, kind: str = "abmil", loss: str = "discrete", **changes: Any
) -> Path:
    """A model folder; every layer does something."""
    torch.manual_seed(seed)
    task = learn(loss, seed, **changes)
    model = create_model(kind, in_dim=DIM, num_classes=task.outputs)
    for parameter in model.parameters():
        if not parameter.any():
            torch.nn.init.normal_(parameter, std=0.3)
    model.set_task(task)
    save_model(folder, model, notes={"bags": BAGS}, task=task)
    return folder


def write_survival_run(folder: Path, folds: int = 3, **options: Any) -> Path:
    """A run of one model, as sacmil crossval leaves it."""
    for fold in range(folds):
        write_survival_model(folder / f"abmil/seed_0/fold_{fold}", fold, **options)
    return folder
