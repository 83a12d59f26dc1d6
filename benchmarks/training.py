"""Training: the paper's whole run from measured epochs, what lies outside the model, and how the
cost of a step grows with the bag.

The bags are random numbers in the layout of real ones; what they hold changes no time.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

from sacmil import Bag, create_model, write_bag
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.cohorts.dataset import Dataset
from sacmil.models import Recipe
from sacmil.synthetic.tissue_shape import make_tissue_coords
from sacmil.training.config import TrainingConfig
from sacmil.training.loading import make_sample_loader
from sacmil.training.train import cross_validate
from sacmil.training.trainer import Trainer

EPOCHS = 200
"""Of the paper's run."""


def main(arguments: list[str] | None = None) -> None:
    """Print the requested parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bags", type=int, default=20)
    parser.add_argument("--instances", type=int, default=2_000, help="in a bag, on average")
    parser.add_argument("--epochs", type=int, default=3, help="that are measured")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--at-once", type=int, default=1, help="folds on the device together")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--model", default="sac_mil")
    parser.add_argument("--lengths", type=int, nargs="*", default=[1_024, 4_096, 16_384])
    parser.add_argument("--plot", help="file for a picture of cost against length")
    options = parser.parse_args(arguments)
    print(f"training {options.model}, torch {torch.__version__}, {options.device}, 1024-d float16")
    if options.bags:
        _whole_run(options)
    found = [(length, *_step(options, length)) for length in options.lengths]
    if options.plot:
        _draw(options, found)


def _whole_run(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cohort, bags = _cohort(Path(folder) / "bags", options.bags, options.instances)
        dataset = Dataset(cohort, bags)
        config = TrainingConfig(
            model=options.model,
            training={"epochs": options.epochs},
            precision=options.precision,
        )
        began = time.perf_counter()
        with _time_in_steps() as in_steps:
            found = cross_validate(
                dataset,
                {"model": config},
                out=Path(folder) / "run",
                devices=[options.device] * options.at_once,
            )
        wall = time.perf_counter() - began
        assert not found.failures, found.failures
        _print_run(Path(folder) / "run", options, wall, sum(in_steps))


def _print_run(run: Path, options: argparse.Namespace, wall: float, in_steps: float) -> None:
    seconds = [_epoch_seconds(part) for part in sorted(run.glob("model/seed_0/fold_*"))]
    later = np.mean([np.mean(epochs[2:] or epochs[-1:]) for epochs in seconds])
    rounds = -(-5 // options.at_once)
    whole = wall + rounds * (EPOCHS - options.epochs) * later
    print(
        f"  {options.bags} bags of {options.instances:,}, five folds, {options.at_once} at once, "
        f"{options.precision}: {options.epochs} epochs {wall:.1f} s, an epoch after the second "
        f"{later:.2f} s; {EPOCHS} epochs: {whole / 60:.1f} minutes"
    )
    if options.at_once == 1 and options.device == "cpu":  # elsewhere steps cannot be watched
        total = sum(sum(epochs) for epochs in seconds)
        print(f"  outside the model: {1 - in_steps / total:.1%} of the epochs")


def _epoch_seconds(part: Path) -> list[float]:
    with (part / "metrics.csv").open() as file:
        return [float(row["seconds"]) for row in csv.DictReader(file)]


@contextmanager
def _time_in_steps() -> Iterator[list[float]]:
    """Seconds spent in forward, backward and update, as long as the device is the CPU."""
    step, seconds = Trainer.step, []

    def timed(self: Trainer, *arguments: object) -> object:
        began = time.perf_counter()
        result = step(self, *arguments)
        seconds.append(time.perf_counter() - began)
        return result

    Trainer.step = timed
    try:
        yield seconds
    finally:
        Trainer.step = step


def _cohort(folder: Path, count: int, instances: int) -> tuple[Cohort, dict[str, Path]]:
    random = np.random.default_rng(0)
    block = random.standard_normal((2 * instances, 1024), dtype=np.float32).astype(np.float16)
    slides, bags = [], {}
    for number in range(count):
        name = f"slide-{number}"
        length = int(random.integers(instances // 2, 3 * instances // 2))
        first = int(random.integers(2 * instances - length))
        bags[name] = folder / f"{name}.h5"
        coords = make_tissue_coords(length, seed=number) * 512
        write_bag(bags[name], Bag(name, block[first : first + length], coords, 512, 0.25))
        slides.append(LabeledSlide(name, name, number % 2))
    return Cohort(tuple(slides), ("negative", "positive")), bags


def _step(options: argparse.Namespace, length: int) -> tuple[float, float]:
    """Milliseconds of a training step and of an answer."""
    model = create_model(options.model, in_dim=1024, num_classes=2).to(options.device)
    features = np.random.default_rng(0).standard_normal((length, 1024), dtype=np.float32)
    bag = Bag("slide", features.astype(np.float16), make_tissue_coords(length, 0) * 512, 512)
    sample = make_sample_loader(model, [bag], [1], options.device)[0]
    trainer = Trainer(model, Recipe(), precision=getattr(torch, options.precision))

    def train() -> None:
        trainer.step([sample])

    @torch.inference_mode()
    def answer() -> None:
        half = options.precision == "bfloat16"
        with torch.autocast(torch.device(options.device).type, torch.bfloat16, enabled=half):
            model.eval()(*sample[:3])

    step, forward = (_milliseconds(call, options.device) for call in (train, answer))
    per_million = 1e6 / length
    print(
        f"  {length:>9,} instances: step {step:9.2f} ms ({step * per_million:8.1f} per million), "
        f"answer {forward:9.2f} ms ({forward * per_million:8.1f} per million)"
    )
    return step, forward


def _draw(options: argparse.Namespace, found: list[tuple[int, float, float]]) -> None:
    """Both axes by doublings, so that cost in proportion to length is a line of slope one."""
    from matplotlib.figure import Figure

    lengths, steps, answers = (np.array(column) for column in zip(*found, strict=True))
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.loglog(lengths, steps, "o-", color="#1b6ca8", label="training step")
    axes.loglog(lengths, answers, "s-", color="#d1495b", label="answer")
    axes.loglog(lengths, steps[-1] * lengths / lengths[-1], ":", color="grey", label="linear")
    axes.set(xlabel="instances in the bag", ylabel="milliseconds")
    axes.set_title(f"{options.model}, {options.device}, {options.precision}")
    axes.legend(frameon=False)
    figure.savefig(options.plot, dpi=150)


def _milliseconds(call: object, device: str, repeats: int = 5) -> float:
    """Median of some repeats, after two that are not counted."""
    found = []
    for _ in range(repeats + 2):
        began = time.perf_counter()
        call()
        if device != "cpu":
            torch.cuda.synchronize()
        found.append(1e3 * (time.perf_counter() - began))
    return float(np.median(found[2:]))


if __name__ == "__main__":
    main()
