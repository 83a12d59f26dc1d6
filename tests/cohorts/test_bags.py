"""Every slide has its bag, or all slides without one are reported before training."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from sacmil import Bag, write_bag
from sacmil.bag import EncoderId
from sacmil.cohorts.bags import check_bags, drop_slides_without_bag, locate_bags
from sacmil.cohorts.cohort import Cohort, LabeledSlide
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
        locate_bags(cohort, folders)
    return raised.value.problems


def test_bags_are_found_by_name_in_any_layout_and_depth(tmp_path: Path) -> None:
    for name in ("one/h5_files/a.h5", "one/pt_files/a.pt", "two/pt_files/b.pt", "two/x/c.svs.h5"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    found = locate_bags(cohort_of("c", "a", "b"), [tmp_path / "one", tmp_path / "two"])
    assert [(name, path.name) for name, path in found.items()] == [
        ("c", "c.svs.h5"),
        ("a", "a.h5"),
        ("b", "b.pt"),
    ]
    assert locate_bags(cohort_of("a"), str(tmp_path / "one")) == {"a": found["a"]}


def test_all_missing_bags_are_reported_with_the_file_they_may_be(tmp_path: Path) -> None:
    for name in ("Slide-1.h5", "TCGA-3C-AALI-01Z-00-DX1.F6E9A5DF.h5", "case_0012.h5", "here.h5"):
        (tmp_path / name).touch()
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
        (tmp_path / f"{name}.h5").touch()
    with pytest.warns(CohortWarning, match="2 of 6 slides have no bag, left out: e, f"):
        left = drop_slides_without_bag(cohort_of(*"abcdef"), tmp_path)
    assert [slide.slide_id for slide in left.slides] == list("abcd")
    assert drop_slides_without_bag(left, tmp_path) == left


def test_dropping_does_not_drop_a_class(tmp_path: Path) -> None:
    for name in "ace":
        (tmp_path / f"{name}.h5").touch()
    with pytest.raises(CohortError, match="class 'b' has 0 patients"):
        drop_slides_without_bag(cohort_of(*"abcdef"), tmp_path)
    with pytest.raises(CohortError, match="x: has no bag"):
        drop_slides_without_bag(cohort_of("x", "y"), tmp_path)


def test_bags_of_one_width_and_encoder_go_together(tmp_path: Path) -> None:
    paths = {name: write(tmp_path / f"{name}.h5", encoder="uni_v1") for name in "ab"}
    paths["c"] = write(tmp_path / "c.h5")  # does not say
    (tmp_path / "features").mkdir()
    paths["d"] = tmp_path / "features" / "d.npy"
    np.save(paths["d"], np.ones((5, 4)))
    paths["e"] = tmp_path / "e.pt"
    paths["e"].write_bytes(b"torch")
    assert check_bags(paths) == 4
    assert check_bags({"e": paths["e"]}) is None


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
        check_bags(paths)
    problems = raised.value.problems
    assert len(problems) == 4
    assert "truncated or damaged" in problems[0]
    assert "holds no instances" in problems[1]
    assert "holds coords; expected features or feats" in problems[2]
    assert "8 features; expected 4 features, as 2 others have" in problems[3]


def test_bags_of_two_encoders_of_one_width_are_rejected(tmp_path: Path) -> None:
    paths = {n: write(tmp_path / f"{n}.h5", encoder=e) for n, e in zip("abc", "xxy", strict=True)}
    with pytest.raises(CohortError, match=r"c\.h5: y; expected x"):
        check_bags(paths)
