"""Folds: the training, validation and test sets of slides.

Patients are assigned, not slides, by a hash of seed and patient id. So every machine makes the
same folds, in any order of the table.

Folds can keep all patients of a hospital (site) in one test set. Stains and scanners differ by
hospital, and so do labels. A model that recognises the hospital looks better than it is unless
each site is in one set only (Howard et al. 2021).
"""

from __future__ import annotations

import hashlib
import numbers
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.arguments import to_integer
from sacmil.cohorts.cohort import Cohort, LabeledSlide, get_cohort
from sacmil.cohorts.sheet import list_first
from sacmil.errors import (
    CohortError,
    CohortWarning,
    OptionError,
    check_type,
    format_count,
    format_subject,
    shorten_value,
)

if TYPE_CHECKING:
    from sacmil.cohorts.dataset import Dataset

VALIDATION_SHARE = 0.15
"""Share of the training patients in the validation set, which selects the epoch."""
_MIN_GAIN = 1e-12

Strata = Mapping[str, int]
"""The class of each patient for stratification."""
Shares = npt.NDArray[np.float64]
"""(sites, classes + 1): each site's share of each class, and of all patients."""


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
    strata = cohort.strata
    sites = {patient: of[0].site for patient, of in cohort.patients.items() if preserve_sites}
    made, slides = [], sorted(cohort.slides)
    for repeat in range(repeats):
        salt = f"{seed}/{repeat}"
        tests = _assign_sites(sites, strata, k, salt) if sites else _deal_patients(strata, k, salt)
        for number, test in enumerate(tests):
            rest = {patient: label for patient, label in strata.items() if patient not in test}
            val = _select_validation_patients(rest, sites, validation, f"{salt}/{number}")
            made.append(_divide_slides(slides, val, test))
    check_folds(cohort, made)
    return made


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
    problems += [
        f"class {name!r} has {format_count(count, 'patient')}, too few for one in each of {folds} "
        "folds; use fewer folds, or leave the class out"
        for name, count in zip(cohort.classes, cohort.patients_per_class, strict=True)
        if cohort.task.has_classes and count < max(folds, 2)
    ]
    if not cohort.task.has_classes and len(cohort.patients) < max(folds, 2):
        count = format_subject(len(cohort.patients), "patient")
        problems.append(f"{count} too few for {folds} folds; use fewer folds")
    without = [slide.slide_id for slide in cohort.slides if not slide.site]
    sites = {slide.site for slide in cohort.slides}
    if preserve_sites and without:
        problems.append(
            f"{format_subject(len(without), 'slide')} without a site, such as {without[0]!r}; fill "
            "the column"
        )
    elif preserve_sites and len(sites) < folds:
        problems.append(
            f"{format_subject(len(sites), 'site')} too few for {folds} folds; use fewer folds"
        )
    if problems:
        raise CohortError("splits", problems)


def _deal_patients(strata: Strata, folds: int, salt: str) -> list[frozenset[str]]:
    """Deal patients to folds in turn, class after class, so that sizes differ by one at most."""
    shuffled = shuffle_by_hash(strata, f"{salt}/test")
    ordered = sorted(shuffled, key=strata.__getitem__)
    return [frozenset(ordered[number::folds]) for number in range(folds)]


def _select_validation_patients(
    rest: Strata, sites: Mapping[str, str], validation: float, salt: str
) -> frozenset[str]:
    if sites and validation:
        found = _select_sites({patient: sites[patient] for patient in rest}, rest, validation, salt)
        if found is not None:
            return found
    return select_stratified(rest, validation, salt)


def _divide_slides(
    slides: Iterable[LabeledSlide], val: frozenset[str], test: frozenset[str]
) -> Fold:
    """Return the slide ids of the remaining, the val and the test patients."""
    sets: dict[str, list[str]] = {name: [] for name in Fold._fields}
    for slide_id, patient, *_ in slides:
        sets["test" if patient in test else "val" if patient in val else "train"].append(slide_id)
    return Fold(*map(tuple, sets.values()))


def add_validation_set(
    cohort: Cohort, fold: Fold, *, seed: int = 0, validation: float = VALIDATION_SHARE
) -> Fold:
    """Return the fold with a validation set taken from its training patients."""
    slides = cohort.get_slides(fold.train)
    train = {slide.patient_id for slide in slides}
    rest = {patient: label for patient, label in cohort.strata.items() if patient in train}
    val = select_stratified(rest, validation, f"{seed}/given")
    return _divide_slides(slides, val, frozenset())._replace(test=fold.test)


def make_training_only_fold(cohort: Cohort) -> Fold:
    """Return a fold with all slides in training, for a model to deploy."""
    return Fold(train=tuple(sorted(cohort.by_id)), val=(), test=())


def select_stratified(strata: Strata, share: float, salt: str) -> frozenset[str]:
    """Select a share of the patients of every class; never none and never all of a class.

    Args:
        strata: the class of each patient.
        share: of the patients, above 0; 0 selects none.
        salt: another text gives another selection.
    """
    if not share:
        return frozenset()
    shuffled = shuffle_by_hash(strata, f"{salt}/validation")
    selected: set[str] = set()
    for label, count in _compute_quotas(Counter(strata.values()), share).items():
        selected.update([patient for patient in shuffled if strata[patient] == label][:count])
    return frozenset(selected)


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


def shuffle_by_hash(names: Iterable[str], salt: str) -> list[str]:
    """Return the names in a random order that depends only on them and the salt."""
    return sorted(names, key=lambda name: hashlib.sha256(f"{salt}/{name}".encode()).digest())


# --- sites ----------------------------------------------------------------------------------------


def _assign_sites(
    sites: Mapping[str, str], strata: Strata, folds: int, salt: str
) -> list[frozenset[str]]:
    """Return the patients of each fold; a site is in one fold, classes are spread evenly.

    Single moves and swaps of sites improve the balance of classes.

    Args:
        sites: of each patient.
        strata: the class of each patient.
        folds: number of folds.
        salt: another text gives another assignment.
    """
    names, shares = _compute_shares(sites, strata, salt)
    fold_of_site = _assign_greedily(shares, folds)
    while _improve_assignment(shares, fold_of_site, folds):
        pass
    fold_of = dict(zip(names, fold_of_site.tolist(), strict=True))
    return [
        frozenset(patient for patient in sites if fold_of[sites[patient]] == number)
        for number in range(folds)
    ]


def _select_sites(
    sites: Mapping[str, str], strata: Strata, share: float, salt: str
) -> frozenset[str] | None:
    """Return all patients of a few sites, about a given share of every class.

    None if no selection leaves each class on both sides.

    Args:
        sites: of each patient.
        strata: the class of each patient.
        share: of every class.
        salt: another text gives another selection.
    """
    names, shares = _compute_shares(sites, strata, salt)
    selected = np.zeros(len(names), dtype=bool)
    while True:
        now = shares[selected].sum(0)
        after = np.where(selected[:, None], now - shares, now + shares)
        loss = ((after - share) ** 2).sum(1)
        best = int(loss.argmin())
        if loss[best] >= ((now - share) ** 2).sum() - _MIN_GAIN:
            break
        selected[best] = ~selected[best]
    total = shares[selected].sum(0)
    if (total < _MIN_GAIN).any() or (total > 1 - _MIN_GAIN).any():
        return None
    selected_sites = {name for name, is_in in zip(names, selected, strict=True) if is_in}
    return frozenset(patient for patient in sites if sites[patient] in selected_sites)


def _compute_shares(
    sites: Mapping[str, str], strata: Strata, salt: str
) -> tuple[list[str], Shares]:
    names = shuffle_by_hash(set(sites.values()), salt)
    labels = sorted(set(strata.values()))
    counts = np.zeros((len(names), len(labels) + 1))
    row = {name: number for number, name in enumerate(names)}
    for patient, site in sites.items():
        counts[row[site], [labels.index(strata[patient]), -1]] += 1
    return names, counts / counts.sum(0)


def _assign_greedily(shares: Shares, folds: int) -> npt.NDArray[np.int64]:
    """Assign each site, largest first, to the fold that has least of the site's classes."""
    filled = np.zeros((folds, shares.shape[1]))
    fold_of_site = np.zeros(len(shares), dtype=np.int64)
    # rounded, so that the salt decides the order of sites of almost equal size
    for site in np.argsort(-np.round(shares[:, -1], 1), kind="stable"):
        fold_of_site[site] = (filled @ shares[site]).argmin()
        filled[fold_of_site[site]] += shares[site]
    return fold_of_site


def _improve_assignment(shares: Shares, fold_of_site: npt.NDArray[np.int64], folds: int) -> bool:
    """Make the best single move or swap in place; False if none makes the folds more even.

    The measure is the sum of squares of the folds' shares. Moving v from fold f to g changes it
    by 2 (|v|² − x_f·v + x_g·v), and a swap of v and u moves v − u.
    """
    filled = np.zeros((folds, shares.shape[1]))
    np.add.at(filled, fold_of_site, shares)
    onto = shares @ filled.T  # (sites, folds)
    here = onto[np.arange(len(fold_of_site)), fold_of_site]
    gram = shares @ shares.T
    size = gram.diagonal()
    move = size[:, None] - here[:, None] + onto
    move[np.arange(len(fold_of_site)), fold_of_site] = np.inf
    across = onto[:, fold_of_site]  # (s, u): s · the shares of u's fold
    swap = size[:, None] + size - 2 * gram - here[:, None] + across.T + across - here
    swap[fold_of_site[:, None] == fold_of_site] = np.inf
    if min(move.min(), swap.min()) > -_MIN_GAIN:
        return False
    if move.min() <= swap.min():
        site, fold = np.unravel_index(move.argmin(), move.shape)
        fold_of_site[site] = fold
    else:
        one, other = np.unravel_index(swap.argmin(), swap.shape)
        fold_of_site[[one, other]] = fold_of_site[[other, one]]
    return True


# --- checks ---------------------------------------------------------------------------------------


def list_given_folds(cohort: Cohort, folds: object) -> list[Fold]:
    """Return the folds that a caller gave; reject them as if they had been read from files.

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
    _check_each_fold(cohort, made)
    return made


def _is_fold(value: object) -> bool:
    sets = list(value) if isinstance(value, tuple | list) else []
    return len(sets) == 3 and all(isinstance(ids, tuple | list) for ids in sets)


def check_folds(cohort: Cohort, folds: Sequence[Fold]) -> None:
    """Reject folds that cannot be used for training or testing; warn of misleading ones.

    Args:
        cohort: whose slides the folds divide.
        folds: made here or read from files.
    """
    _check_each_fold(cohort, folds)
    for message in _find_test_set_warnings(cohort, folds):
        warnings.warn(message, CohortWarning, stacklevel=2)


def _check_each_fold(cohort: Cohort, folds: Sequence[Fold]) -> None:
    numbered = [(f"fold {number}: ", fold) for number, fold in enumerate(folds)]
    problems = [name + text for name, fold in numbered for text in _find_problems(cohort, fold)]
    if problems or not folds:
        raise CohortError("splits", problems or ["there are no folds"])
    for name, fold in numbered:
        for text in _find_warnings(cohort, fold):
            warnings.warn(name + text, CohortWarning, stacklevel=3)


def _find_problems(cohort: Cohort, fold: Fold) -> Iterator[str]:
    counts = Counter([*fold.train, *fold.val, *fold.test])
    if unknown := [slide_id for slide_id in counts if slide_id not in cohort.by_id]:
        yield f"{_list_names(unknown)} not in the cohort; expected ids of its slides"
    if repeated := [slide_id for slide_id, count in counts.items() if count > 1]:
        yield f"{_list_names(repeated)} listed more than once; expected in one set"
    if not fold.train:
        yield "the training set is empty"
    if not fold.test:
        yield "the test set is empty"
    for name in _find_absent_classes(cohort, fold.train):
        yield f"no slide of class {name!r} is in the training set"
    if fold.train and not unknown:
        training = cohort.restrict_to(fold.train).targets
        yield from cohort.task.find_fold_problems(training, cohort.targets)


def _list_names(names: Sequence[str]) -> str:
    return list_first(list(map(repr, names))) + (" are" if len(names) > 1 else " is")


def _find_absent_classes(cohort: Cohort, slide_ids: Iterable[str]) -> list[str]:
    """Return the needed classes without a slide in a set; none if the set is empty."""
    if not cohort.task.has_classes:
        return []
    by_id = cohort.by_id
    present = {by_id[slide_id].label for slide_id in slide_ids if slide_id in by_id}
    return [name for label, name in enumerate(cohort.classes) if present and label not in present]


def _find_warnings(cohort: Cohort, fold: Fold) -> Iterator[str]:
    train, val, test = ({slide.patient_id for slide in cohort.get_slides(ids)} for ids in fold)
    shared = {
        "in the test set and in training or validation, so the test": (train | val) & test,
        "in the training set and the validation set, so the selection of the epoch": train & val,
    }
    for sides, patients in shared.items():
        if patients:
            count = format_subject(len(patients), "patient")
            yield f"{count} {sides} is biased ({list_first(sorted(patients))})"
    training = cohort.restrict_to(fold.train).targets
    yield from cohort.task.find_fold_warnings(training, cohort.targets)
    if untested := _find_absent_classes(cohort, fold.test):
        yield f"no slide of {', '.join(untested)} is in the test set"
    # Reported for validation only where its size and the training set allow a patient.
    absent = _find_absent_classes(cohort, fold.val)
    if absent and len(val) >= len(cohort.classes):
        spare = cohort.restrict_to(fold.train).patients_per_class
        if avoidable := [name for name in absent if spare[cohort.classes.index(name)] > 1]:
            yield f"no slide of {', '.join(avoidable)} is in the validation set"


def _find_test_set_warnings(cohort: Cohort, folds: Sequence[Fold]) -> Iterator[str]:
    """Warn of slides in several test sets; repeats of a complete partition are no overlap."""
    tests = [frozenset(fold.test) for fold in folds]
    everything = frozenset[str]().union(*tests)
    seen, repeated = frozenset[str](), frozenset[str]()
    for test in tests:
        repeated |= seen & test
        seen |= test
        if seen == everything and test != everything and not repeated:
            seen = frozenset()
    if repeated:
        yield (
            f"{format_subject(len(repeated), 'slide')} in the test sets of several folds: the test "
            "sets are random samples, not a partition, and their results are not independent"
        )
    left = len(cohort) - len(everything)
    if left and len(folds) > 1:
        yield f"{left} of {len(cohort)} slides {'is' if left == 1 else 'are'} in no test set"
