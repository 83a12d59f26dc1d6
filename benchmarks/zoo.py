"""Every model, position and correlation: time and memory as ratios to abmil_gated, same run.

Each contestant takes turns with abmil_gated, so that both meet the same machine. Memory is what
the process grows by at its peak (Linux), or what is allocated on the GPU. Where torchmil is
installed (pip install torchmil), its model of the same layers is measured beside ours.

Run: python -m benchmarks.zoo --instances 1000 10000 50000
     python -m benchmarks.zoo --instances 100000 --device cuda
"""

from __future__ import annotations

import argparse
import gc
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from benchmarks import torchmil_models
from benchmarks.clock import best_times
from sacmil import create_model, list_models
from sacmil.models import MILModel
from sacmil.nn.correlations import CORRELATION_BLOCKS
from sacmil.nn.positions import POSITIONS
from sacmil.synthetic.tissue_shape import make_tissue_coords

IN_DIM = 1024
YARDSTICK = "abmil_gated"


class Contestant(NamedTuple):
    """Something that takes a bag to a loss."""

    name: str
    forward: Callable[[], object]
    loss: Callable[[], Tensor]


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, nargs="+", default=[1_000, 10_000, 50_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="part of the names to measure")
    parser.add_argument("--limit", type=float, default=60, help="seconds a call may take")
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args(arguments)
    where = f"{torch.get_num_threads()} threads" if options.device == "cpu" else options.device
    print(f"zoo, torch {torch.__version__}, {where}, {IN_DIM}-d, float32")
    torch.set_default_device(options.device)
    print(f"{'':34}{'forward':>20}{'forward + backward':>24}{'peak memory':>22}")
    spent: dict[str, float] = {}
    for n in options.instances:
        yardstick = _ours(YARDSTICK, n)
        for contestant in _contestants(n, options.only):
            growth = (n / min(options.instances)) ** 2  # of the slowest, attention
            if spent.get(contestant.name, 0) * growth > 20 * options.limit:
                print(f"{n:>7,}  {contestant.name:25}  would take too long")
                continue
            seconds = _row(n, contestant, yardstick, options.repeats)
            spent.setdefault(contestant.name, seconds)


def _contestants(n: int, only: str) -> Iterator[Contestant]:
    models = {name: {} for name in list_models()}
    models |= {f"sac_mil {c}": {"correlation": c} for c in CORRELATION_BLOCKS}
    models |= {f"sac_mil {p}": {"position": p} for p in POSITIONS}
    for name, settings in models.items():
        if only in name:
            yield _ours(name.split()[0], n, label=name, **settings)
    for name, (make, settings) in torchmil_models.PAIRS.items():
        if only in name and torchmil_models.AVAILABLE:
            yield _ours(name, n, label=f"{name}, 1 output", num_classes=1, **settings)
            yield _theirs(make, n, label=f"{name}, torchmil")


def _ours(
    name: str, n: int, *, label: str | None = None, num_classes: int = 2, **settings: object
) -> Contestant:
    torch.manual_seed(0)
    model = create_model(name, in_dim=IN_DIM, num_classes=num_classes, **settings)
    features, places = torch.randn(n, IN_DIM), make_tissue_coords(n, seed=0)
    coords = torch.as_tensor(places, dtype=torch.float64, device=features.device)
    plan = model.plan(coords.cpu().numpy(), features.cpu().numpy())
    plan = {key: torch.as_tensor(value, device=features.device) for key, value in plan.items()}
    return Contestant(
        label or name,
        forward=lambda: model.eval()(features, coords, plan),
        loss=lambda: _loss(model.train(), features, coords, plan),
    )


def _loss(model: MILModel, features: Tensor, coords: Tensor, plan: dict[str, object]) -> Tensor:
    losses = model.losses(model(features, coords, plan), torch.tensor(1))
    return torch.stack(list(losses.values())).sum()


def _theirs(make: Callable[[int], torch.nn.Module], n: int, label: str) -> Contestant:
    torch.manual_seed(0)
    model, features = make(IN_DIM), torch.randn(1, n, IN_DIM)
    target = torch.ones(1)
    return Contestant(
        label,
        forward=lambda: torchmil_models.forward(model.eval(), features),
        loss=lambda: torchmil_models.loss(model.train(), features, target),
    )


def _row(n: int, contestant: Contestant, yardstick: Contestant, repeats: int) -> float:
    with torch.inference_mode():
        forward = best_times(
            {"x": _to_the_end(contestant.forward), "y": _to_the_end(yardstick.forward)}, repeats
        )
    both = best_times(
        {
            "x": _to_the_end(lambda: contestant.loss().backward()),
            "y": _to_the_end(lambda: yardstick.loss().backward()),
        },
        repeats,
    )
    memory = {
        "x": _peak_growth(lambda: contestant.loss().backward()),
        "y": _peak_growth(lambda: yardstick.loss().backward()),
    }
    print(
        f"{n:>7,}  {contestant.name:25}"
        f"{1e3 * forward['x']:10.1f} ms {forward['x'] / forward['y']:6.2f} x"
        f"{1e3 * both['x']:13.1f} ms {both['x'] / both['y']:6.2f} x"
        f"{memory['x']:11.0f} MB {memory['x'] / max(memory['y'], 1):6.2f} x",
        flush=True,
    )
    return both["x"]


def _to_the_end(call: Callable[[], object]) -> Callable[[], None]:
    """The call with all its work on a GPU done."""

    def whole() -> None:
        call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    return whole


def _peak_growth(call: Callable[[], object]) -> float:
    """Megabytes by which memory rises at its highest during a call."""
    gc.collect()
    if torch.cuda.is_available():
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        return (torch.cuda.max_memory_allocated() - before) / 2**20
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status("VmRSS")
    call()
    return (_status("VmHWM") - before) / 1024


def _status(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+)", Path("/proc/self/status").read_text())
    return int(found.group(1)) if found else 0


if __name__ == "__main__":
    main()
