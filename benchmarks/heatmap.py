"""From a bag on disk to pictures, beside SAC-MIL's forward pass; and GeoJSON for QuPath.

Run: python -m benchmarks.heatmap --instances 15000 --slide SLIDE
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch

from benchmarks.clock import best_times
from sacmil import Bag, create_model, predict, read_bag, write_bag
from sacmil.heatmap import draw_heatmap, normalize_scores, write_geojson
from sacmil.results import InstanceScores
from sacmil.synthetic.tissue_shape import make_tissue_coords


def main(arguments: list[str] | None = None) -> None:
    """Print seconds, and as multiples of the forward pass."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--instances", type=int, default=15_000)
    parser.add_argument("--geojson", type=int, default=100_000)
    parser.add_argument("--slide", type=Path, help="drawn beneath; tiles are laid over it")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args(arguments)
    print(f"heatmap, torch {torch.__version__}, {torch.get_num_threads()} threads, 1024-d")
    with tempfile.TemporaryDirectory() as folder:
        _pictures(Path(folder), options.instances, options.slide, options.repeats)
        _geojson(Path(folder), options.geojson, options.repeats)


def _made(instances: int, slide: Path | None) -> Bag:
    features = np.random.default_rng(0).normal(size=(instances, 1024)).astype(np.float16)
    coords, side = make_tissue_coords(instances, seed=0), 1.0
    if slide is not None:
        from sacmil.slides.readers import open_slide

        with open_slide(slide) as opened:
            side = float((np.array(opened.size) / (coords.max(axis=0) + 1)).min())
    return Bag("slide", features, coords * side, side, mpp=0.5)


def _pictures(folder: Path, instances: int, slide: Path | None, repeats: int) -> None:
    path = folder / "bag.h5"
    write_bag(path, _made(instances, slide))
    model = create_model("sac_mil", in_dim=1024, num_classes=2).eval()
    bag = read_bag(path)
    answer = predict(model, bag)
    scores = InstanceScores(bag.coords, float(bag.patch_size), answer.scores)
    times = best_times(
        {
            "forward pass": lambda: predict(model, bag),
            "bag read": lambda: read_bag(path),
            "pictures": lambda: draw_heatmap(folder, "slide", scores, slide=slide),
        },
        repeats,
    )
    whole = sum(times.values())
    for name, seconds in (times | {"all three": whole}).items():
        print(
            f"  {instances:>9,} tiles  {name:<16}{seconds:8.2f} s"
            f"{seconds / times['forward pass']:8.2f} x forward"
        )


def _geojson(folder: Path, instances: int, repeats: int) -> None:
    random = np.random.default_rng(0)
    scores = InstanceScores(
        make_tissue_coords(instances, seed=0) * 256, 256, random.random(instances, np.float32)
    )
    values = normalize_scores(scores.scores, "rank")
    path = folder / "tiles.geojson.gz"
    times = best_times(
        {"GeoJSON": lambda: write_geojson(path, scores, values, normalization="rank")}, repeats
    )
    size = path.stat().st_size / 2**20
    print(f"  {instances:>9,} tiles  GeoJSON, gzipped {times['GeoJSON']:7.2f} s{size:8.1f} MiB")


if __name__ == "__main__":
    main()
