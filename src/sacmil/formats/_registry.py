"""Find bags in folders, detect the layout of a file, and read it.

A layout is a public module of this folder with two functions. ``matches(path) -> bool`` is a quick
check of the file and its folder. ``read(path, hints) -> Bag`` uses the hints only for values that
the file does not store. The native layout stores everything and takes no hints. A layout with
file name endings of its own lists them in ``SUFFIXES``, such as ``(".zarr",)``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from types import ModuleType

import sacmil.formats
from sacmil.arguments import check_is_file
from sacmil.bag import Bag
from sacmil.errors import BagError, FormatError, suggest_names
from sacmil.formats import native
from sacmil.formats._files import describe_contents
from sacmil.formats._hints import Hints, apply_hints
from sacmil.formats._spacing import check_spacing
from sacmil.plugins import import_public_modules, load_plugins

_NATIVE = "native"
_COMMON_SUFFIXES = (".h5", ".hdf5", ".pt", ".npy")
_SIDE_FOLDERS = frozenset(
    {"patches", "tiles", "coords", "labels", "patch_labels", "inst_labels", "masks", "stitches"}
)
"""Folders of other tools for files that belong to bags but are not bags."""


@cache
def _load_formats() -> dict[str, ModuleType]:
    added = {plugin.name: plugin.value for plugin in load_plugins("formats")}
    return added | import_public_modules(sacmil.formats)


def list_suffixes() -> tuple[str, ...]:
    """Return the file name endings of bags."""
    own = (getattr(layout, "SUFFIXES", ()) for layout in _load_formats().values())
    return tuple(dict.fromkeys(chain(_COMMON_SUFFIXES, *own)))


def list_formats() -> list[str]:
    """Return the names of the layouts that can be read."""
    return sorted(_load_formats())


def read_bag(
    path: str | Path,
    *,
    layout: str | None = None,
    patch_size: float | None = None,
    mpp: float | None = None,
    stride: float | None = None,
    coords: str | Path | None = None,
) -> Bag:
    """Read a bag in any supported layout.

    The options after the path give values that files of other tools do not store
    (docs/reference/file-layouts.md). They must not contradict the file.

    Args:
        path: a file.
        layout: one of list_formats(); detected if not given.
        patch_size: side of a tile in level-0 pixels.
        mpp: microns per level-0 pixel.
        stride: distance between neighbouring tiles in level-0 pixels, if not the patch size.
        coords: the file of its coordinates, or a folder with one file per slide.
    """
    path = Path(path)
    beside = None if coords is None else Path(coords)
    hints = Hints(patch_size=patch_size, mpp=mpp, stride=stride, coords=beside)
    if layout is None:
        layout = find_layout(path)
    elif layout not in _load_formats():
        known = suggest_names(layout, _load_formats())
        raise FormatError(f"there is no layout {layout!r}; {known}")
    check_is_file(path, "bag", FormatError)
    try:
        if layout == _NATIVE:
            hints.reject_coords(path)
            return apply_hints(native.read(path), hints)
        bag = apply_hints(_load_formats()[layout].read(path, hints), hints)
        check_spacing(bag)
        return bag
    except BagError as error:
        raise FormatError(f"{path}: {error}") from error


def find_layout(path: str | Path) -> str:
    """Detect the layout of a file and return its name."""
    path = Path(path)
    check_is_file(path, "bag", FormatError)
    if native.matches(path):  # the only layout whose files name their layout
        return _NATIVE
    others = ((name, layout) for name, layout in _load_formats().items() if name != _NATIVE)
    found = [name for name, layout in others if layout.matches(path)]
    if len(found) == 1:
        return found[0]
    if found:
        raise FormatError(
            f"{path}: this may be {' or '.join(found)}, whose files look the same but use "
            f"different units; choose `layout={found[0]!r}` or `layout={found[1]!r}`"
        )
    raise FormatError(
        f"{path}: found {describe_contents(path)}, in none of the layouts this sacmil reads "
        f"({', '.join(list_formats())}); build a sacmil.Bag from its arrays and save it with "
        "sacmil.write_bag"
    )


def find_bags(items: Iterable[Path], *, exclude: Path | None = None) -> list[Path]:
    """Return every bag among files and folders; subfolders are searched too.

    Only names are looked at: opening a damaged file may crash.

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
    for first, second in pairwise(sorted(bags, key=lambda bag: bag.stem)):
        if first.stem == second.stem:
            raise FormatError(
                f"{first} and {second} both have the slide name {first.stem}; "
                "expected one bag per slide, convert them separately"
            )
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
        # a broken link counts: the error is raised when it is read
        and (file.is_file() or (file.is_symlink() and not file.exists()))
    ]


def _resolve(file: Path) -> Path:
    """Resolve a path; unlike Path.resolve before Python 3.13, a link to itself raises nothing."""
    return Path(os.path.realpath(file))


def _is_bag(file: Path, folder: Path) -> bool:
    above = file.relative_to(folder).parent.parts
    if file.name.startswith(".") or file.stem.endswith("_patches"):
        return False
    if any(name in _SIDE_FOLDERS or name.startswith("slide_features_") for name in above):
        return False
    if file.suffix == ".npy":
        return "features" in file.parent.parts
    # CLAM writes features twice; the h5 has the coordinates
    is_pt = file.parent.name == "pt_files"
    folder = file.parent.parent / "h5_files" if is_pt else file.parent
    return file.suffix != ".pt" or not (folder / f"{file.stem}.h5").is_file()
