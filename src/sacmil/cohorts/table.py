"""A labelled collection of slides: which patient each is of, and what is true of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple


class LabelledSlide(NamedTuple):
    """One slide of a cohort."""

    slide_id: str
    """The stem of its bag's file name."""
    patient_id: str
    label: int
    """Index into the cohort's classes."""
    site: str = ""
    """What must not be torn apart by a split, where that was asked for; a hospital."""


@dataclass(frozen=True)
class Cohort:
    """Slides with labels; every slide id once."""

    slides: tuple[LabelledSlide, ...]
    classes: tuple[str, ...]
    """Names of the labels; their order is that of a model's outputs."""

    def of(self, slide_ids: Iterable[str]) -> list[LabelledSlide]:
        """The slides of these ids, in the order given."""
        by_id = {slide.slide_id: slide for slide in self.slides}
        return [by_id[slide_id] for slide_id in slide_ids]
