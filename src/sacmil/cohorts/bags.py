"""Find the bags of a cohort, and check that they are consistent."""

from __future__ import annotations

import difflib
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from sacmil.cohorts.bag_headers import BagHeader, read_headers
from sacmil.cohorts.cohort import Cohort, find_class_problems
from sacmil.cohorts.slide_id import parse_slide_id
from sacmil.errors import CohortError, CohortWarning
from sacmil.formats import find_bags

Folders = str | Path | Iterable[str | Path]

_MAX_HINTS = 20
"""Number of missing slides for which a similar file is searched: as many as an error shows."""


def locate_bags(cohort: Cohort, folders: Folders) -> dict[str, Path]:
    """Return the bag of every slide, found by name; one error lists all missing bags.

    Args:
        cohort: the slides.
        folders: one or more, searched with their subfolders, in any supported layout.
    """
    listed = _list_folders(folders)
    bags = _find_bags_by_slide(listed)
    problems = _list_missing_bags([slide.slide_id for slide in cohort.slides], bags)
    if problems:
        raise CohortError(", ".join(map(str, listed)), problems)
    return {slide.slide_id: bags[slide.slide_id] for slide in cohort.slides}


def find_bag_problems(
    slide_ids: Iterable[str], folders: Folders, *, allow_missing: bool = False
) -> list[str]:
    """Return all problems of the bags of slides that their headers show.

    Args:
        slide_ids: the slides.
        folders: of the bags.
        allow_missing: skip slides without a bag instead of reporting them.
    """
    wanted = list(slide_ids)
    bags = _find_bags_by_slide(_list_folders(folders))
    missing = [] if allow_missing else _list_missing_bags(wanted, bags)
    found = {slide_id: bags[slide_id] for slide_id in wanted if slide_id in bags}
    return missing + _read_headers(found)[1]


def find_missing_bags(slide_ids: Iterable[str], folders: Folders) -> list[str]:
    """Return a problem for each slide without a bag, with a similar file name if there is one."""
    return _list_missing_bags(slide_ids, _find_bags_by_slide(_list_folders(folders)))


def _list_missing_bags(slide_ids: Iterable[str], bags: Mapping[str, Path]) -> list[str]:
    wanted = dict.fromkeys(slide_ids)
    missing = [slide_id for slide_id in wanted if slide_id not in bags]
    unused = {name: path for name, path in bags.items() if name not in wanted}
    hints = [_describe_missing_bag(slide_id, unused) for slide_id in missing[:_MAX_HINTS]]
    return hints + [f"{slide_id}: has no bag" for slide_id in missing[_MAX_HINTS:]]


def drop_slides_without_bag(cohort: Cohort, folders: Folders, *, min_patients: int = 2) -> Cohort:
    """Return the cohort without the slides that have no bag; a warning gives their number.

    Args:
        cohort: all slides of the table.
        folders: of the bags.
        min_patients: fewest patients that each class must still have.
    """
    listed = _list_folders(folders)
    bags = _find_bags_by_slide(listed)
    kept = cohort.restrict_to(bags)
    missing = [slide.slide_id for slide in cohort.slides if slide.slide_id not in bags]
    where = ", ".join(map(str, listed))
    if not kept.slides:
        raise CohortError(
            where, [_describe_missing_bag(slide_id, bags) for slide_id in missing[:_MAX_HINTS]]
        )
    if problems := find_class_problems(kept, min_patients):
        raise CohortError(f"{where}, without the {len(missing)} slides that have no bag", problems)
    if missing:
        names = ", ".join(missing[:3]) + (", …" if len(missing) > 3 else "")
        message = f"{where}: {len(missing)} of {len(cohort)} slides have no bag, left out: {names}"
        warnings.warn(message, CohortWarning, stacklevel=2)
    return kept


def check_bags(paths: Mapping[str, Path]) -> int | None:
    """Return the feature width of all bags, read from their headers.

    Files of torch.save have no header and are skipped; the result is None if there are no others.

    Args:
        paths: bags by slide id, as locate_bags returns them.

    Raises:
        CohortError: the bags differ, or a header cannot be read.
    """
    headers, problems = _read_headers(paths)
    if problems:
        raise CohortError("bags", problems)
    return next((header.dim for header in headers.values()), None)


def _read_headers(paths: Mapping[str, Path]) -> tuple[dict[str, BagHeader], list[str]]:
    """Return the headers of bags by slide id, and the problems."""
    headers: dict[str, BagHeader] = {}
    problems = []
    found = read_headers(list(paths.values()))
    for (slide_id, path), header in zip(paths.items(), found, strict=True):
        if isinstance(header, str):
            problems.append(header)
        elif header is not None and header.instances == 0:
            problems.append(f"{path}: holds no instances")
        elif header is not None:
            headers[slide_id] = header
    widths = {name: f"{header.dim} features" for name, header in headers.items()}
    encoders = {name: header.encoder for name, header in headers.items()}
    # Another width means another encoder, so one of the two is reported.
    outliers = list(find_outliers(paths, widths)) or list(find_outliers(paths, encoders))
    return headers, problems + outliers


def describe_slide_mismatch(path: Path, slide_id: str, stored_id: str) -> str:
    """Describe the problem of a bag whose stored slide differs from its file name; else empty.

    Args:
        path: of the bag.
        slide_id: the slide according to the file name.
        stored_id: the slide according to the file's content.
    """
    if slide_id in (stored_id, parse_slide_id(stored_id)) or stored_id == path.stem:
        return ""
    return (
        f"{path}: holds the slide {stored_id!r} but is named {slide_id!r}; rename the file, or "
        "write the bag again"
    )


def find_outliers(paths: Mapping[str, Path], traits: Mapping[str, str]) -> Iterator[str]:
    """Yield a problem for each bag that differs from most in a trait.

    Args:
        paths: of bags, by slide id.
        traits: the trait of each bag, by slide id; empty if it is unknown, which is no problem.
    """
    found = {slide_id: text for slide_id, text in traits.items() if text}
    if len(set(found.values())) > 1:
        ((usual, count),) = Counter(found.values()).most_common(1)
        for slide_id, text in found.items():
            if text != usual:
                yield (
                    f"{paths[slide_id]}: {text}; expected {usual}, as {count} others have: bags "
                    "of one cohort need the same settings"
                )


def _list_folders(folders: Folders) -> list[Path]:
    return [Path(folders)] if isinstance(folders, str | Path) else [Path(f) for f in folders]


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
