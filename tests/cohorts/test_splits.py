"""A division is a partition by patient, stratified, and the same whatever the table's order."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.model_selection import StratifiedKFold

from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.cohorts.splits import (
    Fold,
    add_validation_set,
    check_folds,
    make_folds,
    make_training_only_fold,
    select_stratified,
)
from sacmil.errors import CohortError, CohortWarning


def cohort_of(patients: Iterable[tuple[str, Iterable[int], str]], classes: int = 2) -> Cohort:
    slides = [
        LabeledSlide(f"{patient}-{number}", patient, label, site)
        for patient, labels, site in patients
        for number, label in enumerate(labels)
    ]
    return Cohort(tuple(slides), tuple("abcdefgh"[:classes]))


def simple(counts: Iterable[int]) -> Cohort:
    counts = list(counts)
    pairs = [(label, n) for label, count in enumerate(counts) for n in range(count)]
    return cohort_of(((f"p{label}.{n}", [label], "") for label, n in pairs), len(counts))


def patients(cohort: Cohort, part: Iterable[str]) -> set[str]:
    return {slide.patient_id for slide in cohort.get_slides(part)}


@st.composite
def cohorts(draw: st.DrawFn, folds: int) -> Cohort:
    """Enough patients of only one class each, and others of several labels."""
    classes = draw(st.integers(2, 4))
    pure = [[label] * draw(st.integers(1, 2)) for label in range(classes) for _ in range(folds)]
    label = st.integers(0, classes - 1)
    others = draw(st.lists(st.lists(label, min_size=1, max_size=3), max_size=20))
    return cohort_of(((f"p{n}", of, "") for n, of in enumerate(pure + others)), classes)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_folds_are_a_partition_and_a_patient_is_never_on_two_sides(data: st.DataObject) -> None:
    folds = data.draw(st.integers(2, 5))
    cohort = data.draw(cohorts(folds))
    repeats = data.draw(st.integers(1, 2))
    made = make_folds(cohort, folds, seed=data.draw(st.integers(0, 9)), repeats=repeats)
    assert len(made) == folds * repeats
    for repeat in range(repeats):
        tested = [s for fold in made[repeat * folds :][:folds] for s in fold.test]
        assert sorted(tested) == sorted(cohort.by_id)
    for fold in made:
        assert sorted(s for part in fold for s in part) == sorted(cohort.by_id)
        train, val, test = (patients(cohort, part) for part in fold)
        assert not train & val
        assert not (train | val) & test
        for part in (fold.train, fold.test):
            assert {slide.label for slide in cohort.get_slides(part)} == set(
                range(len(cohort.classes))
            )


@given(st.lists(st.integers(5, 40), min_size=2, max_size=4), st.integers(2, 5), st.integers(0, 99))
@settings(max_examples=12, deadline=None)
def test_classes_are_spread_as_evenly_as_scikit_learn_spreads_them(
    counts: list[int], folds: int, seed: int
) -> None:
    cohort = simple(counts)
    made = make_folds(cohort, folds, seed=seed)
    labels = list(cohort.labels)
    theirs = StratifiedKFold(folds, shuffle=True, random_state=seed).split(labels, labels)
    expected = [Counter(labels[i] for i in test) for _, test in theirs]
    found = [Counter(slide.label for slide in cohort.get_slides(fold.test)) for fold in made]
    for label in range(len(counts)):
        assert sorted(c[label] for c in found) == sorted(c[label] for c in expected)
    sizes = [len(fold.test) for fold in made]
    assert max(sizes) - min(sizes) <= 1


def test_the_order_of_the_table_changes_nothing_and_the_seed_does() -> None:
    cohort = simple([30, 20])
    slides = list(cohort.slides)
    random.Random(0).shuffle(slides)
    shuffled = Cohort(tuple(slides), cohort.classes)
    assert make_folds(shuffled, 5, seed=3) == make_folds(cohort, 5, seed=3)
    assert make_folds(cohort, 5, seed=4) != make_folds(cohort, 5, seed=3)


def test_these_folds_come_out_on_every_machine() -> None:
    assert make_folds(simple([4, 4]), 2)[0] == Fold(
        train=("p0.0-0", "p1.2-0"),
        val=("p0.2-0", "p1.0-0"),
        test=("p0.1-0", "p0.3-0", "p1.1-0", "p1.3-0"),
    )


def test_repeats_divide_anew() -> None:
    made = make_folds(simple([10, 10]), 5, repeats=2)
    assert {fold.test for fold in made[:5]} != {fold.test for fold in made[5:]}
    assert made[:5] == make_folds(simple([10, 10]), 5)


@given(st.lists(st.integers(2, 60), min_size=2, max_size=4), st.floats(0.01, 0.9))
@settings(max_examples=40, deadline=None)
def test_validation_is_a_share_of_the_patients_with_every_class_on_both_sides(
    counts: list[int], share: float
) -> None:
    strata = {f"{label}.{n}": label for label, count in enumerate(counts) for n in range(count)}
    chosen = select_stratified(strata, share, "salt")
    taken = Counter(strata[patient] for patient in chosen)
    for label, count in enumerate(counts):
        assert 1 <= taken[label] <= count - 1
        assert abs(taken[label] - share * count) <= 1 + 1e-9
    assert abs(len(chosen) - share * sum(counts)) <= len(counts)


def test_fifteen_percent_of_the_patients_not_tested_on_validate() -> None:
    for fold in make_folds(simple([100, 100]), 5):
        assert (len(fold.train), len(fold.val), len(fold.test)) == (136, 24, 40)
    assert {len(fold.val) for fold in make_folds(simple([9, 9]), 3, validation=0)} == {0}


def test_a_patient_of_several_labels_counts_for_the_rarest() -> None:
    cohort = cohort_of([("p", [0, 1], ""), ("q", [0], ""), ("r", [0, 0], ""), ("s", [1], "")])
    assert cohort.strata == {"p": 1, "q": 0, "r": 0, "s": 1}


@settings(max_examples=12, deadline=None)
@given(st.integers(0, 1000), st.integers(2, 4))
def test_sites_never_straddle_the_test_part(seed: int, folds: int) -> None:
    draw = random.Random(seed)
    sites = [f"site{n}" for n in range(12)]
    cohort = cohort_of(
        (f"p{n}", [draw.randrange(2)], sites[min(draw.randrange(12), draw.randrange(12))])
        for n in range(80)
    )
    made = make_folds(cohort, folds, seed=seed, preserve_sites=True)
    assert sorted(s for fold in made for s in fold.test) == sorted(cohort.by_id)
    for fold in made:
        train, val, test = ({slide.site for slide in cohort.get_slides(part)} for part in fold)
        assert not (train | val) & test
        assert {slide.label for slide in cohort.get_slides(fold.val)} == {0, 1}


def test_sites_of_equal_make_are_spread_evenly() -> None:
    cohort = cohort_of((f"p{n}", [n % 2], f"site{n // 10}") for n in range(200))
    for fold in make_folds(cohort, 5, preserve_sites=True):
        assert len({slide.site for slide in cohort.get_slides(fold.test)}) == 4
        assert Counter(slide.label for slide in cohort.get_slides(fold.test)) == {0: 20, 1: 20}
        train, val, _ = ({slide.site for slide in cohort.get_slides(part)} for part in fold)
        assert not train & val


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"k": 1}, "expected at least 2"),
        ({"k": 6}, "class 'b' has 5 patients, too few for one in each of 6 folds"),
        ({"k": 2, "repeats": 0}, "0 repeats"),
        ({"k": 2, "validation": 1.0}, "validation share of 1"),
        ({"k": 2, "preserve_sites": True}, "12 slides are without a site"),
    ],
)
def test_what_cannot_be_divided_is_rejected(options: dict[str, object], expected: str) -> None:
    with pytest.raises(CohortError, match=expected):
        make_folds(simple([7, 5]), **options)


def test_fewer_sites_than_folds_are_rejected() -> None:
    cohort = cohort_of((f"p{n}", [n % 2], f"site{n % 3}") for n in range(40))
    with pytest.raises(CohortError, match="3 sites are too few for 4 folds"):
        make_folds(cohort, 4, preserve_sites=True)


# --- folds of others ------------------------------------------------------------------------------


def test_folds_that_cannot_be_used_are_rejected_with_all_their_faults() -> None:
    cohort = simple([2, 2])
    a, _, c, d = cohort.by_id
    with pytest.raises(CohortError) as raised:
        check_folds(cohort, [Fold((a, "x"), (a,), (d,)), Fold((a, c), (), ())])
    assert raised.value.problems == [
        "fold 0: 'x' is not in the cohort; expected ids of its slides",
        "fold 0: 'p0.0-0' is listed more than once; expected in one set",
        "fold 0: no slide of class 'b' is in the training set",
        "fold 1: the test set is empty",
    ]
    with pytest.raises(CohortError, match="there are no folds"):
        check_folds(cohort, [])


def collect_warnings(cohort: Cohort, folds: list[Fold]) -> str:
    with pytest.warns(CohortWarning) as found:
        check_folds(cohort, folds)
    return "\n".join(str(warning.message) for warning in found)


def test_a_patient_on_both_sides_is_reported() -> None:
    cohort = cohort_of([("p", [0, 1, 0, 1], ""), ("q", [0, 1, 0], "")])
    fold = Fold(("p-0", "q-1"), ("q-0",), ("p-2", "p-3"))
    message = collect_warnings(cohort, [fold])
    assert "fold 0: 1 patient is in the test set and in training or validation" in message
    assert "fold 0: 1 patient is in the training set and the validation set" in message


def test_overlapping_test_parts_and_untested_slides_are_reported_but_repeats_are_no_overlap() -> (
    None
):
    cohort = simple([6, 6])
    made = make_folds(cohort, 3, repeats=3)
    check_folds(cohort, made)
    message = collect_warnings(cohort, [made[0], made[4]])
    assert "are in no test set" in message
    drawn = [made[0], made[0], made[1], made[2]]
    assert "4 slides are in the test sets of several folds" in collect_warnings(cohort, drawn)


def test_a_test_part_without_a_class_is_reported() -> None:
    cohort = simple([3, 3])
    a, b, c, d, *_ = cohort.by_id
    assert "no slide of b is in the test set" in collect_warnings(
        cohort, [Fold((a, d), (), (b, c))]
    )


def test_a_fold_without_validation_gets_one_from_its_training_patients() -> None:
    cohort = simple([20, 20])
    whole = make_folds(cohort, 2, validation=0)[0]
    cut = add_validation_set(cohort, whole)
    assert cut.test == whole.test
    assert sorted(cut.train + cut.val) == sorted(whole.train)
    assert len(cut.val) == 3 or len(cut.val) == 4
    assert {slide.label for slide in cohort.get_slides(cut.val)} == {0, 1}


def test_all_slides_train_the_model_that_ships() -> None:
    cohort = simple([2, 2])
    assert make_training_only_fold(cohort) == Fold(tuple(sorted(cohort.by_id)), (), ())


def test_a_fold_can_be_narrowed_to_the_slides_that_are_left() -> None:
    cohort = simple([5, 5])
    fold = make_folds(cohort, 2)[0]
    left = cohort.restrict_to(set(cohort.by_id) - {fold.train[0], fold.test[0]})
    assert fold.restrict_to(left) == Fold(fold.train[1:], fold.val, fold.test[1:])
