"""Finds microns per pixel of a slide, as stated by the file or the user, never guessed."""

from __future__ import annotations

import csv
import math
import numbers
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from sacmil.csv_text import restore_cell
from sacmil.errors import ResolutionError
from sacmil.slides.readers._base import Slide
from sacmil.units import MicronsPerPixel

MIN_MPP, MAX_MPP = 0.05, 20.0
"""Limits for scans of tissue; values beyond come from a wrong unit (896: pixels per something)."""

TOLERANCE = 0.02
"""Slides called 0.5 state 0.494 to 0.504. Stretching a tile by 2 % (5 of 256 pixels) changes less
than another scanner does. Stretching by more would show an encoder detail that is not there."""

_FIX_HINT = (
    "state it with `slide_mpp=0.25` (one value for all slides) or `slide_mpp=FILE.csv` "
    "(columns wsi,mpp), or extract an image of unknown scale in tiles counted in pixels (mpp none, "
    "patch size 115)"
)


@dataclass(frozen=True)
class SlideResolutions:
    """µm per pixel as the user states them; they replace those of the files."""

    everywhere: MicronsPerPixel | None = None
    """One value for all slides."""
    by_slide: Mapping[str, MicronsPerPixel] = field(default_factory=dict)
    """By file name or relative path, with or without extension, with forward slashes."""

    def __post_init__(self) -> None:
        for value in [*self.by_slide.values(), self.everywhere]:
            if value is not None:
                if isinstance(value, bool) or not isinstance(value, numbers.Real):
                    raise ResolutionError(f"slide mpp is {value!r}; expected a number such as 0.25")
                _check_plausible(float(value), "the slide mpp given")

    @classmethod
    def parse(cls, slide_mpp: float | str | Path | None) -> SlideResolutions:
        """Read a number, also as text, or the path of a CSV file with columns wsi,mpp."""
        if slide_mpp is None:
            return cls()
        slide_mpp = str(slide_mpp)
        number = _parse_number(slide_mpp)
        if number is not None:
            return cls(everywhere=_check_plausible(number, f"`slide_mpp={slide_mpp}`"))
        path = Path(slide_mpp)
        try:
            content = path.read_text(encoding="utf-8-sig")
        except (ValueError, OSError) as error:
            raise ResolutionError(
                f"`slide_mpp` is {slide_mpp!r}: neither a number nor a CSV file that can be read "
                f"({_describe_error(error)}); expected `slide_mpp=0.25` or `slide_mpp=FILE.csv`"
            ) from None
        return cls(by_slide=_parse_table(path, content))

    def find(self, path: Path) -> MicronsPerPixel | None:
        """Return the user's value for a slide, by the longest matching path; None without one."""
        if self.everywhere is not None:
            return self.everywhere
        return next((self.by_slide[key] for key in _iter_keys(path) if key in self.by_slide), None)

    def find_unmatched(self, paths: Iterable[Path]) -> list[str]:
        """Return the keys of the table that match none of these slides."""
        known = {key for path in paths for key in _iter_keys(path)}
        return [key for key in self.by_slide if key not in known]


def find_slide_mpp(slide: Slide, resolutions: SlideResolutions | None = None) -> MicronsPerPixel:
    """Return microns per level-0 pixel by the user, otherwise by the file.

    It is an error if neither states a plausible value.

    Args:
        slide: an open slide.
        resolutions: the user's values, which replace the file's.
    """
    stated = resolutions.find(slide.path) if resolutions else None
    if stated is not None:
        return stated
    if slide.mpp is None:
        has_table = resolutions and resolutions.by_slide
        table = ", and the given table has no line for it" if has_table else ""
        raise ResolutionError(f"{slide.path}: the file states no µm per pixel{table}; {_FIX_HINT}")
    return _check_plausible(slide.mpp, f"{slide.path}: the file", _FIX_HINT)


def check_target_mpp(
    target_mpp: float,
    slide_mpp: MicronsPerPixel,
    *,
    allow_upsampling: bool = False,
    name: str | Path = "the slide",
) -> None:
    """Reject tiles finer than the scan, unless upsampling is allowed.

    Args:
        target_mpp: the requested resolution.
        slide_mpp: the resolution of the slide.
        allow_upsampling: whether tiles may be finer than the scan.
        name: the slide's file, for the message.
    """
    if target_mpp < slide_mpp * (1 - TOLERANCE) and not allow_upsampling:
        raise ResolutionError(
            f"{name}: tiles of {target_mpp:g} µm per pixel are requested, but the slide has "
            f"{slide_mpp:.4g}; use `mpp={slide_mpp:.4g}`, or stretch the pixels with "
            "`allow_upsampling=True`"
        )


def magnification_to_mpp(magnification: float) -> MicronsPerPixel:
    """Convert an objective power to 10 µm per pixel divided by it, as other tools do.

    >>> magnification_to_mpp(20)
    0.5
    """
    if not (math.isfinite(magnification) and magnification > 0):
        raise ResolutionError(
            f"the magnification is {magnification}; expected a number above zero, such as 20"
        )
    return MicronsPerPixel(10 / magnification)


def _check_plausible(mpp: float, source: str, fix_hint: str = "") -> MicronsPerPixel:
    if MIN_MPP <= mpp <= MAX_MPP:
        return MicronsPerPixel(mpp)
    raise ResolutionError(
        f"{source} states {mpp:g} µm per pixel; expected {MIN_MPP} to {MAX_MPP:g}"
        + (f", {fix_hint}" if fix_hint else "")
    )


def _parse_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _parse_table(path: Path, content: str) -> dict[str, MicronsPerPixel]:
    values: dict[str, MicronsPerPixel] = {}
    lines: dict[str, int] = {}
    for line, wsi, mpp in _iter_rows(path, content):
        if not wsi:
            raise ResolutionError(f"{path}: line {line} names no slide")
        key = PurePosixPath(wsi.replace("\\", "/")).as_posix()
        if key in lines:
            raise ResolutionError(
                f"{path}: line {line} names {wsi!r} again (first in line {lines[key]}); expected "
                "one line per slide"
            )
        number = _parse_number(mpp)
        if number is None:
            raise ResolutionError(
                f"{path}: line {line} ({wsi}): mpp is {mpp!r}; expected a number such as 0.25"
            )
        values[key] = _check_plausible(number, f"{path}: line {line} ({wsi})")
        lines[key] = line
    return values


def _iter_rows(path: Path, content: str) -> Iterator[tuple[int, str, str]]:
    """Yield line number, wsi and mpp of every line that is not empty."""
    reader = csv.reader(content.splitlines())
    try:
        header = [name.strip() for name in next(reader, [])]
        if header.count("wsi") != 1 or header.count("mpp") != 1:
            raise ResolutionError(
                f"{path}: line 1 has the columns {', '.join(header) or 'none'}; expected wsi,mpp"
            )
        for cells in reader:
            row = dict(zip(header, (restore_cell(cell.strip()) for cell in cells), strict=False))
            if any(row.values()):
                yield reader.line_num, row.get("wsi", ""), row.get("mpp", "")
    except csv.Error as error:
        raise ResolutionError(f"{path}: line {reader.line_num} is not CSV ({error})") from error


def _iter_keys(path: Path) -> Iterator[str]:
    """Yield every suffix of a path, the longest first, with and then without its extension."""
    for full in (path, path.with_suffix("")):
        parts = full.parts
        for start in range(len(parts)):
            yield PurePosixPath(*parts[start:]).as_posix()


def _describe_error(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return "it is not text" if isinstance(error, UnicodeError) else str(error)
