"""Segments: every token meets those of its group, and finds its own answer again."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacmil import create_model
from sacmil.deploy.export import TRACED_BAG_SIZES
from sacmil.plans import make_plan
from sacmil.plans.segments import find_token_rows, list_attended_tokens

sizes = st.tuples(st.integers(1, 60), st.integers(1, 70), st.integers(1, 9))


@given(sizes)
def test_tokens_attend_where_segment_and_remainder_agree(case: tuple[int, int, int]) -> None:
    n, w, r = case
    met = [{*row.tolist()} - {n} for row in list_attended_tokens(n, w, r)]
    groups: dict[tuple[int, int], set[int]] = {}
    for token in range(n):
        groups.setdefault((token // w, token % w % r), set()).add(token)
    assert sorted(map(sorted, filter(None, met))) == sorted(map(sorted, groups.values()))


@given(sizes)
def test_every_token_finds_itself(case: tuple[int, int, int]) -> None:
    n = case[0]
    np.testing.assert_array_equal(
        list_attended_tokens(*case).reshape(-1)[find_token_rows(*case)], np.arange(n)
    )


@given(sizes)
def test_the_official_placement_moves_rows_only_after_an_uneven_segment(
    case: tuple[int, int, int],
) -> None:
    n, w, r = case
    same = np.array_equal(find_token_rows(*case), find_token_rows(*case, legacy_placement=True))
    assert same == (w >= n or w % r == 0)


@pytest.mark.parametrize("dilations", [[1], [1, 2, 4, 8, 16], [3, 5, 7], [100, 140]])
def test_graphs_are_traced_with_plans_that_differ_in_every_dynamic_axis(
    dilations: list[int],
) -> None:
    segments = [1 << 20] * len(dilations)
    model = create_model("longnet", in_dim=3, num_classes=2, segments=segments, dilations=dilations)
    one, other = (
        make_plan("segments", {**model.planner.options, **drawn}, np.zeros((n, 2)))
        for n, drawn in zip(TRACED_BAG_SIZES, model.planner.trace_options, strict=True)
    )
    for key in one:
        assert min(one[key].shape) > 1
        assert all(a != b for a, b in zip(one[key].shape, other[key].shape, strict=True)), key
