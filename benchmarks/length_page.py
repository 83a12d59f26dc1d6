"""From benchmarks/results/length.csv to the tables and pictures of docs/performance.md.

Run: python -m benchmarks.length_page
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.blocks import renew
from benchmarks.length import RESULTS, Row, read

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"
BLOCK = "length"
PICTURE = "images/length.png"
OURS, PEER = "sac_mil", "transmil"
HEADINGS = {"answer": "An answer", "step": "A training step (forward and backward)"}
Figures = Mapping[tuple[str, int], Row]
"""By name and length."""


def main(arguments: list[str] | None = None) -> None:
    """Write the block of the page and its picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    rows = read(options.results)
    if rows:
        draw(rows, options.page.parent / PICTURE)
    print(f"{options.page}: {renew(options.page, lambda _: render_tables(rows))} block")


def render_tables(rows: Sequence[Row]) -> str:
    """All tables, in Markdown."""
    if not rows:
        return "_Not measured yet._"
    parts = [
        table(rows, what, precision)
        for precision in dict.fromkeys(row.precision for row in rows)
        for what in HEADINGS
        if any((row.what, row.precision) == (what, precision) for row in rows)
    ]
    sources = {f"{row.device}, {row.versions}, {row.date}: `{row.command}`" for row in rows}
    picture = f"![Time and memory against the length of a bag]({PICTURE})"
    return "\n\n".join([*parts, picture, "Measured on " + "; ".join(sorted(sources)) + "."])


def table(rows: Sequence[Row], what: str, precision: str) -> str:
    """Milliseconds of every contestant at every length, and what they are to the floor."""
    found = {
        (row.name, row.instances): row
        for row in rows
        if (row.what, row.precision) == (what, precision)
    }
    names = list(dict.fromkeys(name for name, _ in found))
    lengths = sorted({n for _, n in found})
    lines = [
        f"**{HEADINGS[what]}, {precision}**: milliseconds (times the floor; most gigabytes held)",
        "",
        "| | " + " | ".join(f"{n:,}" for n in lengths) + " |",
        "| --- |" + " --- |" * len(lengths),
        "| _floor_ | " + " | ".join(_floor(found, n) for n in lengths) + " |",
        *(
            f"| {name} | " + " | ".join(_cell(found.get((name, n))) for n in lengths) + " |"
            for name in names
        ),
    ]
    against = [f"{n:,}: {ratio:.0f} x" for n in lengths if (ratio := _ratio(found, n))]
    if against:
        lines += ["", f"{PEER} takes so many times as long as {OURS}: {', '.join(against)}."]
    return "\n".join(lines)


def _floor(found: Figures, n: int) -> str:
    return _short(next(row.floor for (_, m), row in found.items() if m == n))


def _cell(row: Row | None) -> str:
    if row is None:
        return ""
    ratio = row.milliseconds / row.floor
    return f"{_short(row.milliseconds)} ({_short(ratio)} x; {row.gigabytes:.2f})"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _ratio(found: Figures, n: int) -> float | None:
    ours, peer = found.get((OURS, n)), found.get((PEER, n))
    return peer.milliseconds / ours.milliseconds if ours and peer else None


def draw(rows: Sequence[Row], file: Path) -> None:
    """Time and memory against length, an answer above and a step below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    shown = [row for row in rows if row.precision == rows[0].precision]
    for line, what in zip(axes, HEADINGS, strict=True):
        for axis, field in zip(line, ("milliseconds", "gigabytes"), strict=True):
            for name in dict.fromkeys(row.name for row in shown):
                own = sorted(
                    (row.instances, getattr(row, field))
                    for row in shown
                    if (row.name, row.what) == (name, what)
                )
                if own:
                    axis.plot(*zip(*own, strict=True), marker="o", markersize=3, label=name)
            axis.set(xscale="log", yscale="log", xlabel="instances", ylabel=field, title=what)
            axis.grid(alpha=0.3)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.savefig(file, dpi=100)


if __name__ == "__main__":
    main()
