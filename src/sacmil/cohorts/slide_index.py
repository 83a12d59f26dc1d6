"""Slides of a cohort as integers, so that numpy counts the slides of folds."""

from __future__ import annotations

import gc
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import repeat

import numpy as np
import numpy.typing as npt

RowNumbers = npt.NDArray[np.int64]
"""Row of each slide in the cohort; -1 for an id that the cohort does not have."""
Mask = npt.NDArray[np.bool_]
"""A value per patient, in the order of their ids, or per slide, in the cohort's order."""


@contextmanager
def pause_garbage_collection() -> Iterator[None]:
    """Pause the garbage collector, which searches in vain for cycles among many new rows."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class SlideIndex:
    """The patient and the label of each slide, by the slide's row.

    Args:
        slide_ids: of all slides.
        patient_ids: the patient of each.
        labels: the label of each.
        patients: every patient once, in the order of their ids.
        class_count: number of classes.
    """

    def __init__(
        self,
        slide_ids: Sequence[str],
        patient_ids: Sequence[str],
        labels: Sequence[int],
        patients: Sequence[str],
        class_count: int,
    ) -> None:
        numbers = {patient: number for number, patient in enumerate(patients)}
        self._row_of = {slide_id: row for row, slide_id in enumerate(slide_ids)}
        self._patients = np.array(patients, dtype=object)
        self._owners = _find_numbers(numbers, patient_ids)
        self._labels = np.array(labels, dtype=np.int64)
        self._class_count = class_count
        order = np.array(sorted(range(len(slide_ids)), key=slide_ids.__getitem__), dtype=np.int64)
        self._sorted_ids = np.array(slide_ids, dtype=object)[order]
        self._sorted_owners = self._owners[order]
        self._sorted_rows = order
        self._numbers = numbers
        self._found: dict[int, tuple[tuple[str, ...], RowNumbers]] = {}

    def find_rows(self, slide_ids: tuple[str, ...]) -> RowNumbers:
        """Return the row of each slide; cached per tuple, because folds are looked up often."""
        same, rows = self._found.get(id(slide_ids), ((), None))
        if same is not slide_ids or rows is None:
            rows = _find_numbers(self._row_of, slide_ids)
            self._found[id(slide_ids)] = slide_ids, rows
        return rows

    def find_labels(self, rows: RowNumbers) -> frozenset[int]:
        """Return the labels of the slides; unknown slides have none."""
        counts = np.bincount(self._labels[rows[rows >= 0]], minlength=self._class_count)
        return frozenset(np.flatnonzero(counts).tolist())

    def mark_patients(self, rows: RowNumbers) -> Mask:
        """Return whether each patient has one of the slides."""
        mask = np.zeros(len(self._patients), dtype=np.bool_)
        mask[self._owners[rows]] = True
        return mask

    def name_patients(self, mask: Mask) -> list[str]:
        """Return the ids of the marked patients, sorted."""
        names: list[str] = self._patients[mask].tolist()
        return names

    def count_slides(self, rows: RowNumbers) -> list[int]:
        """Return how many of the slides each class has."""
        counts: list[int] = np.bincount(self._labels[rows], minlength=self._class_count).tolist()
        return counts

    def count_patients(self, rows: RowNumbers) -> list[int]:
        """Return how many patients have a slide of each class among these."""
        has_class = np.zeros((len(self._patients), self._class_count), dtype=np.bool_)
        has_class[self._owners[rows], self._labels[rows]] = True
        counts: list[int] = has_class.sum(axis=0).tolist()
        return counts

    def divide_slides(
        self, val: Collection[str], test: Collection[str]
    ) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
        """Return the sorted slide ids of the remaining, the val and the test patients."""
        set_of_patient = np.zeros(len(self._patients), dtype=np.int64)
        set_of_patient[_find_numbers(self._numbers, val)] = 1
        set_of_patient[_find_numbers(self._numbers, test)] = 2
        set_of_slide = set_of_patient[self._sorted_owners]
        train, val, test = (self._take_slides(set_of_slide == number) for number in range(3))
        return train, val, test

    def _take_slides(self, mask: Mask) -> tuple[str, ...]:
        slide_ids = tuple(self._sorted_ids[mask].tolist())
        self._found[id(slide_ids)] = slide_ids, self._sorted_rows[mask]
        return slide_ids

    def find_first_labels(self, order: Sequence[int]) -> list[int]:
        """Return the label of each patient; if slides differ, the first in this order."""
        ranks = np.argsort(np.array(order, dtype=np.int64))
        lowest = np.full(len(self._patients), len(order), dtype=np.int64)
        np.minimum.at(lowest, self._owners, ranks[self._labels])
        return [order[rank] for rank in lowest.tolist()]


def _find_numbers(numbers: Mapping[str, int], names: Collection[str]) -> RowNumbers:
    return np.fromiter(map(numbers.get, names, repeat(-1)), dtype=np.int64, count=len(names))
