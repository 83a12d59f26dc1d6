"""The viewer's list of slides, which its first page waits for, and the files it must look for.

Run: python -m benchmarks.viewer_list --slides 5000 --models 3
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.clock import best_times
from sacmil.results import ModelInfo, Results, SlideResult, StoredPrediction, write_results
from sacmil.viewer.content import ByteCache, ResultsApi


def main(arguments: list[str] | None = None) -> None:
    """Print seconds of the list, also as a multiple of a bare look at every file in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slides", type=int, default=5000)
    parser.add_argument("--models", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results = _make(folder, options.slides, options.models)
        files = [str(folder / file) for slide in results.slides for file in _files(slide)]
        start = time.perf_counter()
        content = ResultsApi(folder, cache=ByteCache(0))
        opened = time.perf_counter() - start
        times = best_times(
            {"list": content.get_results, "files": lambda: [os.stat(file) for file in files]},  # noqa: PTH116
            options.repeats,
        )
    print(f"viewer, list of {options.slides:,} slides x {options.models} models")
    print(f"  results.json    {opened:6.2f} s, read once")
    print(f"  {len(files):,} files    {times['files']:6.2f} s to look whether each is there")
    print(f"  list            {times['list']:6.2f} s ({times['list'] / times['files']:.1f} x)")


def _make(folder: Path, slides: int, models: int) -> Results:
    names = [f"model-{number}" for number in range(models)]
    results = Results(
        ("a", "b"),
        tuple(ModelInfo(name, "00") for name in names),
        tuple(_slide(f"slide-{number}", names) for number in range(slides)),
    )
    for kind in ("slides", "truth", "thumbnails", *(f"scores/{name}" for name in names)):
        (folder / kind).mkdir(parents=True)
    for slide in results.slides:
        for file in _files(slide):
            (folder / file).touch()
    write_results(folder, results)
    return results


def _slide(name: str, models: list[str]) -> SlideResult:
    return SlideResult(
        name,
        tuple(
            StoredPrediction(each, (0.25, 0.75), scores=f"scores/{each}/{name}.npz")
            for each in models
        ),
        label="a",
        size=(100_000, 80_000),
        mpp=0.25,
        slide=f"slides/{name}.tif",
        thumbnail=f"thumbnails/{name}.png",
        truth=f"truth/{name}.geojson",
    )


def _files(slide: SlideResult) -> Iterator[str]:
    found = (slide.slide, slide.thumbnail, slide.truth, *(each.scores for each in slide.answers))
    return (file for file in found if file is not None)


if __name__ == "__main__":
    main()
