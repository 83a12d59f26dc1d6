"""Finds slides: given files are used as they are, folders are searched recursively."""

from __future__ import annotations

import fnmatch
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from sacmil.errors import SlideError
from sacmil.slides.readers._base import list_extra_extensions

_EXTENSIONS = frozenset(
    {".svs", ".tif", ".tiff", ".btf", ".ndpi", ".mrxs", ".vms", ".vmu", ".scn", ".bif"}
    | {".svslide", ".dcm", ".png", ".jpg", ".jpeg", ".bmp"}
)

_LIST_EXTENSIONS = {".vms", ".vmu"}  # Hamamatsu: text files that list the JPEGs of a slide
_MAX_LIST_BYTES = 2**20


def list_extensions() -> frozenset[str]:
    """Return the extensions that folders are searched for; a given file may have any."""
    return _EXTENSIONS | list_extra_extensions()


def find_slides(
    items: Iterable[str | Path],
    *,
    exclude: Iterable[str | Path] = (),
    include_names: str | Sequence[str] = (),
    exclude_names: str | Sequence[str] = (),
) -> list[Path]:
    """Return every slide once, in a fixed order.

    Args:
        items: files, and folders that are searched recursively.
        exclude: folders not to search, such as the output folder.
        include_names: patterns such as ``*.bmp``; if there are any, a slide must match one.
        exclude_names: patterns of slides to leave out.
    """
    include_names, exclude_names = (
        [names] if isinstance(names, str) else names for names in (include_names, exclude_names)
    )
    paths = [Path(item) for item in items]
    excluded = {os.path.realpath(folder) for folder in exclude}
    found: dict[str, Path] = {}
    unmatched = set(include_names)
    for item in paths:
        for path in _find_slides_in(item, excluded):
            included = {pattern for pattern in include_names if _matches(pattern, path, item)}
            unmatched -= included
            is_excluded = any(_matches(pattern, path, item) for pattern in exclude_names)
            if not is_excluded and (included or not include_names):
                found.setdefault(os.path.realpath(path), path)
    # an exclude pattern may match none: a cohort need not have slides of that name
    if unmatched:
        raise SlideError(
            f"`include` {min(unmatched)!r} matches none of the slides; expected a pattern of file "
            "names such as '*.bmp', in quotes; check it, or leave it out"
        )
    if not found:
        raise SlideError(
            f"no slides found in {', '.join(map(str, paths)) or 'nothing'}; expected files that "
            f"end in {' '.join(sorted(list_extensions()))}"
        )
    slides = sorted(found.values())
    _check_unique_stems(slides)
    return slides


def _matches(pattern: str, path: Path, folder: Path) -> bool:
    """Whether a slide has a name, or for a pattern with a slash a path in the searched folder."""
    below = path if path == folder else path.relative_to(folder)
    return fnmatch.fnmatchcase(below.as_posix() if "/" in pattern else path.name, pattern)


def _find_slides_in(item: Path, excluded: set[str]) -> Iterable[Path]:
    if item.is_dir():
        return _search_folder(item, set(excluded))
    if not item.exists():
        raise SlideError(f"{item}: there is no such file or folder; check the path")
    return [item]


def _search_folder(folder: Path, seen: set[str]) -> Iterator[Path]:
    """Yield the slides in a folder; ``seen`` holds real paths of folders not to enter (again)."""
    real_path = os.path.realpath(folder)
    if real_path in seen:  # a link to a parent folder
        return
    seen.add(real_path)
    extensions, entries = list_extensions(), _list_visible(folder)
    slides = [entry for entry in entries if entry.suffix.lower() in extensions]
    files = [slide for slide in slides if slide.is_file()]
    yield from _keep_one_per_series(_drop_parts(files))
    # a link to a missing slide is reported as a failure
    yield from (slide for slide in slides if slide.is_symlink() and not slide.exists())
    companions = {file.stem for file in files if file.suffix.lower() == ".mrxs"}
    is_output = (folder / "extraction.csv").is_file()
    for entry in entries:
        is_previews = is_output and entry.name == "tissue"
        if entry.is_dir() and entry.name not in companions and not is_previews:
            yield from _search_folder(entry, seen)


def _list_visible(folder: Path) -> list[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise SlideError(
            f"{folder}: this folder cannot be searched ({error.strerror}); check its permissions"
        ) from error
    return [entry for entry in entries if not entry.name.startswith(".")]


def _drop_parts(slides: list[Path]) -> list[Path]:
    """Remove the image files that are parts of another slide."""
    lists = [slide for slide in slides if slide.suffix.lower() in _LIST_EXTENSIONS]
    parts = {name for slide in lists for name in _read_part_names(slide)}
    return [slide for slide in slides if slide.name not in parts]


def _read_part_names(slide: Path) -> set[str]:
    with slide.open("rb") as file:
        lines = file.read(_MAX_LIST_BYTES).decode("utf-8", errors="replace").splitlines()
    return {line.partition("=")[2].strip() for line in lines if "=" in line}


def _keep_one_per_series(slides: list[Path]) -> Iterator[Path]:
    """Yield, of the DICOM files of one slide, only the largest: its finest level."""
    series: dict[bytes, Path] = {}
    for slide in slides:
        name = _read_dicom_series(slide) if slide.suffix.lower() == ".dcm" else None
        if name is None:
            yield slide
        elif name not in series or slide.stat().st_size > series[name].stat().st_size:
            series[name] = slide
    yield from series.values()


def _read_dicom_series(path: Path) -> bytes | None:
    """Return the file's SeriesInstanceUID (0020,000E), which comes long before the pixels."""
    with path.open("rb") as file:
        start = file.read(2**16)
    _, tag, rest = start.partition(b"\x20\x00\x0e\x00UI")
    length = int.from_bytes(rest[:2], "little")
    return rest[2 : 2 + length].strip(b"\0 ") if tag and length else None


def _check_unique_stems(slides: list[Path]) -> None:
    """Reject slides with the same stem: their bags would be the same file."""
    by_stem: dict[str, Path] = {}
    for slide in slides:
        other = by_stem.setdefault(slide.stem, slide)
        if other is not slide:
            raise SlideError(
                f"{other} and {slide} would both be called {slide.stem!r}; expected unique "
                "names, rename one of them or leave it out"
            )
