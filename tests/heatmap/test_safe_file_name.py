"""Names of slides in file names."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sacmil.heatmap import safe_file_name


@given(st.text(min_size=1))
def test_any_name_stays_in_its_folder_and_can_be_written(text: str) -> None:
    name = safe_file_name(text)
    assert Path("out", f"{name}_overlay.png").parent == Path("out")
    assert name not in {"", ".", ".."}
    assert not set(name) & set('/\\:*?"<>|\0\n')
    assert len(name.encode()) < 120


@given(st.text(min_size=1), st.text(min_size=1))
def test_different_slides_have_different_files(one: str, other: str) -> None:
    assert (safe_file_name(one) == safe_file_name(other)) == (one == other)
