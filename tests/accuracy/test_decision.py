"""What becomes the default recipe is decided by a rule, not by whoever reads the tables."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from benchmarks.accuracy._decision import Ranked, decide, worse_on
from benchmarks.accuracy._figures import Standing, standings
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._lines import Line, to_line

STANDARD, CALM, CALMER = (f"abmil, {recipe}" for recipe in ("standard", "calm", "calmer"))
LOSSES = {STANDARD: [0.9, 0.7], CALM: [0.5, 0.5], CALMER: [0.2, 0.3]}
LABELS = [number % 2 for number in range(60)]
GOOD, BAD, BLIND = 2.0, 0.6, 0.0
"""How far answers to the two classes lie apart."""


def line(variant: str, apart: float, seed: int) -> Line:
    odds = apart * np.array(LABELS) + np.random.default_rng(seed).standard_normal(60)
    job = Job(study="s", task="t", variant=variant, model="abmil", source={})
    found = {"labels": LABELS, "answers": odds.tolist(), "units": [f"u{n}" for n in range(60)]}
    return to_line(job, found)


def on_a_task(standard: float, calm: float, calmer: float) -> list[Standing]:
    lines = zip((STANDARD, CALM, CALMER), (standard, calm, calmer), (0, 1, 2), strict=True)
    return standings([line(*one) for one in lines], STANDARD)


def test_the_calmest_is_taken_where_nothing_is_lost() -> None:
    decision = decide({STANDARD: {"a": on_a_task(GOOD, GOOD, GOOD)}}, LOSSES)
    assert decision.recipe == "calmer"
    assert decision.log_loss == {"standard": 0.8, "calm": 0.5, "calmer": 0.25}
    assert not decision.worse


def test_a_recipe_that_loses_with_any_model_is_not_taken() -> None:
    fine = [replace_variant(row, "dsmil") for row in on_a_task(GOOD, GOOD, GOOD)]
    held = {"dsmil, standard": {"a": fine}, STANDARD: {"b": on_a_task(GOOD, GOOD, BAD)}}
    decision = decide(held, LOSSES)
    assert decision.recipe == "calm"
    assert decision.worse == {"calmer": ["abmil on b"]}


def test_standard_stays_where_all_others_lose() -> None:
    decision = decide({STANDARD: {"a": on_a_task(GOOD, BAD, BAD)}}, LOSSES)
    assert decision.recipe == "standard"


def test_what_gains_is_not_worse() -> None:
    assert not worse_on({"a": on_a_task(BAD, GOOD, GOOD)}, STANDARD)


def test_nothing_is_lost_where_standard_sees_nothing() -> None:
    rows = on_a_task(BLIND, BLIND, -BAD)
    (lost,) = (row for row in rows if row.variant == CALMER)
    assert lost.against is not None
    assert lost.against.p_bootstrap is not None
    assert lost.against.p_bootstrap < 0.05
    assert lost.against.difference > 0
    assert not worse_on({"a": rows}, STANDARD)


def test_one_unlucky_task_of_many_does_not_decide() -> None:
    def of_many(p: float) -> Ranked:
        rows = on_a_task(GOOD, GOOD, BAD)
        unlucky = [with_p(row, p if row.variant == CALMER else 1.0) for row in rows]
        others = [with_p(row, 1.0) for row in rows]
        return {"unlucky": unlucky, **{str(number): others for number in range(9)}}

    assert not worse_on(of_many(0.01), STANDARD)
    assert worse_on(of_many(0.001), STANDARD) == {CALMER: ["unlucky"]}


def replace_variant(row: Standing, model: str) -> Standing:
    return row._replace(variant=row.variant.replace("abmil", model))


def with_p(row: Standing, p: float) -> Standing:
    return row._replace(against=row.against and replace(row.against, p_bootstrap=p))
