"""``sacmil convert``: other tools' bags, tables of cells, and official checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from sacmil.cli import _options as opt
from sacmil.cli._messages import name_options
from sacmil.errors import suggest_names

_CELLS = "cells"
_CELL_OPTIONS = ("image", "patient", "x", "y", "type", "markers", "arcsinh", "like")
_MAX_NAMES = 8


def _parse_options(
    ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, Any]:
    import yaml

    from sacmil.yaml_values import read_yaml

    options = {}
    for text in values:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{text!r}; expected key=value")
        try:
            options[name] = read_yaml(value)
        except yaml.YAMLError as error:
            raise click.BadParameter(
                f"{text!r}; expected a YAML value after the equals sign"
            ) from error
    return options


@click.command()
@click.argument("items", nargs=-1, required=True, type=opt.EXISTING)
@opt.option(
    "--out",
    "Folder for native bags and a table of them; with --model, the model folder.",
    opt.PATH,
    required=True,
)
@opt.option("--from", "Layout of all ITEMS, or cells.  [default: detected]", to="layout")
@opt.option("--patch-size", "Tile side in level-0 pixels, or in the unit of cells.", opt.POSITIVE)
@opt.option("--mpp", "Microns per level-0 pixel, or per unit of cells.", opt.POSITIVE)
@opt.option("--stride", "Level-0 pixels between tiles.  [default: patch size]", opt.POSITIVE)
@opt.option("--coords", "Coordinate file, or a folder with one per slide.", opt.EXISTING)
@opt.option("--dtype", "Type of the features.", opt.DTYPES)
@opt.flag("--overwrite", "Replace existing output.")
@opt.option("--limit", "Seconds per file.", opt.POSITIVE, to="limit_s", default=300.0)
@opt.option("--workers", "Files converted at once.", opt.COUNT)
@opt.option("--image", "Cells: column of the image, or several.", metavar="A[,B]")
@opt.option("--patient", "Cells: column of the patient.")
@opt.option("--x", "Cells: column of the position.")
@opt.option("--y", "Cells: column of the position.")
@opt.option("--type", "Cells: column of the type.")
@opt.option("--markers", "Cells: columns, or variables of .h5ad.", metavar="A,B,…")
@opt.option("--arcsinh", "Cells: divide markers by this, and take arcsinh.", opt.POSITIVE)
@opt.option("--like", "Cells: bags whose features and sizes to use.", opt.EXISTING)
@opt.option("--model", "Convert an official checkpoint of this model.")
@opt.repeatable(
    "-o", "Model option as key=value; repeatable.", to="options", callback=_parse_options
)
def command(
    items: tuple[Path, ...], out: Path, model: str | None, options: dict[str, Any], **given: Any
) -> None:
    """Convert ITEMS: bags, tables of cells, or one checkpoint with --model."""
    if model is None and options:
        raise click.UsageError("-o sets options of --model; leave it out for bags")
    of_cells = {name: given.pop(name) for name in _CELL_OPTIONS}
    if model is None and _are_cells(items, given["layout"]):
        _convert_cells(items, out, given, of_cells)
        return
    opt.reject_given(of_cells, "{} is for tables of cells; add --from cells, or leave it out")
    if model is None:
        _convert_bags(items, out, given)
    else:
        _convert_model(items, out, model, options, given)


def _are_cells(items: tuple[Path, ...], layout: str | None) -> bool:
    if layout is not None:
        return layout == _CELLS
    from sacmil.workflows.convert_cells import is_cell_table

    return all(item.is_file() and is_cell_table(item) for item in items)


def _convert_cells(
    items: tuple[Path, ...], out: Path, given: dict[str, Any], columns: dict[str, Any]
) -> None:
    from sacmil.cli._progress import progress_bars
    from sacmil.workflows.convert_cells import SLIDES_CSV, convert_cells

    unused = {name: given[name] for name in ("stride", "coords", "workers")}
    opt.reject_given(unused, "{} is for bags; leave it out for cells")
    shared = {name: given[name] for name in ("patch_size", "mpp", "dtype", "overwrite", "limit_s")}
    columns["image"] = columns["image"] or ()
    columns["markers"] = columns["markers"] or ()
    with progress_bars() as progress:
        made = convert_cells(items, out, on_progress=progress, **shared, **columns)
    names = ", ".join(made.features[:_MAX_NAMES])
    more = f" and {len(made.features) - _MAX_NAMES} more" if len(made.features) > _MAX_NAMES else ""
    click.echo(f"{len(made.counts):,} images with {sum(made.counts.values()):,} cells")
    click.echo(f"Features: {names}{more}")
    click.echo(f"Side of a cell's tile: {made.patch_size:.4g}, {_explain_size(given, columns)}")
    click.echo(f"Table of the images, for a column of labels: {made.out / SLIDES_CSV}")


def _explain_size(given: dict[str, Any], columns: dict[str, Any]) -> str:
    if columns["like"] is not None:
        return "as in the bags of --like"
    return "as given" if given["patch_size"] else "the median distance of neighbors"


def _convert_bags(items: tuple[Path, ...], out: Path, given: dict[str, Any]) -> None:
    from sacmil.cli._progress import progress_bars
    from sacmil.formats import list_formats
    from sacmil.workflows.convert import CONVERT_CSV, convert

    if given["layout"] not in (None, *list_formats()):
        known = suggest_names(given["layout"], [_CELLS, *list_formats()])
        raise click.UsageError(f"--from {given['layout']}; {known}")
    with progress_bars() as progress:
        summary = convert(items, out, on_progress=progress, **given)
    for row in summary.rows:
        if row.status == "failed":
            click.echo(f"Error: {name_options(row.reason)}", err=True)
        elif row.reason:
            click.echo(f"Warning: {row.file}: {name_options(row.reason)}", err=True)
    count = summary.counts
    click.echo(
        f"{count['converted']} converted, {count['present']} already there, "
        f"{count['failed']} failed: {summary.out / CONVERT_CSV}"
    )
    if count["failed"]:
        raise SystemExit(1)


def _convert_model(
    items: tuple[Path, ...], out: Path, model: str, options: dict[str, Any], given: dict[str, Any]
) -> None:
    from sacmil.workflows.convert import convert_model

    if len(items) != 1:
        raise click.UsageError("--model converts one checkpoint; expected one file as ITEM")
    for_bags = ("layout", "patch_size", "mpp", "stride", "coords", "dtype")
    unused = {name: given[name] for name in for_bags}
    opt.reject_given(unused, "{} is for bags; leave it out with --model")
    overwrite = given["overwrite"]
    loaded = convert_model(items[0], out, model=model, options=options, overwrite=overwrite)
    for title, options in (
        ("Read from the file", loaded.from_checkpoint),
        ("Given by -o", loaded.from_caller),
        ("Assumed, not stored in the file; change with -o", loaded.assumed),
    ):
        if options:
            pairs = (f"{name}={json.dumps(value)}" for name, value in options.items())
            click.echo(f"{title}: {', '.join(pairs)}")
    click.echo("The file does not contain class names.")
    for note in loaded.notes:
        click.echo(f"Note: {name_options(note)}")
    click.echo(f"1 converted: {out}")
