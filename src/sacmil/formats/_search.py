"""Find the bags in folders by file names only: opening a damaged file may crash."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sacmil.errors import FormatError
from sacmil.formats._registry import list_suffixes

_SIDE_FOLDERS = frozenset(
    {"patches", "tiles", "coords", "labels", "patch_labels", "inst_labels", "masks", "stitches"}
)
"""Folders of other tools for files that belong to bags but are not bags."""


def find_bags(items: Iterable[Path], *, exclude: Path | None = None) -> list[Path]:
    """Return every bag among files and folders; subfolders are searched too.

    Args:
        items: a file counts as a bag whatever its name.
        exclude: a folder that is not searched, such as the output folder.
    """
    found: dict[Path, Path] = {}
    for item in items:
        files = list_bag_files(item, exclude) if item.is_dir() else [item]
        if not files:
            raise FormatError(
                f"{item}: holds no bags ({', '.join(list_suffixes())}); check the path"
            )
        found |= {_resolve(file): file for file in files}
    bags = sorted(found.values())
    _check_unique_ids(bags)
    return bags


def list_bag_files(folder: Path, exclude: Path | None = None) -> list[Path]:
    """Return every bag below a folder, if any; arguments as those of find_bags."""
    excluded = exclude.resolve() if exclude else None
    known = list_suffixes()
    return [
        file
        for file in folder.rglob("*")
        if file.suffix in known
        and _is_bag(file, folder)
        and (excluded is None or excluded not in _resolve(file).parents)
        and (file.is_file() or _is_broken_link(file))
    ]


def _resolve(file: Path) -> Path:
    """Resolve a path; unlike Path.resolve before Python 3.13, a link to itself raises nothing."""
    return Path(os.path.realpath(file))


def _is_broken_link(file: Path) -> bool:
    """Whether the target of a link is missing; the error is raised when the link is read."""
    return file.is_symlink() and not file.exists()


def _is_bag(file: Path, folder: Path) -> bool:
    above = file.relative_to(folder).parent.parts
    if file.name.startswith(".") or file.stem.endswith("_patches"):
        return False
    if any(name in _SIDE_FOLDERS or name.startswith("slide_features_") for name in above):
        return False
    if file.suffix == ".npy":
        return "features" in file.parent.parts
    # CLAM writes features twice; the h5 has the coordinates
    return file.suffix != ".pt" or not _get_h5_path(file).is_file()


def _get_h5_path(file: Path) -> Path:
    folder = "h5_files" if file.parent.name == "pt_files" else ""
    return file.parent.parent / folder / f"{file.stem}.h5" if folder else file.with_suffix(".h5")


def _check_unique_ids(bags: list[Path]) -> None:
    seen: dict[str, Path] = {}
    for bag in bags:
        if bag.stem in seen:
            raise FormatError(
                f"{seen[bag.stem]} and {bag} both have the slide name {bag.stem}; "
                "expected one bag per slide, convert them separately"
            )
        seen[bag.stem] = bag
