"""A captured training step of every model, as a ratio to its plain step in the same run.

The bag stays on the GPU. A step is forward, backward and update, with the recipe `standard`.
Plain and captured steps take turns.

Run: python -m benchmarks.captured --instances 1000 10000
     python -m benchmarks.captured --instances 1000 10000 --precision bfloat16
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from benchmarks.clock import best_times
from sacmil import create_model, list_models
from sacmil.models import Sample
from sacmil.models._recipe import STANDARD
from sacmil.synthetic.tissue_shape import make_tissue_coords
from sacmil.training.capture import CapturingTrainer
from sacmil.training.trainer import Trainer

IN_DIM = 1024
STEPS = 10
"""Of a measured call, after which the GPU is waited for."""


def main(arguments: list[str] | None = None) -> None:
    """Print the table; without a GPU say that one is needed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--models", nargs="+", default=list_models())
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("captured: needs a GPU")
        return
    print(f"captured, torch {torch.__version__}, {torch.cuda.get_device_name()}, {IN_DIM}-d")
    print(f"{options.precision}, best of {options.repeats} times {STEPS} steps")
    for n in options.instances:
        for name in options.models:
            _print_row(name, n, options)


def _print_row(name: str, n: int, options: argparse.Namespace) -> None:
    precision = getattr(torch, options.precision)
    trainers = [_make_trainer(each, name, precision) for each in (Trainer, CapturingTrainer)]
    sample = _make_sample(trainers[0], n)
    calls: dict[str, Callable[[], object]] = {
        "plain": lambda: _take_steps(trainers[0], sample),
        "captured": lambda: _take_steps(trainers[1], sample),
    }
    best = {call: seconds / STEPS for call, seconds in best_times(calls, options.repeats).items()}
    captured = trainers[1]
    assert isinstance(captured, CapturingTrainer)
    note = f"  plain: {captured.obstacle}" if captured.obstacle else ""
    print(
        f"{n:>8,}  {name:18}{1e3 * best['plain']:9.2f} ms{1e3 * best['captured']:9.2f} ms"
        f"{best['plain'] / best['captured']:7.2f} times as fast{note}",
        flush=True,
    )
    captured.release()


def _make_trainer(kind: type[Trainer], name: str, precision: torch.dtype) -> Trainer:
    torch.manual_seed(0)
    model = create_model(name, in_dim=IN_DIM, num_classes=2).cuda()
    return kind(model, STANDARD, precision=precision)


def _make_sample(trainer: Trainer, n: int) -> Sample:
    coords = make_tissue_coords(n, seed=0).astype("float64")
    features = torch.randn(n, IN_DIM)
    plan = trainer.model.plan(coords, features.numpy())
    return Sample(
        features.half().cuda(),
        torch.from_numpy(coords).cuda(),
        {key: torch.from_numpy(value).cuda() for key, value in plan.items()},
        torch.tensor(1).cuda(),
        resident=True,
    )


def _take_steps(trainer: Trainer, sample: Sample) -> None:
    for _ in range(STEPS):
        trainer.step([sample], 1.0)
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
