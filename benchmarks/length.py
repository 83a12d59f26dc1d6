"""Time and memory of a prediction and of a training step against the length of a bag, on a GPU.

The bound is SAC-MIL's matrix products, at the rate one large product reaches in the same run
(a step: three times those of a prediction). Features are on the GPU, plans are given, positions are
computed; a step is forward and backward, without the optimizer.

Run: python -m benchmarks.length [--lengths 16384 65536] [--only sac_mil transmil]
"""

from __future__ import annotations

import argparse
import csv
import gc
import re
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from sacmil.atomic import atomic_write
from sacmil.kernels.config import use_fast_path, use_plain_path
from sacmil.models import MILModel, create_model

ROOT = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).parent / "results" / "length.csv"
LENGTHS = (1_024, 4_096, 16_384, 65_536, 262_144, 1_048_576)
IN_DIM, DIM = 1024, 512
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclass(frozen=True)
class Contestant:
    """A model and how it is run."""

    model: str
    options: tuple[tuple[str, Any], ...] = ()
    way: str = "eager"
    """eager, plain (without kernels), compiled, or replayed (a captured CUDA graph)."""
    square: bool = False
    """Whether its cost grows with the square of the length."""


CONTESTANTS: dict[str, Contestant] = {
    "sac_mil": Contestant("sac_mil"),
    "sac_mil, replayed": Contestant("sac_mil", way="replayed"),
    "sac_mil, plain": Contestant("sac_mil", way="plain"),
    "sac_mil, compiled": Contestant("sac_mil", way="compiled"),
    "sac_mil_local": Contestant("sac_mil_local"),
    "abmil_gated": Contestant("abmil_gated"),
    "transmil": Contestant("transmil"),
    "mambamil": Contestant("mambamil"),
    "exact attention": Contestant(
        "sac_mil", (("correlation", "attention"), ("position", "none")), square=True
    ),
}


@dataclass(frozen=True)
class Row:
    """One measurement."""

    name: str
    what: str
    """prediction or step."""
    instances: int
    precision: str
    milliseconds: float
    bound: float
    """Milliseconds."""
    gigabytes: float
    """Peak of the memory, features included."""
    device: str
    versions: str
    date: str
    command: str


def main(arguments: list[str] | None = None) -> None:
    """Measure, print, and add to the results."""
    given = sys.argv[1:] if arguments is None else arguments
    options = _parser().parse_args(given)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("length: no CUDA device here, so nothing is measured; --device cpu tries it out")
        return
    rate = product_rate(options.device)
    print(
        f"length, {_machine(options.device)}, {rate / 1e12:.0f} TFLOP/s, torch {torch.__version__}"
    )
    for row in _measured(options, rate, describe_command(given)):
        write(options.results, [row])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS)
    parser.add_argument("--only", nargs="+", default=list(CONTESTANTS), choices=CONTESTANTS)
    parser.add_argument("--what", nargs="+", default=["prediction", "step"])
    parser.add_argument("--precision", nargs="+", default=["bfloat16"], choices=DTYPES)
    parser.add_argument("--longest", type=float, default=1.0, help="seconds of one call")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--results", type=Path, default=RESULTS)
    return parser


def product_rate(device: str) -> float:
    """Operations a second of one large product in bfloat16."""
    side = 8192 if device == "cuda" else 256
    a, b = torch.randn(2, side, side, device=device).bfloat16()
    return 2 * side**3 / (timed(lambda: a @ b, device) / 1e3)


def describe_command(arguments: Sequence[str]) -> str:
    """Return the command as text without paths of this machine, for tables that are published."""
    shown = [re.sub(r"[^=]*[/\\][^=]*", _shorten_path, argument) for argument in arguments]
    return shlex.join(["python", "-m", "benchmarks.length", *shown])


def _shorten_path(found: re.Match[str]) -> str:
    """A path relative to the repository, or only the name of what lies elsewhere."""
    path = Path(found[0]).resolve()
    return (path.relative_to(ROOT) if path.is_relative_to(ROOT) else Path(path.name)).as_posix()


def _measured(options: argparse.Namespace, rate: float, command: str) -> Iterator[Row]:
    facts = {
        "device": _machine(options.device),
        "versions": f"torch {torch.__version__}",
        "date": datetime.now(UTC).date().isoformat(),
        "command": command,
    }
    for precision in options.precision:
        for what in options.what:
            for name in options.only:
                for n, found in _lengths(CONTESTANTS[name], what, precision, options):
                    bound = 1e3 * products(n) * (3 if what == "step" else 1) / rate
                    row = Row(name, what, n, precision, found[0], bound, found[1], **facts)
                    print(
                        f"  {precision} {what:<11}{n:>10,}  {name:<18}{row.milliseconds:10.3f} ms"
                        f"{row.milliseconds / bound:8.2f} x bound{row.gigabytes:7.2f} GB",
                        flush=True,
                    )
                    yield row


def _lengths(
    contestant: Contestant, what: str, precision: str, options: argparse.Namespace
) -> Iterator[tuple[int, tuple[float, float]]]:
    """From the shortest on, until the next would take too long or too much."""
    others = held(options.device)
    model = create_model(
        contestant.model, in_dim=IN_DIM, num_classes=2, **dict(contestant.options)
    ).to(options.device, DTYPES[precision])
    last = (0, 0.0)
    for n in sorted(options.lengths):
        growth = (n / last[0]) ** (2 if contestant.square else 1) if last[0] else 0.0
        if last[1] * growth > 1e3 * options.longest:
            return
        try:
            milliseconds, gigabytes = _one(contestant, model, what, n, options.device)
        except torch.cuda.OutOfMemoryError:
            return
        last = (n, milliseconds)
        yield n, (milliseconds, gigabytes - others)


def held(device: str) -> float:
    """Gigabytes on the GPU before a measurement: captured graphs may keep theirs."""
    if device != "cuda":
        return 0.0
    gc.collect()
    return torch.cuda.memory_allocated() / 1e9


def products(n: int) -> int:
    """Operations of SAC-MIL's matrix products for one prediction."""
    return 2 * n * DIM * (IN_DIM + 6 * DIM)


def _one(
    contestant: Contestant, model: MILModel, what: str, n: int, device: str
) -> tuple[float, float]:
    """Milliseconds and gigabytes."""
    dtype = next(model.parameters()).dtype
    features = torch.randn(n, IN_DIM, device=device).to(dtype)
    side = int(n**0.5) + 1
    places = torch.arange(n, device=device)
    coords = torch.stack((places % side, places // side), dim=1).double()
    plan = {key: torch.from_numpy(v).to(device) for key, v in _plan(model, coords).items()}
    with use_plain_path() if contestant.way == "plain" else use_fast_path():
        if device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        call = _call(contestant, model, what, features, coords, plan)
        milliseconds = timed(call, device)
    return milliseconds, torch.cuda.max_memory_allocated() / 1e9 if device == "cuda" else 0.0


_PLANS: dict[tuple[str, int], dict[str, Any]] = {}
"""That have been made: they take longer than what is measured, and contestants share them."""


def _plan(model: MILModel, coords: Tensor) -> dict[str, Any]:
    key = repr(model.planner), len(coords)
    if key not in _PLANS:
        _PLANS[key] = model.plan(coords.cpu().numpy())
    return _PLANS[key]


def _call(
    contestant: Contestant,
    model: MILModel,
    what: str,
    features: Tensor,
    coords: Tensor,
    plan: dict[str, Tensor],
) -> Callable[[], object]:
    def logits() -> Tensor:
        return model(features, coords, plan).logits

    if contestant.way == "compiled":
        aggregate = torch.compile(model.aggregate, dynamic=True)
        logits = lambda: aggregate(features, coords, plan).logits  # noqa: E731
    call = _step(model, logits) if what == "step" else torch.no_grad()(logits)
    return _captured(call) if contestant.way == "replayed" else call


def _step(model: MILModel, logits: Callable[[], Tensor]) -> Callable[[], object]:
    def step() -> None:
        for parameter in model.parameters():
            parameter.grad = None
        found = logits()
        F.cross_entropy(found.float()[None], found.new_zeros(1, dtype=torch.long)).backward()

    return step


def _captured(call: Callable[[], object]) -> Callable[[], object]:
    """As a CUDA graph, where there is CUDA."""
    if not torch.cuda.is_available():
        return call
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def timed(call: Callable[[], object], device: str, seconds: float = 0.3) -> float:
    """Milliseconds of the median call, after a few that are not counted."""
    first = _milliseconds(call, device)
    for _ in range(3 if first < 1e3 else 0):
        call()
    repeats = max(3, min(200, int(1e3 * seconds / max(_milliseconds(call, device), 1e-3))))
    return statistics.median(_milliseconds(call, device) for _ in range(repeats))


def _milliseconds(call: Callable[[], object], device: str) -> float:
    if device != "cuda":
        began = time.perf_counter()
        call()
        return (time.perf_counter() - began) * 1e3
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    call()
    end.record()
    end.synchronize()
    return float(start.elapsed_time(end))


def _machine(device: str) -> str:
    return torch.cuda.get_device_name() if device == "cuda" else "CPU"


def read(file: Path) -> list[Row]:
    """What has been measured."""
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as lines:
        return [
            Row(**{field.name: _typed(line[field.name], str(field.type)) for field in fields(Row)})
            for line in csv.DictReader(lines)
        ]


def _typed(text: str, kind: str) -> Any:
    return {"int": int, "float": float, "str": str}[kind](text)


def write(file: Path, rows: Sequence[Row]) -> None:
    """Add rows; of equal measurements the newest stays."""
    kept = {(r.name, r.what, r.instances, r.precision): r for r in (*read(file), *rows)}
    with atomic_write(file) as partial, partial.open("w", newline="", encoding="utf-8") as lines:
        table = csv.DictWriter(lines, [field.name for field in fields(Row)])
        table.writeheader()
        table.writerows(asdict(row) for row in kept.values())


if __name__ == "__main__":
    main()
