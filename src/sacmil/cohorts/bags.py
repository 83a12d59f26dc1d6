"""Where the bags of a cohort are, and whether they go together."""

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
"""How many missing slides are compared with the files there are: as many as an error shows."""


def locate_bags(cohort: Cohort, folders: Folders) -> dict[str, Path]:
    """The bag of every slide, found by name; all that are missing are told at once.

    Args:
        cohort: whose slides.
        folders: one or more, searched to the bottom, in any layout that is read.
    """
    places = _list_folders(folders)
    bags = _find_bags_by_slide(places)
    problems = _list_missing_bags([slide.slide_id for slide in cohort.slides], bags)
    if problems:
        raise CohortError(", ".join(map(str, places)), problems)
    return {slide.slide_id: bags[slide.slide_id] for slide in cohort.slides}


def find_bag_problems(
    slide_ids: Iterable[str], folders: Folders, *, allow_missing: bool = False
) -> list[str]:
    """All that is wrong with the bags of slides, as far as their headers tell.

    Args:
        slide_ids: whose bags.
        folders: where they are.
        allow_missing: whether slides without a bag are left out rather than told.
    """
    wanted = list(slide_ids)
    bags = _find_bags_by_slide(_list_folders(folders))
    missing = [] if allow_missing else _list_missing_bags(wanted, bags)
    found = {slide_id: bags[slide_id] for slide_id in wanted if slide_id in bags}
    return missing + _read_headers(found)[1]


def find_missing_bags(slide_ids: Iterable[str], folders: Folders) -> list[str]:
    """Which slides have no bag, with what their bags may be called instead."""
    return _list_missing_bags(slide_ids, _find_bags_by_slide(_list_folders(folders)))


def _list_missing_bags(slide_ids: Iterable[str], bags: Mapping[str, Path]) -> list[str]:
    wanted = dict.fromkeys(slide_ids)
    missing = [slide_id for slide_id in wanted if slide_id not in bags]
    free = {name: path for name, path in bags.items() if name not in wanted}
    hints = [_describe_missing_bag(slide_id, free) for slide_id in missing[:_MAX_HINTS]]
    return hints + [f"{slide_id}: has no bag" for slide_id in missing[_MAX_HINTS:]]


def drop_slides_without_bag(cohort: Cohort, folders: Folders, *, min_patients: int = 2) -> Cohort:
    """The cohort without the slides that have no bag; a warning says how many those are.

    Args:
        cohort: what the table says.
        folders: where the bags are.
        min_patients: fewest patients a class must be left with.
    """
    places = _list_folders(folders)
    bags = _find_bags_by_slide(places)
    kept = cohort.restrict_to(bags)
    lost = [slide.slide_id for slide in cohort.slides if slide.slide_id not in bags]
    where = ", ".join(map(str, places))
    if not kept.slides:
        raise CohortError(
            where, [_describe_missing_bag(slide_id, bags) for slide_id in lost[:_MAX_HINTS]]
        )
    if problems := find_class_problems(kept, min_patients):
        raise CohortError(f"{where}, without the {len(lost)} slides that have no bag", problems)
    if lost:
        names = ", ".join(lost[:3]) + (", …" if len(lost) > 3 else "")
        message = f"{where}: {len(lost)} of {len(cohort)} slides have no bag, left out: {names}"
        warnings.warn(message, CohortWarning, stacklevel=2)
    return kept


def check_bags(paths: Mapping[str, Path]) -> int | None:
    """The feature width that all bags have, read from their headers; refused where they differ.

    Files of torch.save have no header and are not looked at; None where there are no others.

    Args:
        paths: bags by slide id, as locate_bags finds them.
    """
    headers, problems = _read_headers(paths)
    if problems:
        raise CohortError("bags", problems)
    return next((header.dim for header in headers.values()), None)


def _read_headers(paths: Mapping[str, Path]) -> tuple[dict[str, BagHeader], list[str]]:
    """Of bags by slide id, and what is wrong with them."""
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
    # Another width is another encoder: what is told once is enough.
    odd = list(find_outliers(paths, widths)) or list(find_outliers(paths, encoders))
    return headers, problems + odd


def describe_slide_mismatch(path: Path, slide_id: str, stored_id: str) -> str:
    """What is wrong with a bag that says it is of another slide than its file; empty if it is not.

    Args:
        path: of the bag.
        slide_id: whose bag it is by the file's name.
        stored_id: the slide that it says it is of.
    """
    if slide_id in (stored_id, parse_slide_id(stored_id)) or stored_id == path.stem:
        return ""
    return (
        f"{path}: holds the slide {stored_id!r}, by its name {slide_id!r}; rename the file, or "
        "write "
        "the bag again"
    )


def find_outliers(paths: Mapping[str, Path], traits: Mapping[str, str]) -> Iterator[str]:
    """Bags that differ from most in a trait, in words; those that do not say are not asked.

    Args:
        paths: of bags, by slide id.
        traits: likewise, what each has; empty where it does not say.
    """
    found = {slide_id: text for slide_id, text in traits.items() if text}
    if len(set(found.values())) > 1:
        ((usual, count),) = Counter(found.values()).most_common(1)
        for slide_id, text in found.items():
            if text != usual:
                yield (
                    f"{paths[slide_id]}: {text}; expected {usual}, as {count} others have: bags "
                    "of one cohort are made alike"
                )


def _list_folders(folders: Folders) -> list[Path]:
    return [Path(folders)] if isinstance(folders, str | Path) else [Path(f) for f in folders]


def _find_bags_by_slide(folders: list[Path]) -> dict[str, Path]:
    for place in folders:
        if not place.exists():
            raise CohortError(place, ["there is no such folder; expected bags, check the path"])
    files = find_bags(folders)
    # a file called exactly as the slide comes before one that has a suffix more
    return {parse_slide_id(file.name): file for file in files} | {file.stem: file for file in files}


def _describe_missing_bag(slide_id: str, bags: Mapping[str, Path]) -> str:
    near = _find_nearest_name(slide_id, bags)
    return f"{slide_id}: has no bag" + (f"; is it {bags[near]}? Spell both alike" if near else "")


def _find_nearest_name(slide_id: str, names: Iterable[str]) -> str | None:
    """A name that differs in case or goes on after the id, as TCGA's do; else the most similar."""
    names = list(names)
    folded = slide_id.casefold()
    longer = [name for name in names if name.casefold().startswith(folded)]
    shorter = [name for name in names if len(name) > 3 and folded.startswith(name.casefold())]
    if longer or shorter:
        return min(longer or shorter, key=lambda name: abs(len(name) - len(slide_id)))
    return next(iter(difflib.get_close_matches(slide_id, names, n=1, cutoff=0.85)), None)
