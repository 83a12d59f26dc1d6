"""``sacmil extract``: make bags from slides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sacmil.extraction import ExtractionRow, ExtractionSummary


@click.command()
@click.argument("slides", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for bags, tiles, outlines and extraction.csv.",
)
@click.option(
    "--encoder", default="lite0", show_default=True, help="Encoder of tiles; see sacmil encoders."
)
@click.option(
    "--weights",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with the encoder's weights.",
)
@click.option("--download", is_flag=True, help="Download the encoder's weights.")
@click.option(
    "--include",
    multiple=True,
    metavar="PATTERN",
    help="Only slides named like '*.bmp'; repeatable.",
)
@click.option(
    "--exclude",
    multiple=True,
    metavar="PATTERN",
    help="Skip slides named like '*_anno*'; repeatable.",
)
@click.option(
    "--mpp",
    metavar="X|none",
    help="Microns per pixel of tiles; none: pixels of the image.  [default: 0.5]",
)
@click.option(
    "--mag",
    "magnification",
    type=float,
    help="Objective power instead of --mpp: 20 is 0.5, 40 is 0.25.",
)
@click.option(
    "--patch-size",
    default="256",
    show_default=True,
    metavar="N[px]",
    help="Tile side in pixels at --mpp; with --mpp none, in pixels of the image.",
)
@click.option(
    "--overlap", default=0, show_default=True, help="Pixels shared by neighbouring tiles."
)
@click.option(
    "--slide-mpp",
    metavar="X|FILE.csv",
    help="Microns per pixel of the slides, or a table with columns wsi,mpp.",
)
@click.option("--allow-upsampling", is_flag=True, help="Allow tiles finer than the scan.")
@click.option(
    "--min-tissue", default=0.25, show_default=True, help="Minimum share of tissue in a tile."
)
@click.option(
    "--tissue",
    "tissue_mode",
    type=click.Choice(["auto", "detect", "all"]),
    default="auto",
    show_default=True,
    help="all: the whole image; auto: the same for small plain images mostly covered by tissue.",
)
@click.option("--drop-white", is_flag=True, help="Skip tiles that are mostly white.")
@click.option("--drop-blurred", is_flag=True, help="Skip tiles that are out of focus.")
@click.option(
    "--until",
    type=click.Choice(["tissue", "tiles"]),
    help="Stop after this step; a later run reuses the files, edited outlines too.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float16", "float32"]),
    default="float16",
    show_default=True,
    help="Type of the features.",
)
@click.option("--reader", help="Slide reader.  [default: the first that opens the slide]")
@click.option("--gpus", metavar="0,1", help="GPU numbers.  [default: all; without a GPU, the CPU]")
@click.option(
    "--batch-size",
    default=0,
    type=click.IntRange(0),
    help="Tiles encoded at once.  [default: 32, GPU 256]",
)
@click.option(
    "--workers",
    default=0,
    type=click.IntRange(0),
    help="Processes that read slides.  [default: by cores]",
)
@click.option(
    "--threads",
    default=0,
    type=click.IntRange(0),
    help="Batches encoded in parallel.  [default: by cores]",
)
@click.option(
    "--slide-limit", "slide_limit_s", default=7200.0, show_default=True, help="Seconds per slide."
)
@click.option(
    "--tile-limit", "tile_limit_s", default=60.0, show_default=True, help="Seconds per tile."
)
@click.option(
    "--engine",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Extract on this machine or on Ray.",
)
@click.option(
    "--address",
    help="Ray cluster to use.  [default: RAY_ADDRESS, a running one, or a new one]",
)
def command(slides: tuple[Path, ...], out: Path, **options: Any) -> None:
    """Make a bag of every slide in SLIDES: files, or folders, which are searched recursively.

    If a slide fails, the reason is printed and written to OUT/extraction.csv, and the other slides
    continue. Run the command again to do only what is missing.
    """
    from sacmil.cli._extraction_progress import show_extraction_progress
    from sacmil.environment import keep_freed_memory

    keep_freed_memory()  # before anything imports torch
    from sacmil.extraction import extract

    summary = extract(slides, out, progress=show_extraction_progress, **_parse_options(options))
    _print_results(summary)


def _parse_options(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options as arguments of the function, which has its own default of ``mpp``."""
    mpp, gpus = options.pop("mpp"), options.pop("gpus")
    resolution_given = mpp is not None or options["magnification"] is not None
    size = _parse_patch_size(options["patch_size"], resolution_given=resolution_given)
    arguments = options | {"patch_size": size, "gpus": _parse_gpus(gpus)}
    return arguments if mpp is None else arguments | {"mpp": _parse_mpp(mpp)}


def _parse_mpp(text: str) -> float | None:
    if text == "none":
        return None
    try:
        return float(text)
    except ValueError:
        raise click.UsageError(
            f"--mpp {text!r}; expected µm per pixel such as 0.5, or none to count in pixels"
        ) from None


def _parse_patch_size(text: str, *, resolution_given: bool) -> int:
    number = text.removesuffix("px")
    try:
        size = int(number)
    except ValueError:
        raise click.UsageError(
            f"--patch-size {text!r}; expected whole pixels such as 256 or 115px"
        ) from None
    if number != text and not resolution_given:
        raise click.UsageError(
            f"--patch-size {text} needs a resolution; add --mpp none for pixels of the "
            "image, or --mpp 0.5 for pixels of 0.5 µm"
        )
    return size


def _parse_gpus(text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(number) for number in text.split(",") if number.strip()]
    except ValueError:
        raise click.UsageError(f"--gpus {text!r}; expected numbers such as 0,1") from None


def _print_results(summary: ExtractionSummary) -> None:
    from sacmil.cli._failures import print_failures

    folders = sorted({str(bag.parent) for bag in summary.bags.values()})
    done, total = len(summary.done), len(summary.rows)
    click.echo(f"{done} of {total} slides done{_format_folders(folders)}")
    _print_tissue_modes(summary.rows)
    if summary.failures:
        print_failures(summary.failures, summary.out / "extraction.csv")
        raise SystemExit(1)


def _print_tissue_modes(rows: Sequence[ExtractionRow]) -> None:
    """Print how tissue was found, unless it was detected on every slide."""
    counts = Counter(row.tissue for row in rows if row.tissue)
    words = {"detect": "detected", "all": "whole image", "outline": "outline in the folder"}
    if counts.keys() - {"detect"}:
        click.echo("tissue: " + ", ".join(f"{words[mode]} {counts[mode]}" for mode in counts))


def _format_folders(folders: list[str]) -> str:
    return f", bags in {', '.join(folders)}" if folders else ""
