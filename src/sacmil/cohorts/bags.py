"""Checks that bags belong to their slides and to each other."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

from sacmil.cohorts.slide_id import parse_slide_id


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
