"""``sacmil extract``: make bags from slides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli._messages import print_failures
from sacmil.cli._options import (
    DTYPES,
    ENGINES,
    FOLDER,
    PATH,
    address_option,
    download_option,
    slide_mpp_option,
    weights_option,
)

if TYPE_CHECKING:
    from sacmil.extraction import ExtractionSummary

_TISSUE_WORDS = {"detect": "detected", "all": "whole image", "outline": "outline in the folder"}
"""How tissue was found."""


def _count_option(name: str, text: str) -> Callable[[Any], Any]:
    """Return an option whose default, 0, means the number that the help names."""
    return click.option(name, default=0, show_default=False, type=click.IntRange(0), help=text)


@click.command()
@click.argument("slides", nargs=-1, required=True, type=PATH)
@click.option(
    "--out", required=True, type=FOLDER, help="Folder for bags, tiles, outlines and extraction.csv."
)
@click.option("--encoder", default="lite0", help="Encoder of tiles; see sacmil encoders.")
@weights_option
@download_option
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
    metavar="N[px]",
    help="Tile side in pixels at --mpp; with --mpp none, in pixels of the image.",
)
@click.option("--overlap", default=0, help="Pixels shared by neighbouring tiles.")
@slide_mpp_option
@click.option("--allow-upsampling", is_flag=True, help="Allow tiles finer than the scan.")
@click.option("--min-tissue", default=0.25, help="Minimum share of tissue in a tile.")
@click.option(
    "--tissue",
    "tissue_mode",
    type=click.Choice(["auto", "detect", "all"]),
    default="auto",
    help="all: the whole image; auto: the same for small plain images mostly covered by tissue.",
)
@click.option("--drop-white", is_flag=True, help="Skip tiles that are mostly white.")
@click.option("--drop-blurred", is_flag=True, help="Skip tiles that are out of focus.")
@click.option(
    "--until",
    type=click.Choice(["tissue", "tiles"]),
    help="Stop after this step; a later run reuses the files, edited outlines too.",
)
@click.option("--dtype", type=DTYPES, default="float16", help="Type of the features.")
@click.option("--reader", help="Slide reader.  [default: the first that opens the slide]")
@click.option("--gpus", metavar="0,1", help="GPU numbers.  [default: all; without a GPU, the CPU]")
@_count_option("--batch-size", "Tiles encoded at once.  [default: 32, GPU 256]")
@_count_option("--workers", "Processes that read slides.  [default: by cores]")
@_count_option("--threads", "Batches encoded in parallel.  [default: by cores]")
@click.option("--slide-limit", "slide_limit_s", default=7200.0, help="Seconds per slide.")
@click.option("--tile-limit", "tile_limit_s", default=60.0, help="Seconds per tile.")
@click.option("--engine", type=ENGINES, default="local", help="Extract on this machine or on Ray.")
@address_option
def command(slides: tuple[Path, ...], out: Path, **options: Any) -> None:
    """Make a bag of every slide in SLIDES: files, or folders, which are searched recursively.

    If a slide fails, the reason is printed and written to OUT/extraction.csv, and the other slides
    continue. Run the command again to do only what is missing.
    """
    from sacmil.cli._progress import show_extraction_progress
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
    try:
        return None if text == "none" else float(text)
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
    try:
        return (
            None if text is None else [int(number) for number in text.split(",") if number.strip()]
        )
    except ValueError:
        raise click.UsageError(f"--gpus {text!r}; expected numbers such as 0,1") from None


def _print_results(summary: ExtractionSummary) -> None:
    folders = sorted({str(bag.parent) for bag in summary.bags.values()})
    where = f", bags in {', '.join(folders)}" if folders else ""
    click.echo(f"{len(summary.done)} of {len(summary.rows)} slides done{where}")
    modes = Counter(row.tissue for row in summary.rows if row.tissue)
    if modes.keys() - {"detect"}:
        listed = (f"{_TISSUE_WORDS[mode]} {count}" for mode, count in modes.items())
        click.echo(f"tissue: {', '.join(listed)}")
    if summary.failures:
        print_failures(summary.failures, summary.out / "extraction.csv")
        raise SystemExit(1)
