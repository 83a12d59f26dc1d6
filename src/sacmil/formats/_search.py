"""Which files of a folder are bags, judged by their names alone: opening them may crash."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from sacmil.errors import FormatError
from sacmil.formats._registry import list_suffixes

_SIDE_FOLDERS = frozenset(
    {"patches", "tiles", "coords", "labels", "patch_labels", "inst_labels", "masks", "stitches"}
)
"""Where peers keep what belongs to bags but is none."""


def find_bags(items: Iterable[Path], *, exclude: Path | None = None) -> list[Path]:
    """Every bag among files and folders, folders searched to the bottom.

    Args:
        items: a file is taken as a bag whatever it is called.
        exclude: a folder that is not searched, for it is where results go.
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
    """Every bag below a folder, if any; arguments as those of find_bags."""
    hidden = exclude.resolve() if exclude else None
    known = list_suffixes()
    return [
        file
        for file in folder.rglob("*")
        if file.suffix in known
        and _is_bag(file, folder)
        and (hidden is None or hidden not in _resolve(file).parents)
        and (file.is_file() or _is_broken_link(file))
    ]


def _resolve(file: Path) -> Path:
    """As Path.resolve, which raises for a link to itself before Python 3.13."""
    return Path(os.path.realpath(file))


def _is_broken_link(file: Path) -> bool:
    """A link that leads nowhere: told when it is read, not passed over."""
    return file.is_symlink() and not file.exists()


def _is_bag(file: Path, folder: Path) -> bool:
    above = file.relative_to(folder).parent.parts
    if file.name.startswith(".") or file.stem.endswith("_patches"):
        return False
    if any(part in _SIDE_FOLDERS or part.startswith("slide_features_") for part in above):
        return False
    if file.suffix == ".npy":
        return "features" in file.parent.parts
    # CLAM writes features twice; the h5 knows where its tiles are
    return file.suffix != ".pt" or not _get_h5_path(file).is_file()


def _get_h5_path(file: Path) -> Path:
    folder = "h5_files" if file.parent.name == "pt_files" else ""
    return file.parent.parent / folder / f"{file.stem}.h5" if folder else file.with_suffix(".h5")


def _check_unique_ids(bags: list[Path]) -> None:
    seen: dict[str, Path] = {}
    for bag in bags:
        if bag.stem in seen:
            raise FormatError(
                f"{seen[bag.stem]} and {bag} are both called {bag.stem}, the name of their slide; "
                "expected one bag per slide, convert them apart"
            )
        seen[bag.stem] = bag
