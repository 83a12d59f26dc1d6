"""A dataset: a cohort with the bag of each slide."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from sacmil.arguments import list_paths, to_path
from sacmil.cohorts.bags import BagIndex, Folders
from sacmil.cohorts.cohort import Cohort, find_class_problems
from sacmil.cohorts.sheet import list_first
from sacmil.errors import (
    CohortError,
    CohortWarning,
    OptionError,
    check_type,
    format_count,
    shorten_value,
)


@dataclass(frozen=True, init=False)
class Dataset:
    """A cohort with the bag of each slide; one error lists all missing, damaged or mixed bags.

    Args:
        cohort: the slides and their labels.
        bags: a folder, several folders, a mapping of slide ids to files, or a BagIndex.
        drop_missing: leave out slides without a bag, with a warning, instead of an error.
        min_patients: fewest patients that each class must have after slides were left out.
        check_headers: reject damaged bags and bags of several encoders. Without it, only missing
            bags are an error.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from sacmil.synthetic.bags import make_synthetic_cohort, write_synthetic_cohort
        >>> synthetic = make_synthetic_cohort("cluster", 8, seed=0, instances=(20, 30))
        >>> with TemporaryDirectory() as folder:
        ...     cohort = write_synthetic_cohort(synthetic, folder)
        ...     dataset = Dataset(cohort, f"{folder}/bags")
        >>> len(dataset), dataset.dim
        (8, 64)
    """

    cohort: Cohort
    bags: Mapping[str, Path]
    """File of the bag, by slide id, in the order of the cohort."""
    dim: int | None
    """Width of the features; None if headers were not read, or files have none."""
    hashes: Mapping[str, str]
    """SHA-256 of the bags by slide id; empty until training has read the bags."""

    def __init__(
        self,
        cohort: Cohort,
        bags: Folders | Mapping[str, str | Path] | BagIndex,
        *,
        drop_missing: bool = False,
        min_patients: int = 2,
        check_headers: bool = True,
    ) -> None:
        expected = "a Cohort: read_cohort('table.csv'), or dataset.cohort"
        check_type("cohort", cohort, Cohort, expected)
        index = _make_index(bags)
        if drop_missing:
            cohort = _drop_slides_without_bag(cohort, index, min_patients)
        slide_ids = [slide.slide_id for slide in cohort.slides]
        find_problems = index.find_problems if check_headers else index.find_missing
        if problems := find_problems(slide_ids):
            raise CohortError(index.location, problems)
        paths = {slide_id: index.paths[slide_id] for slide_id in slide_ids}
        headers = index.get_headers(paths) if check_headers else {}
        dim = next((header.dim for header in headers.values()), None)
        vars(self).update(cohort=cohort, bags=paths, dim=dim, hashes={})  # the class is frozen

    def __len__(self) -> int:
        return len(self.cohort)

    def restrict_to(self, slide_ids: Iterable[str]) -> Self:
        """Return the dataset of only these slides, in its own order, with the same classes.

        Raises:
            CohortError: names all ids that are not in the dataset.
        """
        wanted = _list_known_ids(self.cohort, slide_ids)
        cohort = self.cohort.restrict_to(wanted)
        hashes = {name: text for name, text in self.hashes.items() if name in cohort.by_id}
        bags = {slide.slide_id: self.bags[slide.slide_id] for slide in cohort.slides}
        return self._copy_with(cohort=cohort, bags=bags, hashes=hashes)

    def with_hashes(self, hashes: Mapping[str, str]) -> Self:
        """Return the dataset with the hashes of its bags."""
        return self._copy_with(hashes=dict(hashes))

    def _copy_with(self, **changes: Any) -> Self:
        changed = copy.copy(self)
        vars(changed).update(changes)
        return changed


def _make_index(bags: Folders | Mapping[str, str | Path] | BagIndex) -> BagIndex:
    if isinstance(bags, BagIndex):
        return bags
    if isinstance(bags, Mapping):
        expected = "the file of a bag for each slide"
        return BagIndex.from_paths({s: to_path("bags", p, expected) for s, p in bags.items()})
    return BagIndex(list_paths("bags", bags))


def _list_known_ids(cohort: Cohort, slide_ids: Iterable[str]) -> list[str]:
    if isinstance(slide_ids, str) or not isinstance(slide_ids, Iterable):
        given = shorten_value(slide_ids)
        raise OptionError(f"`slide_ids` is {given}; expected several ids, such as a list")
    listed = list(slide_ids)
    if unknown := [name for name in listed if name not in cohort.by_id]:
        problems = [f"{name}: is not in the dataset; check the id" for name in unknown]
        raise CohortError("`slide_ids`", problems)
    return listed


def _drop_slides_without_bag(cohort: Cohort, index: BagIndex, min_patients: int) -> Cohort:
    """Return the cohort without the slides that have no bag; a warning gives their number."""
    remaining = cohort.restrict_to(index.paths)
    missing = [slide.slide_id for slide in cohort.slides if slide.slide_id not in index.paths]
    if not remaining.slides:
        raise CohortError(index.location, index.find_missing(missing))
    if problems := find_class_problems(remaining, min_patients):
        where = f"{index.location}, leaving out {format_count(len(missing), 'slide')} without a bag"
        raise CohortError(where, problems)
    if missing:
        verb = "has" if len(missing) == 1 else "have"
        count = f"{len(missing)} of {len(cohort)} slides {verb} no bag"
        message = f"{index.location}: {count}, left out: {list_first(missing)}"
        warnings.warn(message, CohortWarning, stacklevel=4)
    return remaining
