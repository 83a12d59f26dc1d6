"""Folds: the training, validation and test sets of slides.

Patients are assigned, not slides, by a hash of seed and patient id. So every machine makes the
same folds, in any order of the table.
"""

from __future__ import annotations

import hashlib
import numbers
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sacmil.arguments import to_integer
from sacmil.cohorts.cohort import Cohort, get_cohort
from sacmil.cohorts.sites import assign_sites_to_folds, select_sites
from sacmil.cohorts.slide_index import Mask, RowNumbers, pause_garbage_collection
from sacmil.errors import CohortError, CohortWarning, OptionError, check_type, shorten_value

if TYPE_CHECKING:
    from sacmil.cohorts.dataset import Dataset

VALIDATION_SHARE = 0.15
"""Share of the training patients in the validation set, which selects the epoch."""
_SET_NAMES = {"train": "training", "val": "validation", "test": "test"}

Strata = Mapping[str, int]
"""The class of each patient for stratification."""


class Fold(NamedTuple):
    """One division of a cohort, by slide id."""

    train: tuple[str, ...]
    val: tuple[str, ...]
    """The validation set: selects the epoch; a recipe that selects none trains on it."""
    test: tuple[str, ...]
    """The test set: used once, after everything has been selected."""

    def restrict_to(self, cohort: Cohort) -> Fold:
        """Return the fold without slides that the cohort does not have."""
        train, val, test = (tuple(s for s in ids if s in cohort.by_id) for ids in self)
        return Fold(train, val, test)


@pause_garbage_collection()
def make_folds(
    dataset: Dataset | Cohort,
    k: int = 5,
    *,
    seed: int = 0,
    repeats: int = 1,
    validation: float = VALIDATION_SHARE,
    preserve_sites: bool = False,
) -> list[Fold]:
    """Make k folds, stratified, by patient; each slide is in exactly one test set.

    A patient whose slides have different labels counts for the rarest of them.

    Args:
        dataset: a dataset or a cohort, whose patients are divided.
        k: number of folds.
        seed: another seed gives other folds.
        repeats: number of repeats; fold numbers continue.
        validation: share of the other patients in the validation set.
        preserve_sites: keep all patients of a site in one test set. If every class stays on both
            sides, keep them also in one of training and validation.

    Example:
        >>> from sacmil.synthetic.bags import make_synthetic_cohort
        >>> cohort = make_synthetic_cohort("cluster", 10, seed=0).table
        >>> [len(fold.test) for fold in make_folds(cohort, 5)]
        [2, 2, 2, 2, 2]
    """
    cohort = get_cohort(dataset)
    k, seed, repeats = to_integer("k", k), to_integer("seed", seed), to_integer("repeats", repeats)
    check_type("validation", validation, numbers.Real, "a share, such as 0.15")
    _check_arguments(cohort, k, repeats, validation, preserve_sites=preserve_sites)
    strata = compute_strata(cohort)
    made = []
    for repeat in range(repeats):
        salt = f"{seed}/{repeat}"
        test_sets = (
            assign_sites_to_folds(_get_sites(cohort), strata, k, salt)
            if preserve_sites
            else _deal_patients(strata, k, salt)
        )
        for number, test in enumerate(test_sets):
            rest = dict(strata)
            for patient in test:
                del rest[patient]
            val = _select_validation_patients(
                cohort, rest, validation, f"{salt}/{number}", by_site=preserve_sites
            )
            made.append(Fold(*cohort.index.divide_slides(val, test)))
    check_folds(cohort, made)
    return made


def add_validation_set(
    cohort: Cohort, fold: Fold, *, seed: int = 0, validation: float = VALIDATION_SHARE
) -> Fold:
    """Return the fold with a validation set taken from its training patients."""
    train = {slide.patient_id for slide in cohort.get_slides(fold.train)}
    rest = {patient: label for patient, label in compute_strata(cohort).items() if patient in train}
    val = select_stratified(rest, validation, f"{seed}/given")
    is_val = {s: cohort.by_id[s].patient_id in val for s in fold.train}
    return Fold(
        train=tuple(slide_id for slide_id in fold.train if not is_val[slide_id]),
        val=tuple(slide_id for slide_id in fold.train if is_val[slide_id]),
        test=fold.test,
    )


def make_training_only_fold(cohort: Cohort) -> Fold:
    """Return a fold with all slides in training, for a model to deploy."""
    return Fold(train=tuple(sorted(cohort.by_id)), val=(), test=())


def compute_strata(cohort: Cohort) -> Strata:
    """Return the class of each patient: of its slides' classes the one with fewest patients."""
    counts = cohort.patients_per_class
    rarest = sorted(range(len(counts)), key=lambda label: (counts[label], label))
    return dict(zip(cohort.patients, cohort.index.find_first_labels(rarest), strict=True))


def select_stratified(strata: Strata, share: float, salt: str) -> frozenset[str]:
    """Select a share of the patients of every class; never none and never all of a class.

    Args:
        strata: the class of each patient.
        share: of the patients, above 0; 0 selects none.
        salt: another text gives another selection.
    """
    if not share:
        return frozenset()
    quotas = _compute_quotas(Counter(strata.values()), share)
    members = _group_by_class(strata)
    selected: set[str] = set()
    for label, count in quotas.items():
        selected.update(shuffle_by_hash(members[label], f"{salt}/validation")[:count])
    return frozenset(selected)


def shuffle_by_hash(names: Iterable[str], salt: str) -> list[str]:
    """Return the names in a random order that depends only on them and the salt."""
    names, sha256, start = list(names), hashlib.sha256, f"{salt}/".encode()
    digests = b"".join([sha256(start + name).digest() for name in map(str.encode, names)])
    words = np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 4)
    order = np.argsort(words[:, 0], kind="stable")
    first = words[order, 0]
    if (first[1:] == first[:-1]).any():  # sorted as the digests would be as bytes
        order = np.lexsort(words.T[::-1])  # whose last key counts first
    return list(map(names.__getitem__, order.tolist()))


def check_folds(cohort: Cohort, folds: Sequence[Fold]) -> None:
    """Reject folds that cannot be used for training or testing; warn of misleading ones.

    Args:
        cohort: whose slides the folds divide.
        folds: made here or read from files.
    """
    rows = [_FoldRows(*map(cohort.index.find_rows, fold)) for fold in folds]
    numbered = enumerate(zip(folds, rows, strict=True))
    problems = [problem for i, pair in numbered for problem in _find_problems(cohort, i, *pair)]
    if problems or not folds:
        raise CohortError("splits", problems or ["there are no folds"])
    for message in _find_warnings(cohort, folds, rows):
        warnings.warn(message, CohortWarning, stacklevel=2)


def list_given_folds(cohort: Cohort, folds: object) -> list[Fold]:
    """Return the folds that a caller gave; reject none, other types and unknown slides.

    Args:
        cohort: whose slides the folds divide.
        folds: of this cohort.
    """
    given = list(folds) if isinstance(folds, Iterable) else []
    if not given or not all(map(_is_fold, given)):
        raise OptionError(
            f"`folds` is {shorten_value(folds)}; expected a number of folds, a list of Fold, or a "
            "file or folder of splits"
        )
    made = [Fold(*map(tuple, fold)) for fold in given]
    _check_known_slides(cohort, made)
    return made


def _is_fold(value: object) -> bool:
    sets = list(value) if isinstance(value, tuple | list) else []
    return len(sets) == 3 and all(isinstance(ids, tuple | list) for ids in sets)


def _check_known_slides(cohort: Cohort, folds: Iterable[Fold]) -> None:
    listed = {slide_id for fold in folds for ids in fold for slide_id in ids}
    if unknown := sorted(listed - cohort.by_id.keys()):
        problems = [f"{slide_id}: is not in the cohort; check the folds" for slide_id in unknown]
        raise CohortError("folds", problems)


def _check_arguments(
    cohort: Cohort, folds: int, repeats: int, validation: float, *, preserve_sites: bool
) -> None:
    problems = []
    if folds < 2:
        problems.append(f"{folds} folds; expected at least 2")
    if repeats < 1:
        problems.append(f"{repeats} repeats; expected at least 1")
    if not 0 <= validation < 1:
        problems.append(f"a validation share of {validation:g}; expected 0 to below 1, as 0.15")
    for name, count in zip(cohort.classes, cohort.patients_per_class, strict=True):
        if count < max(folds, 2):
            problems.append(
                f"class {name!r} has {count} patients, too few for one in each of {folds} folds; "
                "use fewer folds, or leave the class out"
            )
    if preserve_sites:
        problems += _find_site_problems(cohort, folds)
    if problems:
        raise CohortError("splits", problems)


def _find_site_problems(cohort: Cohort, folds: int) -> list[str]:
    without = [slide.slide_id for slide in cohort.slides if not slide.site]
    if without:
        return [f"{len(without)} slides have no site, such as {without[0]!r}; fill the column"]
    sites = {slide.site for slide in cohort.slides}
    if len(sites) < folds:
        return [f"{len(sites)} sites are too few for {folds} folds; use fewer folds"]
    return []


def _deal_patients(strata: Strata, folds: int, salt: str) -> list[frozenset[str]]:
    """Deal patients to folds in turn, class after class, so that sizes differ by one at most."""
    ordered = [
        patient
        for _, members in sorted(_group_by_class(strata).items())
        for patient in shuffle_by_hash(members, f"{salt}/test")
    ]
    return [frozenset(ordered[number::folds]) for number in range(folds)]


def _group_by_class(strata: Strata) -> dict[int, list[str]]:
    labels = list(strata.values())
    return {label: list(compress(strata, map(label.__eq__, labels))) for label in set(labels)}


def _select_validation_patients(
    cohort: Cohort, rest: Strata, validation: float, salt: str, *, by_site: bool
) -> frozenset[str]:
    if by_site and validation:
        sites = {patient: site for patient, site in _get_sites(cohort).items() if patient in rest}
        found = select_sites(sites, rest, validation, salt)
        if found is not None:
            return found
    return select_stratified(rest, validation, salt)


def _compute_quotas(counts: Counter[int], share: float) -> dict[int, int]:
    """Return how many of each class to select, by largest remainders; at least one remains."""
    exact = {label: share * count for label, count in sorted(counts.items())}
    quotas = {label: int(value) for label, value in exact.items()}
    left = round(sum(exact.values())) - sum(quotas.values())
    for label in sorted(exact, key=lambda label: quotas[label] - exact[label])[:left]:
        quotas[label] += 1
    return {
        label: max(min(1, counts[label] - 1), min(n, counts[label] - 1))
        for label, n in quotas.items()
    }


def _get_sites(cohort: Cohort) -> dict[str, str]:
    return {patient: slides[0].site for patient, slides in cohort.patients.items()}


class _FoldRows(NamedTuple):
    """A fold as rows of the cohort."""

    train: RowNumbers
    val: RowNumbers
    test: RowNumbers


def _find_problems(cohort: Cohort, number: int, fold: Fold, found: _FoldRows) -> Iterable[str]:
    slide_ids, rows = [*fold.train, *fold.val, *fold.test], np.concatenate(found)
    if (rows < 0).any():
        unknown = [slide_id for slide_id in slide_ids if slide_id not in cohort.by_id]
        yield f"fold {number}: {_list_names(unknown)} not in the cohort; expected ids of its slides"
    if repeated := _find_repeated(slide_ids, rows):
        yield f"fold {number}: {_list_names(repeated)} listed more than once; expected in one set"
    for name in ("train", "test"):
        if not getattr(fold, name):
            yield f"fold {number}: the {_SET_NAMES[name]} set is empty"
    present = cohort.index.find_labels(found.train)
    for label, name in enumerate(cohort.classes):
        if present and label not in present:
            yield f"fold {number}: no slide of class {name!r} is in the training set"


def _find_repeated(slide_ids: Sequence[str], rows: RowNumbers) -> list[str]:
    if np.bincount(rows + 1, minlength=1).max() < 2:  # much faster than counting the ids
        return []
    return [slide_id for slide_id, count in Counter(slide_ids).items() if count > 1]


def _list_names(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(map(repr, names[:3])) + more + (" are" if len(names) > 1 else " is")


def _find_warnings(
    cohort: Cohort, folds: Sequence[Fold], rows: Sequence[_FoldRows]
) -> Iterable[str]:
    for number, (fold, found) in enumerate(zip(folds, rows, strict=True)):
        yield from _find_shared_patients(cohort, number, found)
        for name, absent in (
            ("test", _find_absent_classes(cohort, found.test)),
            ("val", _find_avoidably_absent_classes(cohort, fold, found)),
        ):
            if absent:
                where = f"the {_SET_NAMES[name]} set"
                yield f"fold {number}: no slide of {', '.join(absent)} is in {where}"
    tests = [_mark_rows(found.test, len(cohort)) for found in rows]
    yield from _find_overlaps(tests)
    left = len(cohort) - int(np.any(tests, axis=0).sum())
    if left and len(folds) > 1:
        yield f"{left} of {len(cohort)} slides are in no test set"


def _mark_rows(rows: RowNumbers, size: int) -> Mask:
    mask = np.zeros(size, dtype=np.bool_)
    mask[rows] = True
    return mask


def _find_absent_classes(cohort: Cohort, rows: RowNumbers) -> list[str]:
    """Return the classes without a slide in a set; none if the set is empty."""
    present = cohort.index.find_labels(rows)
    return [name for label, name in enumerate(cohort.classes) if present and label not in present]


def _find_avoidably_absent_classes(cohort: Cohort, fold: Fold, found: _FoldRows) -> list[str]:
    """Return classes absent from validation although its size and training allow a patient."""
    absent = _find_absent_classes(cohort, found.val)
    if not absent or _count_patients(cohort, fold.val) < len(cohort.classes):
        return []
    spare = Counter(
        label for _, label in {(s.patient_id, s.label) for s in cohort.get_slides(fold.train)}
    )
    return [name for name in absent if spare[cohort.classes.index(name)] > 1]


def _count_patients(cohort: Cohort, slide_ids: Sequence[str]) -> int:
    return len({slide.patient_id for slide in cohort.get_slides(slide_ids)})


def _find_shared_patients(cohort: Cohort, number: int, found: _FoldRows) -> Iterable[str]:
    train, val, test = map(cohort.index.mark_patients, found)
    for mask, sides in (
        (
            (train | val) & test,
            "in the test set and in training or validation, so the test is biased",
        ),
        (
            train & val,
            "in the training set and the validation set, so the selection of the epoch is biased",
        ),
    ):
        if shared := cohort.index.name_patients(mask):
            names = ", ".join(shared[:3]) + (", …" if len(shared) > 3 else "")
            count = f"{len(shared)} patient{'s are' if len(shared) > 1 else ' is'}"
            yield f"fold {number}: {count} {sides} ({names})"


def _find_overlaps(tests: Sequence[Mask]) -> Iterable[str]:
    """Warn of slides in several test sets; repeats of a complete partition are no overlap."""
    everything = np.any(tests, axis=0)
    seen, repeated = np.zeros_like(everything), np.zeros_like(everything)
    for test in tests:
        repeated |= seen & test
        seen |= test
        is_round_complete = np.array_equal(seen, everything)
        if is_round_complete and not np.array_equal(test, everything) and not repeated.any():
            seen[:] = False
    if repeated.any():
        yield (
            f"{int(repeated.sum())} slides are in the test sets of several folds: the test sets "
            "are random samples, not a partition, and their results are not independent"
        )
