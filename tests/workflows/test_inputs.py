"""Slides and bags are distinguished, and each has its own name."""

from __future__ import annotations

from pathlib import Path

import pytest
from answering import write_bags

from sacmil.errors import FormatError, SlideError
from sacmil.workflows.inputs import find_inputs, prefetch_bags


def touched(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(b"x")
    return folder


def test_files_are_distinguished_by_their_suffix(tmp_path: Path) -> None:
    touched(tmp_path, "a.h5", "b.svs", "c.pt", "d.unknown")
    found = find_inputs(sorted(tmp_path.iterdir()), outside=tmp_path / "out")
    assert (sorted(found.bags), sorted(found.slides)) == (["a", "c"], ["b", "d"])


def test_pictures_beside_bags_are_no_slides(tmp_path: Path) -> None:
    touched(tmp_path, "bags/a.h5", "bags/masks/a.jpg", "slides/deep/b.svs")
    found = find_inputs([tmp_path / "bags", tmp_path / "slides"], outside=tmp_path / "out")
    assert (list(found.bags), list(found.slides)) == (["a"], ["b"])


def test_what_an_earlier_run_made_is_no_item(tmp_path: Path) -> None:
    touched(tmp_path, "a.svs", "out/thumbnails/a.jpg", "out/bags/a.h5")
    found = find_inputs([tmp_path], outside=tmp_path / "out")
    assert (list(found.bags), list(found.slides)) == ([], ["a"])


def test_a_slide_and_a_bag_of_one_name_are_not_both_answered(tmp_path: Path) -> None:
    touched(tmp_path, "a.svs", "a.h5")
    with pytest.raises(FormatError, match=r"a is given as the bag.*by `slides`"):
        find_inputs([tmp_path / "a.svs", tmp_path / "a.h5"], outside=tmp_path / "out")


def test_an_empty_folder_and_a_missing_file_are_reported(tmp_path: Path) -> None:
    with pytest.raises(SlideError, match=r"holds no bags .* and no slides found"):
        find_inputs([tmp_path], outside=tmp_path / "out")
    with pytest.raises(SlideError, match="there is no such file"):
        find_inputs([tmp_path / "x.svs"], outside=tmp_path / "out")


def test_a_link_that_leads_nowhere_comes_as_its_reason(tmp_path: Path) -> None:
    write_bags(tmp_path, "a")
    (tmp_path / "lost.h5").symlink_to(tmp_path / "absent")
    found = find_inputs([tmp_path], outside=tmp_path / "out")
    assert list(found.bags) == ["a", "lost"]
    whole, lost = prefetch_bags(found.bags.values())
    assert whole.value
    assert "lost.h5" in str(lost.failure)


def test_bags_come_in_order_and_a_damaged_one_as_its_reason(tmp_path: Path) -> None:
    write_bags(tmp_path, "a", "b", "c", "d", "e")
    (tmp_path / "c.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + b"\0" * 99)
    outcomes = list(prefetch_bags(sorted(tmp_path.iterdir())))
    assert [outcome.key for outcome in outcomes] == [0, 1, 2, 3, 4]
    assert [o.value.bag.slide_id if o.value else None for o in outcomes] == [*"ab", None, *"de"]
    assert "c.h5" in str(outcomes[2].failure)
