"""From CSV files to docs/results.md: tables with intervals, ranks, pictures.

Only what stands between ``<!-- begin STUDY -->`` and ``<!-- end STUDY -->`` is written; the words
around it are written by people. A study that has been confirmed has a block of its own,
``STUDY.confirm``; ``ranks`` is about all of them.

Run: python -m benchmarks.accuracy.report
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from benchmarks.accuracy import _ranks
from benchmarks.accuracy._figures import lines_of, told
from benchmarks.accuracy._pages import block
from benchmarks.accuracy._study import RESULTS
from benchmarks.blocks import renew

PAGE = Path(__file__).parents[2] / "docs" / "results.md"


def main(arguments: list[str] | None = None) -> None:
    """Write every block of the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of CSV files")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    fill = from_results(options.results, options.page.parent / "images" / "results")
    print(f"{options.page}: {renew(options.page, fill)} blocks")


def from_results(results: Path, pictures: Path) -> Callable[[str], str]:
    """What fills a block: the figures that the results folder holds now."""

    def fill(study: str) -> str:
        if study == "ranks":
            return _ranks.block(results, pictures, f"images/{pictures.name}")
        if study.endswith(".confirm") and not told(results / f"{study}.json"):
            return "_The confirmatory run has not been finished; it is told when it is._"
        return block(study, lines_of(results, study), pictures, f"images/{pictures.name}")

    return fill


if __name__ == "__main__":
    main()
