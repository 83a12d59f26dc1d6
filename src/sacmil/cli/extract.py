"""``sacmil extract``: make bags from slides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli import _options as opt
from sacmil.cli._messages import print_failures

if TYPE_CHECKING:
    from sacmil.extraction import ExtractionSummary

_TISSUE_WORDS = {"detect": "detected", "all": "whole image", "outline": "outline in the folder"}
"""How tissue was found."""


def _count_option(name: str, text: str) -> Callable[[Any], Any]:
    """Return an option whose default, 0, means the number that the help names."""
    return opt.option(name, text, opt.NATURAL, default=0, show_default=False)


@click.command()
@click.argument("slides", nargs=-1, required=True, type=opt.PATH)
@opt.option(
    "--out", "Folder for bags, tiles, outlines and extraction.csv.", opt.FOLDER, required=True
)
@opt.option("--encoder", "Encoder of tiles; see sacmil encoders.", default="lite0")
@opt.weights_option
@opt.download_option
@opt.repeatable("--include", "Only slides named like '*.bmp'; repeatable.", metavar="PATTERN")
@opt.repeatable("--exclude", "Skip slides named like '*_anno*'; repeatable.", metavar="PATTERN")
@opt.option(
    "--mpp",
    "Microns per pixel of tiles; none: pixels of the image.  [default: 0.5]",
    metavar="X|none",
)
@opt.option(
    "--mag", "Objective power instead of --mpp: 20 is 0.5, 40 is 0.25.", float, to="magnification"
)
@opt.option(
    "--patch-size",
    "Tile side in pixels at --mpp; with --mpp none, in pixels of the image.",
    default="256",
    metavar="N[px]",
)
@opt.option("--overlap", "Pixels shared by neighbouring tiles.", default=0)
@opt.slide_mpp_option
@opt.flag("--allow-upsampling", "Allow tiles finer than the scan.")
@opt.option("--min-tissue", "Minimum share of tissue in a tile.", default=0.25)
@opt.option(
    "--tissue",
    "all: the whole image; auto: the same for small plain images mostly covered by tissue.",
    ["auto", "detect", "all"],
    to="tissue_mode",
    default="auto",
)
@opt.flag("--drop-white", "Skip tiles that are mostly white.")
@opt.flag("--drop-blurred", "Skip tiles that are out of focus.")
@opt.option(
    "--until",
    "Stop after this step; a later run reuses the files, edited outlines too.",
    ["tissue", "tiles"],
)
@opt.option("--dtype", "Type of the features.", opt.DTYPES, default="float16")
@opt.option("--reader", "Slide reader.  [default: the first that opens the slide]")
@opt.gpus_option("GPU numbers.  [default: all; without a GPU, the CPU]")
@_count_option("--batch-size", "Tiles encoded at once.  [default: 32, GPU 256]")
@_count_option("--workers", "Processes that read slides.  [default: by cores]")
@_count_option("--threads", "Batches encoded in parallel.  [default: by cores]")
@opt.option("--slide-limit", "Seconds per slide.", to="slide_limit_s", default=7200.0)
@opt.option("--tile-limit", "Seconds per tile.", to="tile_limit_s", default=60.0)
@opt.option("--engine", "Extract on this machine or on Ray.", opt.ENGINES, default="local")
@opt.address_option
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
    mpp = options.pop("mpp")
    resolution_given = mpp is not None or options["magnification"] is not None
    size = _parse_patch_size(options["patch_size"], resolution_given=resolution_given)
    arguments = options | {"patch_size": size}
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
