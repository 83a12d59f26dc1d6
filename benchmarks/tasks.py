"""Training on a bag for each task, as a ratio to classification in the same run.

Run: python -m benchmarks.tasks --instances 10000
     python -m benchmarks.tasks --instances 10000 --device cuda --precision bfloat16
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from benchmarks.clock import best_times
from sacmil import create_model
from sacmil.models import Sample
from sacmil.models._recipe import STANDARD
from sacmil.synthetic.tissue_shape import make_tissue_coords
from sacmil.tasks import Classification, MultiLabel, Ordinal, Regression, Survival, Task
from sacmil.training.trainer import Trainer

IN_DIM = 1024
BAGS = 8
"""Bags of a measured call: one a step, but for Cox's loss, which takes all in one step."""
YARDSTICK = "classification"
TIMES: list[list[float]] = [[n + 1.0, n % 2] for n in range(BAGS)]
CURVE: dict[str, Any] = {"horizons": (2, 4), "curve_times": (2, 4, 8)}

TASKS: dict[str, tuple[Task, Sequence[Sequence[float]]]] = {
    YARDSTICK: (Classification(("a", "b", "c")), [[n % 3] for n in range(BAGS)]),
    "regression": (Regression("ki67"), [[1.5 * n] for n in range(BAGS)]),
    "regression, weighted": (Regression("ki67"), [[1.5 * n] for n in range(BAGS)]),
    "ordinal, corn": (Ordinal(("a", "b", "c")), [[n % 3] for n in range(BAGS)]),
    "ordinal, coral": (Ordinal(("a", "b", "c"), loss_name="coral"), [[n % 3] for n in range(BAGS)]),
    "multilabel": (MultiLabel(("a", "b", "c")), [[n % 2, np.nan, 1 - n % 2] for n in range(BAGS)]),
    "survival, discrete": (Survival("time", "event", **CURVE), TIMES),
    "survival, cox": (Survival("time", "event", "cox", **CURVE), TIMES),
}
"""With the targets of some bags."""


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=10_000)
    parser.add_argument("--models", nargs="+", default=["sac_mil_near_far", "abmil"])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    options = parser.parse_args(arguments)
    where = f"{torch.get_num_threads()} threads" if options.device == "cpu" else options.device
    print(f"tasks, torch {torch.__version__}, {where}, {options.precision}, {IN_DIM}-d")
    print(f"{options.instances:,} instances, best of {options.repeats}")
    for name in options.models:
        steps: dict[str, Callable[[], object]] = {
            task: _make_steps(name, task, options.instances, options.device, options.precision)
            for task in TASKS
        }
        best = best_times(steps, options.repeats)
        for task, seconds in best.items():
            ratio = seconds / best[YARDSTICK]
            print(f"{name:18}{task:24}{1e3 * seconds / BAGS:9.2f} ms a bag{ratio:8.3f} x")


def _make_steps(model: str, name: str, n: int, device: str, precision: str) -> Callable[[], None]:
    """Return a call that takes a step on each of some bags."""
    task, targets = TASKS[name]
    torch.manual_seed(0)
    made = create_model(model, in_dim=IN_DIM, num_classes=task.outputs)
    weights = "balanced" if name.endswith("weighted") else "none"
    fitted = task.fitted(np.array(targets), label_smoothing=0.0, class_weights=weights)
    made.set_task(fitted)
    made.to(device)
    coords = make_tissue_coords(n, 0).astype(np.float64)
    plan = {key: torch.from_numpy(value).to(device) for key, value in made.plan(coords).items()}
    places = torch.from_numpy(coords).to(device)
    features = torch.randn(n, IN_DIM, device=device)
    samples = [
        Sample(features, places, plan, fitted.prepare(np.array(target)).to(device))
        for target in targets
    ]
    trainer = Trainer(made, STANDARD, task=fitted, precision=getattr(torch, precision))

    steps = [samples] if fitted.needs_batch else [[sample] for sample in samples]

    def take_steps() -> None:
        for bags in steps:
            losses = trainer.step(bags, 1.0)
        float(sum(losses.values()))  # waits for the GPU

    return take_steps


if __name__ == "__main__":
    main()
