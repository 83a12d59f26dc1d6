"""From CSV files to docs/results.md: tables with intervals, ranks, pictures.

Only what stands between ``<!-- begin STUDY -->`` and ``<!-- end STUDY -->`` is written; the words
around it are written by people. A study that has been confirmed has a block of its own,
``STUDY.confirm``.

Run: python -m benchmarks.accuracy.report
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from benchmarks.accuracy._lines import Lines
from benchmarks.accuracy._pages import block
from benchmarks.accuracy._study import RESULTS
from sacmil.atomic import whole_file

PAGE = Path(__file__).parents[2] / "docs" / "results.md"
_BLOCK = re.compile(r"(<!-- begin ([\w.]+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def main(arguments: list[str] | None = None) -> None:
    """Write every block of the page anew."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of CSV files")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    text = options.page.read_text(encoding="utf-8")
    written = renewed(text, options.results, options.page.parent / "images" / "results")
    with whole_file(options.page) as partial:
        partial.write_text(written, encoding="utf-8")
    print(f"{options.page}: {len(_BLOCK.findall(text))} blocks")


def renewed(text: str, results: Path, pictures: Path) -> str:
    """The page with the figures that the results folder holds now."""

    def fill(match: re.Match[str]) -> str:
        study = match.group(2)
        lines = Lines(results / f"{study}.csv").lines
        held = block(study, lines, pictures, f"images/{pictures.name}")
        return f"{match.group(1)}\n{held}\n\n{match.group(3)}"

    return _BLOCK.sub(fill, text)


if __name__ == "__main__":
    main()
