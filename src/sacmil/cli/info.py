"""``sacmil info``: describe a bag or a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli import _options as opt
from sacmil.cli._messages import exit_with_errors

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_SEPARATORS = {"slide_size": " x ", "x": " to ", "y": " to "}
"""Separators of the values of a list; a comma elsewhere."""


@click.command()
@click.argument("files", nargs=-1, required=True, type=opt.PATH)
@opt.flag("--json", "Print one JSON object per file.", to="as_json")
def command(files: tuple[Path, ...], *, as_json: bool) -> None:
    """Describe each of FILES: bags or model folders."""
    from sacmil.errors import SacMILError

    errors = []
    for file in files:
        try:
            facts = _describe_path(file)
            click.echo(json.dumps(facts) if as_json else _format_table(facts))
        except SacMILError as error:
            errors.append(error)
    exit_with_errors(errors)


def _describe_path(file: Path) -> dict[str, Any]:
    try:
        is_folder = file.is_dir()
    except OSError:  # no permission, name too long: reading it as a bag reports which
        is_folder = False
    return _describe_model(file) if is_folder else _describe_bag(file)


def _describe_bag(file: Path) -> dict[str, Any]:
    from sacmil.formats import read_bag

    bag = read_bag(file)
    low, high = bag.coords.min(axis=0).tolist(), bag.coords.max(axis=0).tolist()
    return {
        "file": str(file),
        "what": "bag",
        "slide": bag.slide_id,
        "instances": len(bag),
        "features": f"{bag.dim} x {bag.features.dtype}",
        "encoder": " ".join(filter(None, bag.encoder)) if bag.encoder else None,
        "patch_size": f"{bag.patch_size:g} level-0 pixels",
        "patch_size_um": None if bag.patch_size_um is None else round(bag.patch_size_um, 6),
        "tile_px": bag.tile_px,
        "mpp": bag.mpp,
        "slide_size": None if bag.slide_size is None else list(bag.slide_size),
        "x": [low[0], high[0]],
        "y": [low[1], high[1]],
        "labels": None if bag.labels is None else _count_labels(bag.labels),
    }


def _describe_model(folder: Path) -> dict[str, Any]:
    from sacmil.card import CARD_FILE, read_card
    from sacmil.errors import InputError
    from sacmil.formats._registry import list_bag_files

    if not (folder / CARD_FILE).exists() and (bags := sorted(list_bag_files(folder))):
        raise InputError(
            f"{folder}: is a folder of {len(bags)} bags; expected one bag, such as {bags[0]}"
        )
    return {"file": str(folder), "what": "model"} | read_card(folder).to_dict()


def _count_labels(labels: npt.NDArray[np.integer]) -> dict[str, int]:
    import numpy as np

    values, counts = np.unique(labels, return_counts=True)
    return dict(zip(map(str, values.tolist()), counts.tolist(), strict=True))


def _format_table(facts: dict[str, Any]) -> str:
    known = [(key, value) for key, value in facts.items() if value is not None]
    return "\n".join(f"{key:<16}{_format_value(key, value)}" for key, value in known)


def _format_value(key: str, value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}={inner}" for name, inner in value.items()) or "-"
    if isinstance(value, list):
        return _SEPARATORS.get(key, ", ").join(map(str, value))
    return str(value)
