"""Every slide has its bag, or all slides without one are reported before training."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from sacmil import Bag, write_bag
from sacmil.bag import EncoderId
from sacmil.cohorts import bags as cohort_bags
from sacmil.cohorts.bags import BagIndex
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.cohorts.dataset import Dataset
from sacmil.errors import CohortError, CohortWarning


def cohort_of(*names: str) -> Cohort:
    slides = (LabeledSlide(name, name, number % 2) for number, name in enumerate(names))
    return Cohort(tuple(slides), ("a", "b"))


def write(path: Path, dim: int = 4, encoder: str | None = None) -> Path:
    named = EncoderId(encoder) if encoder else None
    write_bag(
        path, Bag(path.stem, np.ones((3, dim), np.float32), np.eye(3, 2) * 256, 256, encoder=named)
    )
    return path


def problems(cohort: Cohort, *folders: Path) -> list[str]:
    with pytest.raises(CohortError) as raised:
        Dataset(cohort, folders)
    return raised.value.problems


def test_bags_are_found_by_name_in_any_layout_and_depth(tmp_path: Path) -> None:
    for name in ("one/h5_files/a.h5", "one/pt_files/a.pt", "two/pt_files/b.pt", "two/x/c.svs.h5"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name) if name.endswith(".h5") else (tmp_path / name).touch()
    found = Dataset(cohort_of("c", "a", "b"), [tmp_path / "one", tmp_path / "two"]).bags
    assert [(name, path.name) for name, path in found.items()] == [
        ("c", "c.svs.h5"),
        ("a", "a.h5"),
        ("b", "b.pt"),
    ]
    assert Dataset(cohort_of("a"), str(tmp_path / "one")).bags == {"a": found["a"]}


def test_all_missing_bags_are_reported_with_the_file_they_may_be(tmp_path: Path) -> None:
    for name in ("Slide-1.h5", "TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF.h5", "case_0012.h5", "here.h5"):
        write(tmp_path / name)
    cohort = cohort_of("slide-1", "TCGA-3C-AALI-01Z-00-DX1", "case_012", "zebra", "here")
    found = problems(cohort, tmp_path)
    assert [problem.split(":")[0] for problem in found] == [
        "slide-1",
        "TCGA-3C-AALI-01Z-00-DX1",
        "case_012",
        "zebra",
    ]
    for problem, name in zip(found, ("Slide-1.h5", "F6E9A5DF.h5", "case_0012.h5"), strict=False):
        assert name in problem
    assert found[3] == "zebra: has no bag"


def test_many_missing_bags_are_all_counted(tmp_path: Path) -> None:
    write(tmp_path / "a.h5")
    assert len(problems(cohort_of(*(f"s{n}" for n in range(500))), tmp_path)) == 500


def test_a_folder_that_is_not_there_is_reported(tmp_path: Path) -> None:
    assert "no such folder" in problems(cohort_of("a"), tmp_path / "nowhere")[0]


def test_missing_bags_may_be_dropped_and_are_reported(tmp_path: Path) -> None:
    for name in "abcd":
        write(tmp_path / f"{name}.h5")
    with pytest.warns(CohortWarning, match="2 of 6 slides have no bag, left out: e, f"):
        left = Dataset(cohort_of(*"abcdef"), tmp_path, drop_missing=True)
    assert [slide.slide_id for slide in left.cohort.slides] == list("abcd") == list(left.bags)
    assert Dataset(left.cohort, tmp_path, drop_missing=True) == left


def test_dropping_does_not_drop_a_class(tmp_path: Path) -> None:
    for name in "ace":
        write(tmp_path / f"{name}.h5")
    with pytest.raises(CohortError, match="class 'b' has 0 patients"):
        Dataset(cohort_of(*"abcdef"), tmp_path, drop_missing=True)
    with pytest.raises(CohortError, match="x: has no bag"):
        Dataset(cohort_of("x", "y"), tmp_path, drop_missing=True)


def test_bags_of_one_width_and_encoder_go_together(tmp_path: Path) -> None:
    paths = {name: write(tmp_path / f"{name}.h5", encoder="uni_v1") for name in "ab"}
    paths["c"] = write(tmp_path / "c.h5")  # does not say
    (tmp_path / "features").mkdir()
    paths["d"] = tmp_path / "features" / "d.npy"
    np.save(paths["d"], np.ones((5, 4)))
    paths["e"] = tmp_path / "e.pt"
    paths["e"].write_bytes(b"torch")
    assert Dataset(cohort_of(*paths), paths).dim == 4
    assert Dataset(cohort_of("e"), {"e": paths["e"]}).dim is None


def test_bags_of_another_width_encoder_or_none_are_rejected_together(tmp_path: Path) -> None:
    paths = {name: write(tmp_path / f"{name}.h5", dim=8 if name == "c" else 4) for name in "abc"}
    paths["d"] = tmp_path / "d.h5"
    paths["d"].write_bytes(paths["a"].read_bytes()[:600])
    paths["e"] = tmp_path / "e.h5"
    with h5py.File(paths["e"], "w") as file:
        file["feats"] = np.ones((0, 4))
    paths["f"] = tmp_path / "f.h5"
    with h5py.File(paths["f"], "w") as file:
        file["coords"] = np.ones((3, 2))
    with pytest.raises(CohortError) as raised:
        Dataset(cohort_of(*paths), paths)
    problems = raised.value.problems
    assert len(problems) == 4
    assert "truncated or damaged" in problems[0]
    assert "holds no instances" in problems[1]
    assert "holds coords; expected features or feats" in problems[2]
    assert "8 features; expected 4 features, as 2 others have" in problems[3]


def test_bags_of_two_encoders_of_one_width_are_rejected(tmp_path: Path) -> None:
    paths = {n: write(tmp_path / f"{n}.h5", encoder=e) for n, e in zip("abc", "xxy", strict=True)}
    with pytest.raises(CohortError, match=r"c\.h5: y; expected x"):
        Dataset(cohort_of(*paths), paths)


def test_a_damaged_bag_is_accepted_where_headers_are_not_checked(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_bytes(b"damaged")
    assert list(Dataset(cohort_of("a"), tmp_path, check_headers=False).bags) == ["a"]
    with pytest.raises(CohortError, match="b: has no bag"):
        Dataset(cohort_of("a", "b"), tmp_path, check_headers=False)


def test_an_index_reads_each_header_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [write(tmp_path / f"{name}.h5") for name in "abc"]
    read, read_header = [], cohort_bags._read_header
    monkeypatch.setattr(cohort_bags, "_read_header", lambda p: read.append(p) or read_header(p))
    index = BagIndex(tmp_path)
    assert index.find_problems("abz") == ["z: has no bag"]
    assert index.find_problems("abz", allow_missing=True) == []
    assert Dataset(cohort_of(*"abc"), index).dim == 4
    assert sorted(read) == paths


def test_a_part_of_a_dataset_has_the_bags_of_its_slides(tmp_path: Path) -> None:
    for name in "abc":
        write(tmp_path / f"{name}.h5")
    dataset = Dataset(cohort_of(*"abc"), tmp_path).with_hashes({"a": "1", "b": "2", "c": "3"})
    part = dataset.restrict_to(["c", "a"])
    assert (list(part.bags), dict(part.hashes), len(part)) == (["a", "c"], {"a": "1", "c": "3"}, 2)
    with pytest.raises(AttributeError):
        part.cohort = dataset.cohort
