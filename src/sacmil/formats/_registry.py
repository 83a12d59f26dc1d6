"""Detect the layout of a file, and read it.

A layout is a public module of this folder with two functions. ``matches(path) -> bool`` is a quick
check of the file and its folder. ``read(path, hints) -> Bag`` uses the hints only for values that
the file does not store. The native layout stores everything and takes no hints. A layout with
file name endings of its own lists them in ``SUFFIXES``, such as ``(".zarr",)``.
"""

from __future__ import annotations

import importlib
import pkgutil
import stat
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Protocol, cast

import sacmil.formats
from sacmil.bag import Bag
from sacmil.errors import BagError, FormatError, suggest_names
from sacmil.formats import native
from sacmil.formats._hdf5 import describe_contents
from sacmil.formats._hints import Hints, apply_hints
from sacmil.formats._spacing import check_spacing
from sacmil.plugins import load_plugins
from sacmil.units import Level0Px, MicronsPerPixel

_NATIVE = "native"
_COMMON_SUFFIXES = (".h5", ".hdf5", ".pt", ".npy")


class Format(Protocol):
    """The functions of a layout module."""

    def matches(self, path: Path) -> bool:
        """Whether the file looks like this layout."""

    def read(self, path: Path, hints: Hints) -> Bag:
        """Read the bag in the file."""


@cache
def _load_formats() -> dict[str, Format]:
    names = [module.name for module in pkgutil.iter_modules(sacmil.formats.__path__)]
    public = [name for name in names if not name.startswith("_")]
    modules = {name: importlib.import_module(f"sacmil.formats.{name}") for name in public}
    added = {plugin.name: plugin.value for plugin in load_plugins("formats")}
    return cast("dict[str, Format]", added | modules)


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
    (docs/formats.md). They must not contradict the file.

    Args:
        path: a file.
        layout: one of list_formats(); detected if not given.
        patch_size: side of a tile in level-0 pixels.
        mpp: microns per level-0 pixel.
        stride: distance between neighbouring tiles in level-0 pixels, if not the patch size.
        coords: the file of its coordinates, or a folder with one file per slide.
    """
    path = Path(path)
    hints = Hints(
        patch_size=None if patch_size is None else Level0Px(patch_size),
        mpp=None if mpp is None else MicronsPerPixel(mpp),
        stride=None if stride is None else Level0Px(stride),
        coords=None if coords is None else Path(coords),
    )
    layout = find_layout(path) if layout is None else _check_layout(layout)
    _check_is_file(path)
    try:
        return (
            _read_native(path, hints)
            if layout == _NATIVE
            else _read_other_layout(path, layout, hints)
        )
    except BagError as error:
        raise FormatError(f"{path}: {error}") from error


def find_layout(path: str | Path) -> str:
    """Detect the layout of a file and return its name."""
    path = Path(path)
    _check_is_file(path)
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


def _check_layout(layout: str) -> str:
    if layout not in _load_formats():
        raise FormatError(
            f"there is no layout {layout!r}; {suggest_names(layout, _load_formats())}"
        )
    return layout


def _read_native(path: Path, hints: Hints) -> Bag:
    hints.reject_coords(path)
    return apply_hints(native.read(path), hints)


def _read_other_layout(path: Path, layout: str, hints: Hints) -> Bag:
    bag = apply_hints(_load_formats()[layout].read(path, hints), hints)
    check_spacing(bag)
    return bag


def _check_is_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        raise FormatError(
            f"{path}: there is no such file; expected a bag, check the path"
        ) from None
    except OSError as error:
        raise FormatError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if not stat.S_ISREG(mode):
        found = "a folder" if stat.S_ISDIR(mode) else "not a regular file"
        raise FormatError(f"{path}: this is {found}; expected the file of one bag")
