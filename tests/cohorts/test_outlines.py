"""Outlines on disk become polygons, and tiles get their labels by covered area."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from sacmil.cohorts.outlines import label_tiles, make_outlines, read_outlines
from sacmil.errors import CohortError

SQUARE = [[0, 0], [100, 0], [100, 100], [0, 100]]


def test_json_outlines_are_read_zipped_or_not_and_in_ncrfs_own_form(tmp_path: Path) -> None:
    plain = {"tumor_001": {"positive": [SQUARE, [[1, 2], [3, 4]]], "negative": [SQUARE[:3]]}}
    ncrf = {"tumor_001": {"positive": [{"name": "a", "vertices": SQUARE}], "negative": []}}
    (tmp_path / "a.json").write_text(json.dumps(plain))
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(json.dumps(plain).encode()))
    (tmp_path / "b.json").write_text(json.dumps(ncrf))
    for name in ("a.json", "a.json.gz", "b.json"):
        found = read_outlines(tmp_path / name)["tumor_001"]
        assert [polygon.tolist() for polygon in found.positive] == [SQUARE]  # two points are none
    assert len(read_outlines(tmp_path / "a.json")["tumor_001"].negative) == 1


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b'{"a": []}',
        b'{"a": {"negative": []}}',
        b'{"a": {"positive": [[[0, 0], [1, 0], [1, ' + b"9" * 400 + b"]]]}}",
        b'{"a": {"positive": [[[1, 2, 3], [1, 2, 3], [1, 2, 3]]]}}',
        b'{"a": {"positive": [[[1, NaN], [1, 2], [3, 4]]]}}',
        b'{"a": {"positive": [["x", "y", "z"]]}}',
        gzip.compress(b"{}", mtime=0)[:-4],
        b"\xff",
    ],
)
def test_damaged_outlines_are_rejected(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(CohortError, match=r"a\.json"):
        read_outlines(tmp_path / "a.json")


def test_tiles_are_labelled_by_the_share_that_is_covered() -> None:
    outlines = make_outlines([SQUARE], [[[50, 0], [100, 0], [100, 50], [50, 50]]])
    coords = [[0, 0], [50, 0], [0, 75], [0, 80], [200, 0]]
    assert label_tiles(coords, 50, outlines).tolist() == [1, 0, 1, 0, 0]
    assert label_tiles(coords, 50, outlines, min_share=0.4).tolist() == [1, 0, 1, 1, 0]
    assert label_tiles(coords, 50, outlines, min_share=1).tolist() == [1, 0, 0, 0, 0]
    assert label_tiles(coords, 50, outlines).dtype == np.int64


@pytest.mark.parametrize("min_share", [0, -1, 1.1, float("nan")])
def test_a_share_that_makes_no_sense_is_rejected(min_share: float) -> None:
    with pytest.raises(CohortError, match="min_share"):
        label_tiles([[0, 0]], 50, make_outlines([SQUARE]), min_share=min_share)


@pytest.mark.parametrize("patch_size", [0, -256, float("nan")])
def test_a_patch_size_that_makes_no_sense_is_rejected(patch_size: float) -> None:
    with pytest.raises(CohortError, match="patch_size"):
        label_tiles([[0, 0]], patch_size, make_outlines([SQUARE]))
