"""Planners: found by name, made of numbers, without torch."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sacmil import create_model, list_models
from sacmil.deploy.graph import TRACED_BAG_SIZES
from sacmil.errors import OptionError
from sacmil.plans import Planner, list_planners, make_plan
from sacmil.plans.planners import find_token_rows, list_attended_tokens

COORDS = np.stack(np.divmod(np.random.default_rng(0).permutation(100)[:70], 10), axis=1) * 1.0
sizes = st.tuples(st.integers(1, 60), st.integers(1, 70), st.integers(1, 9))


@pytest.mark.parametrize("name", list_models())
def test_a_models_plan_is_what_its_planner_makes(name: str) -> None:
    model = create_model(name, in_dim=4, num_classes=2)
    made = make_plan(model.planner.name, model.planner.options, COORDS)
    planned = model.plan(COORDS)
    assert list(made) == list(planned)
    assert all(np.array_equal(made[key], planned[key]) for key in made)
    assert model.plan_keys <= set(made)


def test_plans_need_no_torch() -> None:
    code = """
import sys; sys.modules["torch"] = None
import numpy as np
from sacmil.plans import list_planners, make_plan
assert "arrangement" in list_planners()
options = {"k": 4, "centers": "fps", "order": "fps"}
order = make_plan("arrangement", options, np.random.rand(9, 2))["order"]
assert sorted(order) == list(range(9))
make_plan("tissue_graph", {"neighbours": 3}, np.random.rand(9, 2))
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", ["orderz", "planners", "../card", "os", ""])
def test_only_planners_are_found(name: str) -> None:
    with pytest.raises(OptionError, match="there is no planner"):
        make_plan(name, {}, COORDS)


def test_options_of_another_planner_are_rejected() -> None:
    with pytest.raises(OptionError, match="'orders' does not accept"):
        make_plan("orders", {"k": 3}, COORDS)


def test_the_default_plans_nothing() -> None:
    assert Planner().name in list_planners()
    assert make_plan("nothing", {}, COORDS) == {}


def test_every_cell_of_a_region_square_leads_back_to_its_instance() -> None:
    for n in (1, 2, 63, 64, 65, 70):
        plan = make_plan("square_regions", {"of": 3}, np.zeros((n, 2)))
        assert plan["of"].flatten()[plan["of_at"]].tolist() == list(range(n))
        assert (plan["of"] < n).sum() == n


def test_patches_of_one_slot_are_one_in_the_table() -> None:
    coords = np.array([[0.0, 0], [0.2, 0], [5, 0], [1, 1]])
    plan = make_plan("slots", {"side": 2}, coords)
    assert plan["which"].tolist() == [0, 0, 2, 1]
    assert plan["places"].tolist() == [0, 3, 1]
    assert plan["table"].tolist() == [[0, 1], [2, 3]]


# --- segments: every token attends to those of its group, and finds its own output again


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
