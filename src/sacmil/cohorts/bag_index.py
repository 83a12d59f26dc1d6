"""The bags in folders, by slide: found by file name, and checked by their headers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Self

from sacmil.cohorts.bag_headers import BagHeader, HeaderOrProblem, read_headers
from sacmil.cohorts.bags import find_outliers
from sacmil.cohorts.slide_id import parse_slide_id
from sacmil.errors import CohortError
from sacmil.formats import find_bags

Folders = str | Path | Iterable[str | Path]

_MAX_HINTS = 20
"""Number of missing slides for which a similar file is searched: as many as an error shows."""


class BagIndex:
    """The bags in folders, by slide; folders are walked once and each header is read once.

    Args:
        folders: one or more, searched with their subfolders, in any supported layout.
    """

    def __init__(self, folders: Folders) -> None:
        listed = [Path(folders)] if isinstance(folders, str | Path) else list(map(Path, folders))
        self.location = ", ".join(map(str, listed))
        """The folders, for messages."""
        self.paths: Mapping[str, Path] = _find_bags_by_slide(listed)
        """The file of each bag, by the name of its slide."""
        self._headers: dict[Path, HeaderOrProblem] = {}

    @classmethod
    def from_paths(cls, paths: Mapping[str, str | Path]) -> Self:
        """Return an index of files that are already known, by slide."""
        index = cls(())
        index.location = "bags"
        index.paths = {slide_id: Path(path) for slide_id, path in paths.items()}
        return index

    def find_problems(self, slide_ids: Iterable[str], *, allow_missing: bool = False) -> list[str]:
        """Return all problems of the bags of slides that their headers show.

        Args:
            slide_ids: the slides.
            allow_missing: skip slides without a bag instead of reporting them.
        """
        wanted = list(slide_ids)
        missing = [] if allow_missing else self.find_missing(wanted)
        found = {slide_id: self.paths[slide_id] for slide_id in wanted if slide_id in self.paths}
        return missing + self._find_header_problems(found)

    def find_missing(self, slide_ids: Iterable[str]) -> list[str]:
        """Return a problem for each slide without a bag, with a similar file if there is one."""
        wanted = dict.fromkeys(slide_ids)
        missing = [slide_id for slide_id in wanted if slide_id not in self.paths]
        unused = {name: path for name, path in self.paths.items() if name not in wanted}
        hints = [_describe_missing_bag(slide_id, unused) for slide_id in missing[:_MAX_HINTS]]
        return hints + [f"{slide_id}: has no bag" for slide_id in missing[_MAX_HINTS:]]

    def get_headers(self, paths: Mapping[str, Path]) -> dict[str, BagHeader]:
        """Return the headers of bags by slide; files without one, as of torch.save, are skipped.

        Args:
            paths: bags by slide.
        """
        self._read_headers(paths.values())
        found = {slide_id: self._headers[path] for slide_id, path in paths.items()}
        return {name: header for name, header in found.items() if isinstance(header, BagHeader)}

    def _read_headers(self, paths: Iterable[Path]) -> None:
        unread = [path for path in dict.fromkeys(paths) if path not in self._headers]
        self._headers |= dict(zip(unread, read_headers(unread), strict=True))

    def _find_header_problems(self, paths: Mapping[str, Path]) -> list[str]:
        headers = self.get_headers(paths)
        problems = []
        for slide_id, path in paths.items():
            header = self._headers[path]
            if isinstance(header, str):
                problems.append(header)
            elif header is not None and header.instances == 0:
                problems.append(f"{path}: holds no instances")
                del headers[slide_id]
        widths = {name: f"{header.dim} features" for name, header in headers.items()}
        encoders = {name: header.encoder for name, header in headers.items()}
        # Another width means another encoder, so one of the two is reported.
        outliers = list(find_outliers(paths, widths)) or list(find_outliers(paths, encoders))
        return problems + outliers


def _find_bags_by_slide(folders: list[Path]) -> dict[str, Path]:
    for folder in folders:
        if not folder.exists():
            raise CohortError(folder, ["there is no such folder; expected bags, check the path"])
    files = find_bags(folders)
    # a file with exactly the slide's name is preferred to one with an extra suffix
    return {parse_slide_id(file.name): file for file in files} | {file.stem: file for file in files}


def _describe_missing_bag(slide_id: str, bags: Mapping[str, Path]) -> str:
    near = _find_nearest_name(slide_id, bags)
    hint = f"; if it is {bags[near]}, use the same name for both" if near else ""
    return f"{slide_id}: has no bag{hint}"


def _find_nearest_name(slide_id: str, names: Iterable[str]) -> str | None:
    """Return a name that differs in case or continues the id, as TCGA's do; else a similar one."""
    names = list(names)
    folded = slide_id.casefold()
    longer = [name for name in names if name.casefold().startswith(folded)]
    shorter = [name for name in names if len(name) > 3 and folded.startswith(name.casefold())]
    if longer or shorter:
        return min(longer or shorter, key=lambda name: abs(len(name) - len(slide_id)))
    return next(iter(difflib.get_close_matches(slide_id, names, n=1, cutoff=0.85)), None)
