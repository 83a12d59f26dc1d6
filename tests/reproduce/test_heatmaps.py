"""``sacmil reproduce heatmaps``, its parts that train nothing."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sacmil import Bag
from sacmil.errors import CohortError
from sacmil.reproduce import heatmaps
from sacmil.reproduce.experiments import ReproduceRequest
from sacmil.reproduce.heatmaps import ROWS, ScoredSlide, _load_truth, _score_slides, select_slides


def make_drawn(name: str, positive: int) -> ScoredSlide:
    coords = np.array([(x * 10, y * 10) for x in range(8) for y in range(5)])
    bag = Bag(name, np.ones((40, 2), np.float32), coords, 10, mpp=1.0)
    labels = (np.arange(40) < positive).astype(np.int64)
    perfect = labels.astype(np.float32)
    return ScoredSlide(bag, labels, None, dict.fromkeys(ROWS, perfect) | {"AB-MIL": -perfect})


def test_the_slides_shown_go_from_the_largest_lesion_to_the_smallest() -> None:
    slides = [make_drawn(f"s{n}", n) for n in range(20, 0, -1)]
    assert [slide.bag.slide_id for slide in select_slides(slides)] == ["s20", "s14", "s7", "s1"]
    assert select_slides(slides[:2]) == slides[:2]


def test_the_figure_has_a_row_per_slide_and_a_column_per_model(tmp_path) -> None:
    slides = [make_drawn("a", 10), make_drawn("b", 3)]
    sheet = heatmaps._draw_sheet(slides, dict.fromkeys(ROWS, 0.5), None)
    wide = heatmaps.CELL_PX + heatmaps._GAP_PX
    assert sheet.shape[1] == (1 + len(ROWS)) * wide - heatmaps._GAP_PX
    one_row = heatmaps._draw_sheet(slides[:1], dict.fromkeys(ROWS, 0.5), None)
    assert sheet.shape[0] - one_row.shape[0] == wide + heatmaps._HEADER_PX


def test_the_table_says_how_well_each_model_finds_the_truth(tmp_path) -> None:
    found = dict.fromkeys(ROWS, 1.0) | {"AB-MIL": 0.0}
    path = heatmaps._write_table(tmp_path / "t.csv", [make_drawn("a", 10)], found)
    header, row, mean = path.read_text().splitlines()
    assert header == "slide_id,tiles,positive,SAC-MIL,AB-MIL,CLAM-SB,Trans-MIL"
    assert row == "a,40,10,1.000000,0.000000,1.000000,1.000000"
    assert mean == "mean,,,1.000000,0.000000,1.000000,1.000000"


def test_outlines_come_before_the_labels_of_a_bag(tmp_path) -> None:
    drawn = make_drawn("a", 10)
    left = [[0, 0], [40, 0], [40, 50], [0, 50]]
    (tmp_path / "t.json").write_text(json.dumps({"a": {"positive": [left]}}))
    labels, outlines = _load_truth(drawn.bag, tmp_path / "t.json")
    assert outlines is not None
    assert (labels == (drawn.bag.coords[:, 0] < 40)).all()
    assert _load_truth(drawn.bag, None) == (None, None)


def test_a_cohort_without_truth_says_what_is_expected(monkeypatch, tmp_path) -> None:
    from types import SimpleNamespace

    bag = make_drawn("a", 1).bag
    monkeypatch.setattr(heatmaps, "read_bag", lambda path: bag)
    monkeypatch.setattr(heatmaps, "load_model", lambda path: None)
    material = SimpleNamespace(
        folds=[SimpleNamespace(test=["a"])],
        data=SimpleNamespace(bags={"a": tmp_path}),
        description="mine",
    )
    with pytest.raises(CohortError, match="annotations by `truth`"):
        _score_slides(tmp_path, material, ReproduceRequest())
