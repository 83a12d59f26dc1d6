"""``sacmil extract``: make bags from slides."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli._option_names import name_options

if TYPE_CHECKING:
    from sacmil.encoders import Encoder
    from sacmil.extraction import ExtractionRow, ExtractionSettings


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
@click.option("--mag", type=float, help="Objective power instead of --mpp: 20 is 0.5, 40 is 0.25.")
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
    "--min-tissue", type=float, help="Minimum share of tissue in a tile.  [default: 0.25]"
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
@click.option("--slide-limit", default=7200.0, show_default=True, help="Seconds per slide.")
@click.option("--tile-limit", default=60.0, show_default=True, help="Seconds per tile.")
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
    from sacmil.slides.search import find_slides

    keep_freed_memory()  # before anything imports torch
    settings = _parse_settings(options)
    _check_call(options)
    found = find_slides(
        slides,
        exclude=[out / "tissue"],
        include_names=options["include"],
        exclude_names=options["exclude"],
    )
    for name in settings.resolutions.find_unmatched(found):
        click.echo(f"Warning: --slide-mpp: no slide is named {name}", err=True)
    with show_extraction_progress(len(found)) as progress:
        rows = _extract(found, out, settings, options, progress)
    _print_results(rows, out)


def _check_call(options: dict[str, Any]) -> None:
    """Reject wrong options before searching for slides."""
    from sacmil.encoders import describe_encoder
    from sacmil.errors import EncoderError, suggest_names
    from sacmil.slides.readers import list_readers

    if options["address"] and options["engine"] != "ray":
        raise click.UsageError("--address names a Ray cluster; add --engine ray")
    if options["until"] and options["engine"] == "ray":
        raise click.UsageError("--until runs on this machine only; leave --engine ray out")
    if options["gpus"]:
        _parse_gpus(options["gpus"])
    reader = options["reader"]
    if reader is not None and reader not in list_readers():
        raise click.UsageError(f"--reader {reader}; {suggest_names(reader, list_readers())}")
    try:
        describe_encoder(options["encoder"])
    except EncoderError as error:
        raise click.UsageError(name_options(error)) from error


def _parse_settings(options: dict[str, Any]) -> ExtractionSettings:
    from sacmil.errors import OptionError, ResolutionError

    try:
        return _make_settings(options)
    except (OptionError, ResolutionError) as error:
        raise click.UsageError(name_options(error)) from error


def _make_settings(options: dict[str, Any]) -> ExtractionSettings:
    from sacmil.extraction import ExtractionSettings
    from sacmil.slides.resolution import SlideResolutions, magnification_to_mpp
    from sacmil.slides.tiling import TileSpec

    if options["mpp"] is not None and options["mag"] is not None:
        raise click.UsageError("--mpp and --mag both set the resolution; give one of them")
    tile_options: dict[str, Any] = {}
    if options["mpp"] is not None:
        tile_options["mpp"] = _parse_mpp(options["mpp"])
    if options["mag"] is not None:
        tile_options["mpp"] = magnification_to_mpp(options["mag"])
    if options["min_tissue"] is not None:
        tile_options["min_tissue"] = options["min_tissue"]
    slide_mpp = options["slide_mpp"]
    if slide_mpp and options["mpp"] == "none":
        raise click.UsageError("--mpp none counts in pixels of the image; leave --slide-mpp out")
    return ExtractionSettings(
        tiles=TileSpec(
            patch_size=_parse_patch_size(
                options["patch_size"], resolution_given="mpp" in tile_options
            ),
            overlap=options["overlap"],
            **tile_options,
        ),
        tissue_mode=options["tissue_mode"],
        resolutions=SlideResolutions.parse(slide_mpp) if slide_mpp else SlideResolutions(),
        allow_upsampling=options["allow_upsampling"],
        reader=options["reader"],
        drop_white=options["drop_white"],
        drop_blurred=options["drop_blurred"],
        dtype=options["dtype"],
        slide_limit_s=options["slide_limit"],
        tile_limit_s=options["tile_limit"],
    )


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


def _extract(
    found: list[Path],
    out: Path,
    settings: ExtractionSettings,
    options: dict[str, Any],
    progress: Any,
) -> list[ExtractionRow]:
    from sacmil.extraction import ExtractionResources, extract, extract_on_ray

    names = ("workers", "threads", "batch_size")
    resources = ExtractionResources(**{name: options[name] for name in names})
    shared = {"settings": settings, "resources": resources, "progress": progress}
    if options["until"]:
        return extract(found, out, until=options["until"], **shared)
    encoder = {name: options[name] for name in ("weights", "download")}
    if options["engine"] == "ray":
        gpus = len(_parse_gpus(options["gpus"]))
        target = {"address": options["address"], "gpus": gpus}
        return extract_on_ray(found, out, options["encoder"], encoder, **target, **shared)
    return extract(
        found, out, encoders=_load_encoders(options["encoder"], encoder, options), **shared
    )


def _load_encoders(
    name: str, options: dict[str, Any], all_options: dict[str, Any]
) -> list[Encoder]:
    from sacmil.encoders import load_encoder

    devices = [f"cuda:{number}" for number in _parse_gpus(all_options["gpus"])] or ["cpu"]
    return [load_encoder(name, device=device, **options) for device in devices]


def _parse_gpus(given: str | None) -> list[int]:
    """Return the numbers of the given GPUs, or of all GPUs if none are given."""
    if given is None:
        try:
            import torch
        except ModuleNotFoundError:
            return []
        return list(range(torch.cuda.device_count()))
    try:
        return [int(number) for number in given.split(",") if number.strip()]
    except ValueError:
        raise click.UsageError(f"--gpus {given!r}; expected numbers such as 0,1") from None


def _print_results(rows: list[ExtractionRow], out: Path) -> None:
    from sacmil.cli._failures import print_failures

    failed = [row for row in rows if row.status == "failed"]
    folders = sorted({str(out / Path(row.bag).parent) for row in rows if row.bag})
    click.echo(f"{len(rows) - len(failed)} of {len(rows)} slides done{_format_folders(folders)}")
    _print_tissue_modes(rows)
    if failed:
        print_failures({row.slide_id: row.reason for row in failed}, out / "extraction.csv")
        raise SystemExit(1)


def _print_tissue_modes(rows: list[ExtractionRow]) -> None:
    """Print how tissue was found, unless it was detected on every slide."""
    counts = Counter(row.tissue for row in rows if row.tissue)
    words = {"detect": "detected", "all": "whole image", "outline": "outline in the folder"}
    if counts.keys() - {"detect"}:
        click.echo("tissue: " + ", ".join(f"{words[mode]} {counts[mode]}" for mode in counts))


def _format_folders(folders: list[str]) -> str:
    return f", bags in {', '.join(folders)}" if folders else ""
