"""A wrong argument of a dataset or of folds is an error that names it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from sacmil import Bag, write_bag
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.cohorts.dataset import Dataset
from sacmil.cohorts.split_cohort import split_cohort
from sacmil.cohorts.splits import make_folds
from sacmil.errors import CohortError, OptionError

SLIDES = tuple(LabeledSlide(f"slide-{n}", f"patient-{n}", n % 2) for n in range(8))
COHORT = Cohort(SLIDES, ("a", "b"))
BAG = Bag("a", np.ones((3, 4), np.float32), np.eye(3, 2) * 256, 256)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    folder = tmp_path_factory.mktemp("bags")
    for name in ("slide-0", "slide-1"):
        write_bag(folder / f"{name}.h5", BAG)
    return Dataset(COHORT.restrict_to(["slide-0", "slide-1"]), folder)


@pytest.mark.parametrize("wrong", ["table.csv", None, pd.DataFrame({"a": [1]}), [COHORT]])
def test_only_a_cohort_has_slides(wrong: Any) -> None:
    with pytest.raises(OptionError, match=r"`cohort` is [\s\S]*expected a Cohort: read_cohort"):
        Dataset(wrong, "bags")
    for function in (split_cohort, make_folds):
        with pytest.raises(OptionError, match=r"`dataset` is [\s\S]*; expected a Dataset or a"):
            function(wrong)


def test_a_dataset_is_not_a_cohort(dataset: Dataset) -> None:
    with pytest.raises(OptionError, match=r"`cohort` is Dataset.*or dataset\.cohort"):
        Dataset(dataset, "bags")


@pytest.mark.parametrize(
    ("bags", "found"),
    [
        ([], r"`bags` is \[\]; expected at least one path"),
        ("", "`bags` has an empty path"),
        (["."] + [""], "`bags` has an empty path"),
        (None, "`bags` is None"),
        ([5], "`bags` is 5"),
        ({"slide-0": None}, "`bags` is None; expected the file of a bag"),
    ],
)
def test_bags_are_paths(bags: Any, found: str) -> None:
    with pytest.raises(OptionError, match=found):
        Dataset(COHORT, bags)


def test_a_dataset_is_restricted_to_slides_that_it_has(dataset: Dataset) -> None:
    assert len(dataset.restrict_to(np.array(["slide-1"]))) == 1
    with pytest.raises(CohortError) as raised:
        dataset.restrict_to(["slide-0", "slide-2", "nope"])
    assert [text.split(":")[0] for text in raised.value.problems] == ["slide-2", "nope"]
    for wrong in ("slide-0", None):
        with pytest.raises(OptionError, match=r"`slide_ids` is .*; expected several ids"):
            dataset.restrict_to(wrong)


@pytest.mark.parametrize(
    "arguments",
    [{"k": "a"}, {"k": 2.0}, {"k": True}, {"seed": "a"}, {"repeats": 1.5}, {"validation": "a"}],
)
def test_folds_are_made_from_numbers(arguments: dict[str, Any]) -> None:
    (name,) = arguments
    with pytest.raises(OptionError, match=f"`{name}` is "):
        make_folds(COHORT, **{"k": 2, **arguments})


@pytest.mark.parametrize("folds", [[], None, [1, 2], 2.0, True, make_folds(COHORT, 2)[0]])
def test_given_folds_are_folds(folds: Any) -> None:
    with pytest.raises(OptionError, match=r"`folds` is .*; expected a number of folds, a list"):
        split_cohort(COHORT, folds)


def test_integers_of_numpy_are_counts_and_seeds() -> None:
    one, two = np.int64(1), np.int64(2)
    found = split_cohort(COHORT, two, seed=one, repeats=two)
    assert found.folds == make_folds(COHORT, 2, seed=1, repeats=2)


@pytest.mark.parametrize("out", ["file", "file/splits"])
def test_splits_are_not_written_into_a_file(tmp_path: Path, out: str) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OptionError, match=r"file: is a file; expected a folder, choose.*`out`"):
        split_cohort(COHORT, 2, out=tmp_path / out)


def test_a_bag_is_written_to_a_file(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="`bag` is 'y'; expected a Bag"):
        write_bag(tmp_path / "x.h5", "y")
    with pytest.raises(OptionError, match="is a folder; expected a file in `path`"):
        write_bag(tmp_path, BAG)
    with pytest.raises(OptionError, match="`path` is 5"):
        write_bag(5, BAG)
    assert list(tmp_path.iterdir()) == []
