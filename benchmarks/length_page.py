"""From benchmarks/results/length.csv to the tables of benchmarks/README.md and a picture.

Run: python -m benchmarks.length_page
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from benchmarks.blocks import renew
from benchmarks.length import CONTESTANTS, RESULTS, ROOT, Row, read

PAGE = ROOT / "benchmarks" / "README.md"
PICTURE = ROOT / "docs" / "images" / "length.png"
OURS, PEER = "sac_mil", "transmil"
HEADINGS = {"prediction": "Prediction", "step": "Training step (forward and backward)"}
Measured = Mapping[tuple[str, int], Row]
"""By name and length."""


def main(arguments: list[str] | None = None) -> None:
    """Write the block of the page and its picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    options = parser.parse_args(arguments)
    rows = read(options.results)
    if rows:
        draw(rows, options.picture)
    link = Path(os.path.relpath(options.picture, options.page.parent)).as_posix()
    blocks = renew(options.page, lambda _: render_tables(rows, link))
    print(f"{options.page}: {blocks} block")


def render_tables(rows: Sequence[Row], picture: str) -> str:
    """All tables, in Markdown.

    Args:
        rows: what was measured.
        picture: its address, seen from the page.
    """
    if not rows:
        return "_Not measured yet._"
    parts = [
        f"**{title}, {precision}, {unit}**\n\n{render(_select(rows, what, precision))}"
        for precision in dict.fromkeys(row.precision for row in rows)
        for what, title in HEADINGS.items()
        for unit, render in (("milliseconds", render_times), ("peak gigabytes", render_memory))
        if _select(rows, what, precision)
    ]
    image = f"![Time and memory against the length of a bag]({picture})"
    return "\n\n".join([*parts, image, render_sources(rows)])


def _select(rows: Sequence[Row], what: str, precision: str) -> Measured:
    return {
        (row.name, row.instances): row
        for row in rows
        if (row.what, row.precision) == (what, precision)
    }


def render_times(found: Measured) -> str:
    """Milliseconds at every length, as a multiple of the bound too."""
    lengths = _list_lengths(found)
    bounds = {n: row.bound for (_, n), row in reversed(found.items())}  # of the first run
    lines = [
        ["_bound_", *(_short(bounds[n]) for n in lengths)],
        *_render_rows(
            found,
            lambda row: f"{_short(row.milliseconds)} ({_short(row.milliseconds / row.bound)} x)",
        ),
    ]
    ratios = [_compare_peer(found, n) for n in lengths]
    if any(ratios):
        lines.append([f"_{PEER} / {OURS}_", *ratios])
    return _render_table(lengths, lines)


def _render_time(row: Row) -> str:
    return f"{_short(row.milliseconds)} ({_short(row.milliseconds / row.bound)} x)"


def render_memory(found: Measured) -> str:
    """Peak gigabytes at every length."""
    return _render_table(
        _list_lengths(found), _render_rows(found, lambda row: f"{row.gigabytes:.2f}")
    )


def render_sources(rows: Sequence[Row]) -> str:
    """Where, when and by which commands the rows were measured."""
    sources = sorted({(row.device, row.versions, row.date, f"`{row.command}`") for row in rows})
    lines = ["| device | versions | date | command |", "| --- | --- | --- | --- |"]
    return "\n".join([*lines, *(f"| {' | '.join(source)} |" for source in sources)])


def _list_lengths(found: Measured) -> list[int]:
    return sorted({n for _, n in found})


def _render_rows(found: Measured, cell: Callable[[Row], str]) -> list[list[str]]:
    """A row per contestant, in the order of the benchmark."""
    order = list(CONTESTANTS)
    names = sorted({name for name, _ in found}, key=order.index)
    lengths = _list_lengths(found)
    return [
        [name, *(cell(found[name, n]) if (name, n) in found else "" for n in lengths)]
        for name in names
    ]


def _render_table(lengths: Sequence[int], lines: Sequence[Sequence[str]]) -> str:
    head = [["tiles", *(f"{n:,}" for n in lengths)], ["---"] * (len(lengths) + 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [*head, *lines])


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _compare_peer(found: Measured, n: int) -> str:
    ours, peer = found.get((OURS, n)), found.get((PEER, n))
    return f"{peer.milliseconds / ours.milliseconds:.1f} x" if ours and peer else ""


def draw(rows: Sequence[Row], file: Path) -> None:
    """Time and memory against length, a prediction above and a training step below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 8), layout="constrained")
    axes = figure.subplots(2, 2)
    shown = [row for row in rows if row.precision == rows[0].precision]
    for line, (what, title) in zip(axes, HEADINGS.items(), strict=True):
        for axis, field in zip(line, ("milliseconds", "gigabytes"), strict=True):
            for number, name in enumerate(CONTESTANTS):
                own = sorted(
                    (row.instances, getattr(row, field))
                    for row in shown
                    if (row.name, row.what) == (name, what)
                )
                if own:
                    axis.plot(
                        *zip(*own, strict=True), "o-", color=f"C{number}", markersize=3, label=name
                    )
            axis.set(
                xscale="log", yscale="log", xlabel="tiles in the bag", ylabel=field, title=title
            )
            axis.grid(alpha=0.3)
    figure.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=5)
    figure.savefig(file, dpi=100, metadata={"Software": None})


if __name__ == "__main__":
    main()
