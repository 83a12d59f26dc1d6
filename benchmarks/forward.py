"""SAC-MIL's forward pass against gated AB-MIL (1024-512-256) on the same machine, same run."""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

from benchmarks.clock import best_times
from sacmil import create_model
from sacmil.synthetic.tissue_shape import make_tissue_coords


class GatedABMIL(nn.Module):
    """The yardstick: project, gated attention, weighted mean, classify."""

    def __init__(self, in_dim: int = 1024) -> None:
        super().__init__()
        self.project = nn.Linear(in_dim, 512)
        self.tanh, self.gate = nn.Linear(512, 256), nn.Linear(512, 256)
        self.attention, self.head = nn.Linear(256, 1), nn.Linear(512, 2)

    def forward(self, x: Tensor) -> Tensor:
        """(N, in_dim) to (2,)."""
        h = self.project(x).relu()
        weights = self.attention(self.tanh(h).tanh() * self.gate(h).sigmoid()).softmax(0)
        return self.head((weights * h).sum(0))


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> None:
    """Print milliseconds and ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, nargs="+", default=[1_000, 10_000])
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args(arguments)
    print(f"forward, torch {torch.__version__}, {torch.get_num_threads()} threads, 1024-d, float32")
    for n in options.instances:
        _compare(n, options.repeats)


def _compare(n: int, repeats: int) -> None:
    torch.manual_seed(0)
    features, coords = (
        torch.randn(n, 1024),
        torch.from_numpy(make_tissue_coords(n, seed=0)).double(),
    )
    yardstick = GatedABMIL().eval()
    model = create_model("sac_mil", in_dim=1024, num_classes=2).eval()
    plan = model.plan(coords.numpy())
    times = best_times(
        {
            "gated AB-MIL": lambda: yardstick(features),
            "SAC-MIL, plan given": lambda: model(features, coords, plan),
            "SAC-MIL, plan made": lambda: model(features, coords),
        },
        repeats,
    )
    for name, seconds in times.items():
        ratio = seconds / times["gated AB-MIL"]
        print(f"  {n:>7,} instances  {name:<20}{1e3 * seconds:9.1f} ms{ratio:7.2f} x")


if __name__ == "__main__":
    main()
