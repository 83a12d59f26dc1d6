"""A training step as users get it, beside loops of other packages in the same run.

One cohort of bags of different lengths is trained on by `sacmil train` itself: with captured steps,
without, from the GPU's memory, from main memory, and from files. The loop of CLAM is written from
its description: a DataLoader with four workers and one bag a step, torch.load of a float32 tensor,
Adam, and the loss and the accuracy read after every step. torchmil's trainer is measured where
torchmil is installed.

Run: python -m benchmarks.steps --bags 300 --device cuda
     python -m benchmarks.steps --bags 300 --device cuda --precision bfloat16 --model sac_mil
"""

from __future__ import annotations

import argparse
import csv
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from benchmarks import torchmil_models
from sacmil import Bag, create_model, write_bag
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.cohorts.dataset import Dataset
from sacmil.kernels.cuda_graphs import CAPTURE_VARIABLE
from sacmil.synthetic.tissue_shape import make_tissue_coords
from sacmil.training.train import train

WIDTH = 1024
SWITCHES = {"captured": {CAPTURE_VARIABLE: "on"}, "eager": {CAPTURE_VARIABLE: "off"}}
"""Environment variables of each way of taking steps."""


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bags", type=int, default=12)
    parser.add_argument("--lengths", type=int, nargs=2, default=[5_000, 15_000])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--model", default="sac_mil_local")
    parser.add_argument("--precision", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", nargs="+", default=["auto", "memory", "none"])
    parser.add_argument("--ways", nargs="+", default=list(SWITCHES), choices=list(SWITCHES))
    parser.add_argument("--peers", nargs="*", default=["clam", "torchmil"])
    parser.add_argument("--links", type=int, default=1, help="slides for each file")
    parser.add_argument("--folder", help="for the bags; kept, and used again")
    options = parser.parse_args(arguments)
    print(
        f"steps, torch {torch.__version__}, {options.device}, {options.precision}, "
        f"{options.model}, {options.bags * options.links} bags of "
        f"{options.lengths[0]:,} to {options.lengths[1]:,}"
    )
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(options.folder or temporary)
        dataset = _make_dataset(folder, options)
        print(f"  reading the files one after the other: {_time_files(dataset):.2f} ms a bag")
        for name in options.peers:
            _print_row(name, _PEERS[name](dataset, folder, options))
        for cache in options.cache:
            for way in options.ways:
                with _switch(SWITCHES[way]):
                    _print_row(f"{cache}, {way}", _train(dataset, cache, options))


def _print_row(name: str, found: tuple[list[float], float] | None) -> None:
    if found is None:
        print(f"  {name:20} not installed")
        return
    steps, seconds = found
    later = float(np.median(steps[2:] or steps))
    print(
        f"  {name:20}{1e3 * later:8.2f} ms a step; first epochs "
        f"{', '.join(f'{1e3 * step:.1f}' for step in steps[:2])}; all {seconds:.1f} s",
        flush=True,
    )


@contextmanager
def _switch(values: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


def _make_dataset(folder: Path, options: argparse.Namespace) -> Dataset:
    """Write bags of different lengths; links stand for more slides than the disk holds."""
    shortest, longest = options.lengths
    lengths = np.linspace(shortest, longest, options.bags).astype(int)
    block = np.random.default_rng(0).standard_normal((2 * longest, WIDTH), dtype=np.float32)
    block = block.astype(np.float16)
    (folder / "bags").mkdir(parents=True, exist_ok=True)

    def write(number: int) -> Path:
        path, n = folder / "bags" / f"{number}.h5", int(lengths[number])
        if not path.exists():
            start = int(np.random.default_rng(number).integers(2 * longest - n))
            coords = make_tissue_coords(n, seed=number) * 512
            write_bag(path, Bag(str(number), block[start : start + n], coords, 512, 0.25))
        return path

    with ThreadPoolExecutor(16) as pool:
        paths = list(pool.map(write, range(options.bags)))
    slides, bags = [], {}
    for link in range(options.links):
        for number, path in enumerate(paths):
            name = f"{number}-{link}"
            bags[name] = path.with_name(f"{name}.h5") if link else path
            if link and not bags[name].exists():
                bags[name].hardlink_to(path)
            slides.append(LabeledSlide(name, name, (number + link) % 2))
    return Dataset(Cohort(tuple(slides), ("negative", "positive")), bags)


def _time_files(dataset: Dataset) -> float:
    """Milliseconds to read a bag's bytes."""
    buffer = bytearray(max(path.stat().st_size for path in dataset.bags.values()))
    began = time.perf_counter()
    for path in dataset.bags.values():
        with path.open("rb", buffering=0) as file:
            file.readinto(buffer)
    return 1e3 * (time.perf_counter() - began) / len(dataset.bags)


def _train(dataset: Dataset, cache: str, options: argparse.Namespace) -> tuple[list[float], float]:
    """Seconds of a step in each epoch, and of everything."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        train(
            dataset,
            options.model,
            out=Path(folder) / "run",
            folds=5,
            device=options.device,
            cache=cache,
            config={"precision": options.precision},
            options={"epochs": options.epochs, "min_steps": 0},
        )
        seconds = time.perf_counter() - began
        with (Path(folder) / "run" / "metrics.csv").open() as file:
            epochs = [float(row["seconds"]) for row in csv.DictReader(file)]
    return [each / (len(dataset.bags) * 4 // 5) for each in epochs], seconds


# --- others


class TensorFiles(torch.utils.data.Dataset):
    """Bags as CLAM stores them."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return torch.load(self.paths[index], weights_only=True), index % 2


def _write_tensors(dataset: Dataset, folder: Path) -> list[Path]:
    """Write a float32 tensor for each of the first sixty bags."""
    from sacmil import read_bag

    written = []
    for name, path in list(dataset.bags.items())[:60]:
        written.append(folder / f"{name}.pt")
        if not written[-1].exists():
            torch.save(torch.from_numpy(read_bag(path).features.astype(np.float32)), written[-1])
    return written


def _take_first(batch: list[Any]) -> Any:
    return batch[0]


def _run_clam(dataset: Dataset, folder: Path, options: argparse.Namespace) -> Any:
    """Train our clam_sb by a loop as CLAM's."""
    files = TensorFiles(_write_tensors(dataset, folder))
    settings = {"batch_size": 1, "shuffle": True, "num_workers": 4, "collate_fn": _take_first}
    model = create_model("clam_sb", in_dim=WIDTH, num_classes=2).to(options.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4, weight_decay=1e-5)
    steps = []
    whole = time.perf_counter()
    for _ in range(options.epochs):
        began = time.perf_counter()
        right, total = 0, 0.0
        for features, label in torch.utils.data.DataLoader(files, **settings):
            features, target = features.to(options.device), torch.tensor(label).to(options.device)
            coords = torch.zeros(len(features), 2, dtype=torch.float64, device=options.device)
            output = model.train()(features, coords)
            loss = torch.stack(list(model.losses(output, target).values())).sum()
            total += loss.item()
            right += int(output.logits.argmax().item() == label)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        steps.append((time.perf_counter() - began) / len(files))
    return steps, time.perf_counter() - whole


def _run_torchmil(dataset: Dataset, folder: Path, options: argparse.Namespace) -> Any:
    """Train torchmil's ABMIL by its own trainer."""
    if not torchmil_models.AVAILABLE:
        return None
    from tensordict import TensorDict
    from torchmil.utils import Trainer

    make, _ = torchmil_models.PAIRS["abmil"]
    model = make(WIDTH).to(options.device)
    files = TensorFiles(_write_tensors(dataset, folder))

    def collate(batch: list[tuple[Tensor, int]]) -> Any:
        ((features, label),) = batch
        return TensorDict({"X": features[None], "Y": torch.tensor([float(label)])}, batch_size=[1])

    loader = torch.utils.data.DataLoader(
        files, batch_size=1, shuffle=True, num_workers=4, collate_fn=collate
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-4)
    trainer = Trainer(
        model,
        optimizer,
        metrics_dict={},
        obj_metric="loss",
        device=options.device,
        disable_pbar=True,
        verbose=False,
    )
    validation = torch.utils.data.DataLoader(files, sampler=[0], collate_fn=collate)
    steps = []
    whole = time.perf_counter()
    for _ in range(options.epochs):
        began = time.perf_counter()
        trainer.train(max_epochs=1, train_dataloader=loader, val_dataloader=validation)
        steps.append((time.perf_counter() - began) / len(files))
    return steps, time.perf_counter() - whole


_PEERS = {"clam": _run_clam, "torchmil": _run_torchmil}


if __name__ == "__main__":
    main()
