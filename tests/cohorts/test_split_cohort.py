"""Folds are made or checked, counted, and written only where a folder is given."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_cohort import write_material

from sacmil.cohorts.cohort import read_cohort
from sacmil.cohorts.split_cohort import split_cohort
from sacmil.cohorts.split_files import read_splits
from sacmil.cohorts.splits import Fold, make_folds
from sacmil.errors import CohortError


def test_a_dataset_or_its_cohort_is_split_into_the_same_files(tmp_path: Path) -> None:
    material = write_material(tmp_path / "bags", patients=8)
    one = split_cohort(material.data, 2, out=tmp_path / "one", with_table=True)
    two = split_cohort(material.cohort, 2, out=tmp_path / "two", seed=1)
    assert one.folds == make_folds(material.cohort, 2) != two.folds
    assert [file.name for file in one.files] == ["splits_0.csv", "splits_1.csv", "splits.json"]
    cohort = read_cohort(tmp_path / "one" / "table.csv")
    assert read_splits(tmp_path / "one", cohort) == one.folds
    checked = split_cohort(material.cohort, tmp_path / "two")
    assert (checked.folds, checked.files) == (two.folds, ())


def test_every_slide_is_counted_once_per_fold(tmp_path: Path) -> None:
    material = write_material(tmp_path / "bags", patients=8)
    counts = split_cohort(material.cohort, 2).count_sets()
    assert [(count.fold, count.name) for count in counts[:3]] == [
        (0, "train"),
        (0, "val"),
        (0, "test"),
    ]
    for fold in (0, 1):
        of_fold = [count for count in counts if count.fold == fold]
        assert sum(count.slides for count in of_fold) == len(material.cohort)
        assert all(sum(count.slides_by_class) == count.slides for count in of_fold)


def test_given_folds_must_have_slides_of_the_cohort(tmp_path: Path) -> None:
    material = write_material(tmp_path / "bags", patients=8)
    with pytest.raises(CohortError, match="zebra: is not in the cohort"):
        split_cohort(material.cohort, [Fold(("zebra",), (), ())])
