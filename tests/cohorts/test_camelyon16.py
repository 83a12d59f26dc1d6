"""The official test set of CAMELYON16 is in no fold; the folds divide the training slides."""

from __future__ import annotations

from pathlib import Path

import pytest

from sacmil.cohorts.camelyon16 import read_camelyon16
from sacmil.errors import CohortError, CohortWarning

NAMES = (
    [f"normal_{n:03}" for n in range(1, 21)]
    + [f"tumor_{n:03}" for n in range(1, 16)]
    + [f"test_{n:03}" for n in range(1, 11)]
)
TUMOUR_TESTS = {"test_001", "test_002", "test_004"}


def is_tumour(name: str) -> bool:
    return name.startswith("tumor") or name in TUMOUR_TESTS


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [f"{n}.tif,{'Tumor' if is_tumour(n) else 'Normal'},{int(is_tumour(n))}" for n in NAMES]
    path = tmp_path / "camelyon16.csv"
    path.write_text("\n".join(["slide_id,name,label", *rows]))
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "CAMELYON16"
    for name in NAMES:
        place = path / ("testing" if name.startswith("test") else "training")
        place.mkdir(parents=True, exist_ok=True)
        (place / f"{name}.tif").touch()
    (path / "training" / "lesion_annotations.zip").touch()
    return path


def test_no_official_test_slide_is_in_any_fold(table: Path) -> None:
    found = read_camelyon16(table)
    assert found.cohort.classes == ("Normal", "Tumor")
    training = {name for name in NAMES if not name.startswith("test")}
    assert set(found.training.by_id) == training
    assert len(found.folds) == 5
    assert sorted(s for fold in found.folds for s in fold.test) == sorted(training)
    for fold in found.folds:
        assert {s for part in fold for s in part} == training
        assert fold.val


def test_the_official_fold_trains_on_all_and_tests_on_the_test_set(table: Path) -> None:
    found = read_camelyon16(table)
    assert found.official is not None
    assert set(found.official.test) == {name for name in NAMES if name.startswith("test")}
    assert set(found.official.train) | set(found.official.val) == set(found.training.by_id)
    assert {
        s.slide_id for s in found.cohort.get_slides(found.official.test) if s.label
    } == TUMOUR_TESTS


def test_a_folder_says_the_same_as_the_table(folder: Path, table: Path) -> None:
    labels = "".join(
        f"{n},{'Tumor,IDC,Macro' if is_tumour(n) else 'Normal,None,None'}\n"
        for n in NAMES
        if n.startswith("test")
    )
    (folder / "testing" / "reference.csv").write_text(labels)
    assert read_camelyon16(folder).folds == read_camelyon16(table).folds
    assert read_camelyon16(folder).official == read_camelyon16(table).official
    assert read_camelyon16(folder).cohort.sha256 == read_camelyon16(table).cohort.sha256


def test_test_slides_without_labels_are_left_out_with_a_warning(folder: Path) -> None:
    with pytest.warns(CohortWarning, match=r"10 test slides have no label.*reference\.csv"):
        found = read_camelyon16(folder)
    assert found.official is None
    assert len(found.cohort) == 35


def test_slides_of_other_names_are_rejected(table: Path, tmp_path: Path) -> None:
    table.write_text(table.read_text() + "\npatient_1.tif,Tumor,1")
    with pytest.raises(CohortError, match="'patient_1'; expected normal_, tumor_ or test_"):
        read_camelyon16(table)
    (tmp_path / "empty").mkdir()
    with pytest.raises(CohortError, match="holds no file named"):
        read_camelyon16(tmp_path / "empty")
