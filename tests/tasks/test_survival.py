"""Survival: losses against the published code's numbers, tables as hospitals write them, curves.

tests/golden/survival_losses.npz has arrays of ../shared/golden/targets/{nll_surv,cox,bins}.npz:
PORPOISE, SurvPath and statsmodels 0.15.0.
"""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sacmil.cohorts.cohort import Cohort, read_cohort, write_cohort
from sacmil.errors import CohortError, CohortWarning, OptionError, SacMILError
from sacmil.metrics.survival import baseline_hazard, cumulative_auc, curve_in_bins
from sacmil.tasks import Survival, from_card, make_task
from sacmil.tasks._survival_metrics import rank_by_survival
from sacmil.tasks.survival import cox_loss, discrete_nll, time_bins

few = settings(deadline=None, max_examples=40, derandomize=True)
PLAIN: dict[str, Any] = {"label_smoothing": 0.0, "class_weights": "none"}
NLL_CASES = ("mixed", "all_censored", "none_censored", "clamped")
COX_CASES = (
    *("ties", "no_ties", "censored_first_tie", "tiny_event_first", "tiny_censored_first"),
    *("large", "no_events", "one_patient"),
)

with np.load(Path(__file__).parents[1] / "golden" / "survival_losses.npz") as file:
    GOLDEN = dict(file)


# --- losses --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("case", NLL_CASES)
def test_the_discrete_loss_and_its_gradient_are_those_of_the_published_code(
    case: str, number: int
) -> None:
    found = {key: GOLDEN[f"nll/{case}/{key}"] for key in ("logits", "y", "c")}
    logits = torch.tensor(found["logits"], requires_grad=True)
    bins, events = torch.tensor(found["y"]), torch.tensor(1 - found["c"])
    loss = discrete_nll(logits, bins, events, alpha=float(GOLDEN["alphas"][number]))
    loss.backward()
    assert loss.item() == pytest.approx(GOLDEN[f"nll/{case}/nll_mean"][number], abs=1e-10)
    expected = GOLDEN[f"nll/{case}/nll_grad_mean"][number]
    np.testing.assert_allclose(logits.grad, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("ties", ["breslow", "efron"])
@pytest.mark.parametrize("case", COX_CASES)
def test_the_loss_of_cox_and_its_gradient_are_those_of_statsmodels(case: str, ties: Any) -> None:
    log_hazards = torch.tensor(GOLDEN[f"cox/{case}/log_hazard"], requires_grad=True)
    times, events = (torch.tensor(GOLDEN[f"cox/{case}/{key}"]) for key in ("time", "event"))
    count = max(1, int(GOLDEN[f"cox/{case}/events"]))
    loss = cox_loss(log_hazards, times, events, ties)
    loss.backward()
    assert loss.item() * count == pytest.approx(float(GOLDEN[f"cox/{case}/{ties}_sum"]), abs=1e-9)
    expected = GOLDEN[f"cox/{case}/{ties}_grad_sum"]
    np.testing.assert_allclose(log_hazards.grad * count, expected, rtol=0, atol=1e-10)


@given(st.integers(0, 2**31), st.integers(2, 30))
@few
def test_cox_ignores_the_order_of_patients_and_what_all_share(seed: int, count: int) -> None:
    random = np.random.default_rng(seed)
    eta = torch.tensor(random.standard_normal(count))
    times = torch.tensor(random.integers(1, 8, count).astype(float))
    events = torch.tensor(random.random(count) < 0.6)
    loss = cox_loss(eta, times, events)
    order = torch.tensor(random.permutation(count))
    torch.testing.assert_close(cox_loss(eta[order], times[order], events[order]), loss)
    torch.testing.assert_close(cox_loss(eta + 300, times, events), loss)


def test_the_cox_loss_of_half_precision_is_finite() -> None:
    eta = torch.tensor([80.0, -80.0, 3.0], dtype=torch.bfloat16, requires_grad=True)
    loss = cox_loss(eta, torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 1, 1]))
    loss.backward()
    assert torch.isfinite(loss)
    assert loss.dtype == torch.float32
    assert torch.isfinite(eta.grad).all()


def test_edges_of_bins_are_those_of_the_published_code() -> None:
    times, events = GOLDEN["bins/time"], 1 - GOLDEN["bins/censorship"]
    edges = time_bins(times, events, 4)
    np.testing.assert_array_equal(edges, GOLDEN["bins/mcat_edges"][1:-1])
    found = np.searchsorted(edges, times, side="right")
    np.testing.assert_array_equal(found, GOLDEN["bins/mcat_label"])


def test_equal_quantiles_and_the_smallest_time_are_no_edges() -> None:
    assert time_bins([5, 5, 5, 5, 9], [1] * 5, 4).tolist() == []
    assert time_bins([1, 5, 5, 5, 9], [1] * 5, 4).tolist() == [5]
    with pytest.raises(ValueError, match="3 events for 4 bins"):
        time_bins([1, 2, 3, 4], [1, 1, 1, 0], 4)
    for times, events in (([1, math.nan], [1, 1]), ([1, 2], [1, math.nan])):
        with pytest.raises(ValueError, match="are missing"):
            time_bins(times, events, 1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_edges_of_tensors_are_a_tensor(dtype: torch.dtype) -> None:
    times, events = torch.arange(1, 10).to(dtype), torch.ones(9)
    found = time_bins(times, events, 4)
    assert found.tolist() == time_bins(times.numpy(), events.numpy(), 4).tolist() == [3, 5, 7]
    assert found.dtype == (torch.float64 if dtype == torch.int64 else dtype)


def test_losses_reject_what_is_not_one_value_per_patient() -> None:
    for bins in ([0, 3], [-1, 0]):
        with pytest.raises(ValueError, match="expected 0 to 2"):
            discrete_nll(torch.zeros(2, 3), torch.tensor(bins), torch.zeros(2))
    with pytest.raises(ValueError, match=r"expected \(B,\) each"):
        cox_loss(torch.zeros(2, 1), torch.ones(2), torch.ones(2))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_losses_of_half_precision_are_float32(dtype: torch.dtype) -> None:
    logits = torch.zeros(2, 3, dtype=dtype)
    loss = discrete_nll(logits, torch.tensor([0, 2]), torch.tensor([1, 0]))
    assert loss.dtype == torch.promote_types(dtype, torch.float32)


def fit(loss: str = "discrete", seed: int = 0, count: int = 40, **options: Any) -> Survival:
    """Return a task with bins of random patients."""
    task = Survival("t", "e", loss, horizons=(5, 20), curve_times=(5, 10, 20, 40), **options)
    return task.fitted(draw_targets(seed, count), **PLAIN)


def draw_targets(seed: int, count: int) -> np.ndarray[Any, Any]:
    random = np.random.default_rng(seed)
    times = np.round(random.exponential(15, count) + 0.1, 1)
    return np.stack([times, random.random(count) < 0.6], axis=1).astype(float)


@pytest.mark.parametrize("alpha", [0.0, 0.4])
def test_the_loss_of_a_step_is_the_loss_of_the_batch(alpha: float) -> None:
    task = fit(alpha=alpha)
    targets = draw_targets(1, 25)
    outputs = torch.randn(25, 4, generator=torch.Generator().manual_seed(0))
    rows = task.loss(outputs.double(), torch.tensor(targets))
    steps = [task.prepared_loss(z, task.prepare(y)) for z, y in zip(outputs, targets, strict=True)]
    torch.testing.assert_close(torch.stack(steps), rows.float())
    bins = torch.tensor(np.searchsorted(task.learned.edges, targets[:, 0], side="right"))
    found = discrete_nll(outputs.double(), bins, torch.tensor(targets[:, 1]), alpha)
    torch.testing.assert_close(rows.mean(), found)


# --- curves --------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", NLL_CASES)
def test_risk_is_that_of_the_published_code(case: str) -> None:
    logits = torch.tensor(GOLDEN[f"nll/{case}/logits"])
    risk = fit().activate(logits)[:, 0]
    np.testing.assert_allclose(risk, GOLDEN[f"nll/{case}/risk"], rtol=1e-6, atol=1e-12)


@given(st.integers(0, 2**31))
@few
def test_the_curve_follows_the_hazards_of_the_bins(seed: int) -> None:
    task = fit(seed=seed % 50)
    logits = torch.randn(6, task.outputs, generator=torch.Generator().manual_seed(seed))
    predicted = task.activate(logits)[:, 2:].numpy()
    at_edges = np.cumprod(1 - torch.sigmoid(logits.double()).numpy(), axis=1)
    last = task.learned.last_time
    at = np.minimum(task.curve_times, last)  # flat beyond the last training time
    expected = curve_in_bins(at_edges, np.array(task.learned.edges), last, at)
    np.testing.assert_allclose(predicted, expected, rtol=2e-5, atol=1e-7)
    assert (np.diff(predicted, axis=1) <= 1e-7).all()


def test_survival_of_cox_is_that_of_the_training_baseline() -> None:
    task, targets = fit("cox"), draw_targets(0, 40)
    outputs = np.random.default_rng(3).standard_normal((40, 1))
    learned = task.calibrated(outputs, targets)
    times, hazard = baseline_hazard(targets[:, 0], targets[:, 1], outputs[:, 0])
    found = learned.activate(torch.tensor(outputs)).numpy()
    for column, time in enumerate(task.curve_times, start=2):
        step = hazard[times <= time].max(initial=0)
        expected = np.exp(-step * np.exp(outputs[:, 0]))
        np.testing.assert_allclose(found[:, column], expected, rtol=1e-5)
    np.testing.assert_array_equal(found[:, 0], outputs[:, 0].astype(np.float32))


@pytest.mark.parametrize("loss", ["discrete", "cox"])
def test_the_percentile_counts_training_patients_with_a_lower_risk(loss: str) -> None:
    task, targets = fit(loss), draw_targets(0, 40)
    random = np.random.default_rng(5)
    outputs = random.standard_normal((40, task.outputs))
    learned = task.calibrated(outputs, targets)
    found = learned.activate(torch.tensor(outputs)).numpy()
    order = np.argsort(found[:, 0])
    assert (np.diff(found[order, 1]) >= 0).all()
    assert found[:, 1].mean() == pytest.approx(0.5, abs=0.02)
    is_high = found[:, 1] > 0.5
    np.testing.assert_array_equal(is_high, found[:, 0] > np.median(found[:, 0]))


def test_a_patient_counts_once_in_the_median() -> None:
    task = fit("cox")
    targets = np.array([[3.0, 1], [3, 1], [3, 1], [8, 0], [9, 1]])
    outputs = np.array([[2.0], [4], [6], [0], [1]])
    learned = task.calibrated(outputs, targets, ["a", "a", "a", "b", "c"])
    assert learned.learned.risk_quantiles[50] == 1  # of 4, 0 and 1


@pytest.mark.parametrize("loss", ["discrete", "cox"])
def test_an_instance_has_the_risk_of_a_slide_of_such_instances_above_the_median(loss: str) -> None:
    """Contributions add up to the outputs but for a bias; logits of an instance are its own."""
    task, targets = fit(loss), draw_targets(0, 40)
    random = np.random.default_rng(8)
    outputs = random.standard_normal((40, task.outputs))
    bias = random.standard_normal(task.outputs)
    wanted = random.standard_normal((5, task.outputs))
    for sums, scores in ((outputs - bias, (wanted - bias) / 5), (None, wanted)):
        learned = task.calibrated(outputs, targets, None, sums)
        found = learned.combine_scores(scores.astype(np.float32))
        risks = learned.activate(torch.tensor(wanted)).numpy()[:, 0]
        median = np.median(learned.activate(torch.tensor(outputs)).numpy()[:, 0])
        np.testing.assert_allclose(found[:, 0], risks - median, atol=2e-6)
        again = from_card(json.loads(json.dumps(vars(learned.card))))
        np.testing.assert_array_equal(again.combine_scores(scores.astype(np.float32)), found)


def test_the_summary_names_the_group_and_survival_at_the_horizons() -> None:
    task = Survival("t", "e", unit="months", horizons=(12,), curve_times=(6, 12))
    values = np.array([-2.0, 0.8, 0.9, 0.7])
    prediction = task.make_prediction("a", values, np.zeros(3, np.float32), None)
    found = task.describe(prediction)
    assert found.headline == "high risk, above 80% of the training patients"
    assert ("survival 12 months", 0.7) in found.values
    curve = task.get_curve(prediction)
    assert (curve.x, curve.y) == ((0, 6, 12), (1, 0.9, 0.7))
    assert curve.x_title == "time (months)"


@pytest.mark.parametrize("loss", ["discrete", "cox"])
def test_the_card_makes_the_same_task(loss: str) -> None:
    task, targets = fit(loss), draw_targets(0, 40)
    outputs = np.random.default_rng(7).standard_normal((40, task.outputs))
    learned = task.calibrated(outputs, targets)
    stored = json.loads(json.dumps(vars(learned.card)))
    again = from_card(stored)
    assert again == learned
    torch.testing.assert_close(
        again.activate(torch.tensor(outputs)), learned.activate(torch.tensor(outputs))
    )


@pytest.mark.parametrize(
    ("learned", "words"),
    [
        ({"edges": [5, 3], "last_time": 9}, "rising numbers"),
        ({"edges": [3, 5], "last_time": float("nan")}, "rising numbers"),
        ({"quantiles": [1]}, "no setting 'quantiles'"),
        ({"edges": "a"}, "settings of the task survival"),
    ],
)
def test_a_damaged_card_is_rejected(learned: dict[str, Any], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        make_task("survival", time=["t"], event="e", learned=learned)


@pytest.mark.parametrize("name", ["bins", "alpha", "loss", "ties", "horizons", "curve_times"])
def test_wrong_settings_are_named(name: str) -> None:
    wrong = {"bins": 1, "alpha": 2, "loss": "x", "ties": "x"}.get(name, [3, 2])
    with pytest.raises(OptionError, match=f"`{name}`"):
        make_task("survival", time="t", event="e", **{name: wrong})


def test_too_few_events_for_the_bins_of_a_fold_are_an_error_with_a_way_out() -> None:
    targets = np.array([[1, 1], [2, 1], [3, 0], [4, 0]], float)
    with pytest.raises(SacMILError, match=r"2 events for 4 bins.*fewer `bins`"):
        Survival("t", "e").fitted(targets, **PLAIN)
    with pytest.raises(SacMILError, match="no event"):
        Survival("t", "e", "cox").fitted(targets[2:], **PLAIN)


def test_merged_bins_are_fewer_outputs_and_reported() -> None:
    targets = np.array([[5, 1], [5, 1], [5, 1], [9, 1], [9, 0]], float)
    with pytest.warns(CohortWarning, match="2 bins instead of 4"):
        task = Survival("t", "e", curve_times=(5, 9)).fitted(targets, **PLAIN)
    assert task.outputs == 2


# --- tables --------------------------------------------------------------------------------------


def write_table(folder: Path, columns: dict[str, list[object]]) -> Path:
    rows = len(next(iter(columns.values())))
    ids = {"slide_id": [f"s{n}" for n in range(rows)], "patient_id": [f"p{n}" for n in range(rows)]}
    path = folder / "table.csv"
    pd.DataFrame({**ids, **columns}).to_csv(path, index=False)
    return path


def read(folder: Path, columns: dict[str, list[object]], **options: Any) -> Cohort:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CohortWarning)
        return read_cohort(write_table(folder, columns), task="survival", min_patients=0, **options)


TIMES = [3.5, 12, 20, 40]
TABLES = {
    "mcat": ({"survival_months": TIMES, "censorship": [1, 0, 1.0, 0]}, "months"),
    "panther": ({"os_survival_days": TIMES, "os_censorship": [1, 0, 1, 0]}, "days"),
    "cbioportal": (
        {
            "OS_MONTHS": TIMES,
            "OS_STATUS": ["0:LIVING", "1:DECEASED", "0:LIVING", "1:DECEASED"],
        },
        "months",
    ),
    "cbioportal before 3.4": (
        {"DFS_MONTHS": TIMES, "DFS_STATUS": ["DiseaseFree", "Recurred/Progressed"] * 2},
        "months",
    ),
    "tcga cdr": ({"OS": [0, 1, 0, 1], "OS.time": TIMES}, "days"),
    "stamp": ({"time_label": TIMES, "status_label": ["alive", "dead", "Alive", "Dead"]}, ""),
    "gdc": (
        {
            "vital_status": ["Alive", "Dead", "Alive", "Dead"],
            "days_to_death": ["'--", 12, "", 40],
            "days_to_last_follow_up": [3.5, "", 20, 7],
        },
        "days",
    ),
    "yes and no": ({"time": TIMES, "event": ["no", "yes", "NO", "Yes"]}, ""),
    "booleans": ({"time": TIMES, "status": [False, True, False, True]}, ""),
}


@pytest.mark.parametrize("name", TABLES)
def test_time_and_status_are_found_and_read(tmp_path: Path, name: str) -> None:
    columns, unit = TABLES[name]
    cohort = read(tmp_path, columns)
    np.testing.assert_array_equal(cohort.targets, np.transpose([TIMES, [0, 1, 0, 1]]))
    assert isinstance(cohort.task, Survival)
    assert cohort.task.unit == unit
    assert "2 events, 2 censored" in cohort.describe_targets()


@pytest.mark.parametrize("name", TABLES)
def test_a_cohort_that_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    cohort = read(tmp_path, TABLES[name][0])
    write_cohort(tmp_path / "again.csv", cohort)
    again = read_cohort(tmp_path / "again.csv", task="survival", min_patients=0)
    assert again.slides == cohort.slides
    assert again.task == cohort.task


def test_a_column_of_censoring_is_inverted_by_its_name_and_printed(tmp_path: Path) -> None:
    columns: dict[str, list[object]] = {"months": [*TIMES], "was_censored": [1, 1, 1, 0]}
    cohort = read(tmp_path, columns, time="months", event="was_censored")
    assert cohort.targets[:, 1].tolist() == [0, 0, 0, 1]
    assert "where 1 is censored: 1 events, 3 censored" in cohort.describe_targets()


BAD_TABLES = {
    "coded 1 and 2": ([1, 2, 3, 4], [1, 2, 1, 2], "coded 1 and 2", "line 3"),
    "empty status": ([1, 2, 3, 4], [1, "", 0, ""], "is empty in line 3, line 5", "missing status"),
    "unknown word": ([1, 2, 3, 4], ["dead", "lost", "alive", "dead"], "'lost' in line 3", "dead"),
    "two ways": ([1, 2, 3, 4], [1, 0, "dead", 0], "several ways", "'dead' (line 4)"),
    "prefix against word": ([1, 2, 3, 4], ["1:LIVING", "0:LIVING"] * 2, "'1:LIVING'", "line 2"),
    "negative": ([1, -2, 3, -4], [1, 0, 1, 0], "negative in line 3, line 5", "follow"),
    "empty time": ([1, "", 3, 4], [1, 0, 1, 0], "is empty in line 3", "number"),
    "text": ([1, "12 months", 3, 4], [1, 0, 1, 0], "'12 months' in line 3", "number"),
    "infinite": ([1, "inf", 3, 4], [1, 0, 1, 0], "'inf' in line 3", "number"),
    "number": ([1, 2, 3, 4], [1, 0, 3, 0], "'3' in line 4", "1 for the event"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_what_cannot_be_read_is_one_list_with_rows(tmp_path: Path, name: str) -> None:
    times, events, words, more = BAD_TABLES[name]
    with pytest.raises(CohortError) as error:
        read(tmp_path, {"time": times, "event": events})
    assert words in str(error.value)
    if more != "follow":
        assert more in str(error.value)
    assert str(error.value).count("table.csv") == 1


def test_all_problems_are_in_one_list(tmp_path: Path) -> None:
    columns: dict[str, list[object]] = {"time": [-1, "x", 3], "event": [1, "", 9]}
    with pytest.raises(CohortError) as error:
        read(tmp_path, columns)
    assert len(error.value.problems) == 4


@pytest.mark.parametrize(
    ("column", "values", "words"),
    [
        ("days_to_death", ["", "", "", 40], "is empty for a death in line 3"),
        ("days_to_death", ["5", 12, "", 40], "is given for a patient who is alive in line 2"),
        ("days_to_last_follow_up", ["", "", 20, 7], "is empty for a patient who is alive in line"),
        ("vital_status", ["Alive", "Not Reported", "Alive", "Dead"], "'Not Reported' in line 3"),
    ],
)
def test_contradictions_of_the_gdc_are_errors(
    tmp_path: Path, column: str, values: list[object], words: str
) -> None:
    with pytest.raises(CohortError, match=words):
        read(tmp_path, {**TABLES["gdc"][0], column: values})


def test_slides_of_a_patient_must_agree(tmp_path: Path) -> None:
    columns: dict[str, list[object]] = {
        "patient_id": ["a", "a", "b", "c"],
        "time": [5, 6, 7, 8],
        "event": [1, 1, 0, 1],
    }
    with pytest.raises(CohortError, match="patient 'a' has slides with different values of time"):
        read(tmp_path, columns)
    columns |= {"time": [0, 6, 7, 8]}
    with pytest.raises(CohortError, match="patient 'a'"):
        read(tmp_path, columns)


def test_times_of_zero_are_left_out_and_counted(tmp_path: Path) -> None:
    path = write_table(tmp_path, {"time": [0, 6, 7, 0, 9], "event": [1, 1, 0, 0, 0]})
    with pytest.warns(CohortWarning, match="2 rows with a time of 0 are left out: line 2, line 5"):
        cohort = read_cohort(path, task="survival", min_patients=0)
    assert [slide.slide_id for slide in cohort.slides] == ["s1", "s2", "s4"]


def test_a_cohort_without_events_or_censoring_cannot_be_trained_on(tmp_path: Path) -> None:
    for events, words in (([0] * 4, "censored in every row"), ([1] * 4, "event in every row")):
        path = write_table(tmp_path, {"time": TIMES, "event": list(events)})
        with pytest.raises(CohortError, match=words):
            read_cohort(path, task="survival")
        assert len(read_cohort(path, task="survival", min_patients=0)) == 4


def test_events_are_counted_by_patient(tmp_path: Path) -> None:
    patients = ["a", "a", "b", "b", "c", "d", "e", "f"]
    columns: dict[str, list[object]] = {"patient_id": [*patients]}
    columns |= {"time": [1, 1, 2, 2, 3, 4, 5, 6], "event": [1, 1, 1, 1, 0, 0, 0, 0]}
    path = write_table(tmp_path, columns)
    with pytest.raises(CohortError, match="event is an event for 2 patients; expected at least 4"):
        read_cohort(path, task="survival")
    assert len(read_cohort(path, task="survival", loss="cox")) == 8


def test_equal_times_cannot_be_learned(tmp_path: Path) -> None:
    path = write_table(tmp_path, {"time": [5] * 10, "event": [0, 1] * 5})
    with pytest.raises(CohortError, match="time is 5 in every row; expected different times"):
        read_cohort(path, task="survival")
    assert len(read_cohort(path, task="survival", min_patients=0)) == 10


def test_a_follow_up_longer_than_lives_is_a_warning(tmp_path: Path) -> None:
    path = write_table(tmp_path, {"t": [400, 754, 754, 2000], "event": [0, 1] * 2})
    options: dict[str, Any] = {"time": "t", "event": "event", "min_patients": 0}
    with pytest.warns(
        CohortWarning, match="median of t is 754 years, more than 100 years"
    ) as found:
        read_cohort(path, unit="years", **options)
    assert len(found) == 1
    for unit in ("days", "weeks", "months", None):
        read_cohort(path, unit=unit, **options)


def test_columns_without_usual_names_are_requested_by_name(tmp_path: Path) -> None:
    columns: dict[str, list[object]] = {"RECFREESURV_MO": TIMES, "RECURRENCE": [0, 1, 0, 1]}
    with pytest.raises(OptionError, match="name them by `time` and `event`"):
        read(tmp_path, columns)
    cohort = read(tmp_path, columns, time="RECFREESURV_MO", event="RECURRENCE")
    assert cohort.task.unit == "months"  # type: ignore[attr-defined]


def test_the_status_beside_a_named_time_is_found_or_missed(tmp_path: Path) -> None:
    columns: dict[str, list[object]] = {
        **{"OS.time": TIMES, "OS": [0, 1, 0, 1], "PFI.time": [1, 2, 3, 4], "PFI": [1, 1, 0, 0]},
        "other": TIMES,
    }
    assert read(tmp_path, columns, time="PFI.time").task.source_columns == ("PFI.time", "PFI")
    with pytest.raises(
        OptionError, match=r"no column of the status beside other .* name it by `event`"
    ):
        read(tmp_path, columns, time="other")


def test_of_thousands_of_columns_a_message_lists_the_nearest(tmp_path: Path) -> None:
    genes: dict[str, list[object]] = {f"{n}_cnv": [0] * 4 for n in range(2000)}
    columns: dict[str, list[object]] = {**genes, "zz_survival_dss_mo": TIMES, "OS": [0, 1, 0, 1]}
    with pytest.raises(
        OptionError, match="no column 'dss'; known are: zz_survival_dss_mo, "
    ) as error:
        read(tmp_path, columns, time="dss", event="OS")
    assert str(error.value).endswith("and 1984 more")
    with pytest.raises(OptionError, match="and 1984 more; name them by `time` and `event`"):
        read(tmp_path, columns)
    with pytest.raises(
        CohortError, match=r"no column 'grd' for the target; known are: .* and 1984"
    ):
        read_cohort(tmp_path / "table.csv", targets="grd")


def test_a_column_is_named_in_any_case(tmp_path: Path) -> None:
    columns: dict[str, list[object]] = {"Time Seen": TIMES, "Died": [0, 1, 0, 1]}
    cohort = read(tmp_path, columns, time="time seen", event="died")
    assert cohort.task.source_columns == ("Time Seen", "Died")


@pytest.mark.parametrize(
    "options",
    [
        {"time": "days_to_death"},
        {"time": "Days_to_last_follow_up", "event": "vital_status"},
        {"time": ["days_to_death", "days_to_last_follow_up"]},
        {"event": "vital_status"},
    ],
)
def test_the_other_columns_of_the_gdc_are_found(tmp_path: Path, options: dict[str, Any]) -> None:
    cohort = read(tmp_path, {**TABLES["gdc"][0], "OS.time": TIMES, "OS": [1, 1, 0, 0]}, **options)
    np.testing.assert_array_equal(cohort.targets, np.transpose([TIMES, [0, 1, 0, 1]]))


def test_a_missing_column_of_the_gdc_is_explained(tmp_path: Path) -> None:
    columns: dict[str, list[object]] = {"days_to_death": [*TIMES], "vital_status": ["Dead"] * 4}
    with pytest.raises(OptionError, match="no column days_to_last_follow_up; a table of the GDC"):
        read(tmp_path, columns, time="days_to_death")


def test_two_columns_of_time_need_that_of_the_status(tmp_path: Path) -> None:
    columns: dict[str, list[object]] = {"OS_MONTHS": [*TIMES], "age": [50] * 4, "e": [0, 1, 0, 1]}
    with pytest.raises(OptionError, match="`time` are OS_MONTHS and age: the times until death"):
        read(tmp_path, columns, time=["OS_MONTHS", "age"])


@pytest.mark.parametrize(
    ("column", "unit"),
    [
        ("OS_MONTHS", "months"),
        ("RECFREESURV_MO", "months"),
        ("time_to_mortality", ""),
        ("days_months", ""),
        ("survivaldays", "days"),
        ("OSDays", "days"),
        ("modays", "days"),
        ("OS.time", "days"),
        ("follow_up_yrs", "years"),
        ("Yearly income", ""),
    ],
)
def test_the_unit_is_a_word_of_the_name(column: str, unit: str) -> None:
    assert Survival(column, "event").find_columns([column, "event"]).unit == unit


@pytest.mark.parametrize("name", ["alive", "is_alive", "Living", "survived", "AliveAtLastContact"])
def test_a_column_of_the_living_is_no_column_of_events(tmp_path: Path, name: str) -> None:
    for codes in ([1, 0, 1, 0], ["yes", "no", "yes", "no"]):
        with pytest.raises(CohortError, match=f"{name} is 1 or yes for patients without the event"):
            read(tmp_path, {"t": TIMES, name: codes}, time="t", event=name)
    words = ["alive", "dead", "alive", "dead"]
    found = read(tmp_path, {"t": TIMES, name: words}, time="t", event=name).targets
    assert found[:, 1].tolist() == [0, 1, 0, 1]


WITHOUT_EVENT = (
    *("event_free", "disease_free", "relapse_free", "death_free", "progression_free", "EventFree"),
    *("eventfree", "no_event", "non_event", "nonevent", "event_absent", "survivor", "in remission"),
    *("Disease Free Status", "never_progressed"),
)
UNCLEAR = ("overall_survival", "disease_free_survival", "lost_to_follow_up", "no_censoring")


@pytest.mark.parametrize("name", WITHOUT_EVENT)
def test_a_name_that_negates_the_event_is_rejected_unless_words_say_what_happened(
    tmp_path: Path, name: str
) -> None:
    for codes in ([1, 0, 1, 0], ["yes", "no", "yes", "no"], [True, False, True, False]):
        with pytest.raises(CohortError, match=f"{name} is 1 or yes for patients without the event"):
            read(tmp_path, {"t": TIMES, name: codes}, time="t", event=name)
    words = ["0:DiseaseFree", "1:Recurred", "0:DiseaseFree", "1:Recurred"]
    for cells in (words, ["censored", "event", "censored", "event"]):
        cohort = read(tmp_path, {"t": TIMES, name: cells}, time="t", event=name)
        assert cohort.targets[:, 1].tolist() == [0, 1, 0, 1]
        write_cohort(tmp_path / "again.csv", cohort)
        again = read_cohort(tmp_path / "again.csv", task=cohort.task, min_patients=0)
        assert again.slides == cohort.slides


@pytest.mark.parametrize("name", UNCLEAR)
def test_a_name_that_may_mean_both_is_rejected(tmp_path: Path, name: str) -> None:
    with pytest.raises(CohortError, match="1 may be the event or its absence; expected a column"):
        read(tmp_path, {"t": TIMES, name: [1, 0, 1, 0]}, time="t", event=name)


@pytest.mark.parametrize(
    "name",
    ["OS", "DFS", "vital_status", "disease_free_survival_event", "survival_status", "relapse"],
)
def test_a_name_of_an_event_or_an_endpoint_means_1_is_the_event(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, {"t": TIMES, name: [1, 0, 1, 0]}, time="t", event=name).targets
    assert found[:, 1].tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize("name", ["censorship", "is_run_censored", "Censored", "OSCENSORED"])
def test_1_is_censored_in_a_column_of_censoring(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, {"t": TIMES, name: [1, 0, 1, 0]}, time="t", event=name).targets
    assert found[:, 1].tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize(
    "name", ["uncensored", "non-censored", "not_censored", "noncensored", "isUncensored"]
)
def test_an_uncensored_patient_has_the_event(tmp_path: Path, name: str) -> None:
    found = read(tmp_path, {"t": TIMES, name: [1, 0, 1, 0]}, time="t", event=name).targets
    assert found[:, 1].tolist() == [1, 0, 1, 0]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"time": ["a", "b", "c"]}, "`time` are 3 columns; expected one, or two"),
        ({"time": ["a", "a"]}, "expected the name of a column"),
        ({"time": [5]}, "expected the name of a column"),
        ({"event": ["e"]}, "`event` is .*; expected the name of a column"),
        ({"time": "a", "event": "a"}, "`time` and `event` are both 'a'; expected two columns"),
        ({"horizons": "12"}, "`horizons` is '12'; expected numbers"),
        ({"unit": "fortnights"}, "`unit` is 'fortnights'; expected days, weeks, months, years"),
        ({"unit": 5}, "`unit` is 5; expected days"),
    ],
)
def test_wrong_arguments_are_rejected(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(OptionError, match=problem):
        Survival(**arguments)


def test_a_card_whose_lessons_are_no_mapping_is_rejected() -> None:
    with pytest.raises(OptionError, match=r"`learned` is .*; expected what a training set taught"):
        Survival.from_settings({"time": "t", "event": "e", "learned": [1]})


@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e13, 1e28])
def test_times_of_any_size_have_a_curve(tmp_path: Path, scale: float) -> None:
    times = [scale * time for time in TIMES]
    task = read(tmp_path, {"t": times, "e": [1, 0, 1, 0]}, time="t", event="e").task
    assert isinstance(task, Survival)
    assert 1 < len(task.curve_times) < 20
    assert task.curve_times[-1] >= 0.999 * max(times)


def test_a_horizon_beyond_the_follow_up_is_rejected(tmp_path: Path) -> None:
    columns = {"OS_MONTHS": TIMES, "OS_STATUS": [1, 0, 1, 0]}
    with pytest.raises(OptionError, match="`horizons` has 999 months, but the longest follow-up"):
        read(tmp_path, columns, horizons=(2, 999))


def test_times_of_zero_only_are_named(tmp_path: Path) -> None:
    with pytest.raises(CohortError, match="t is 0 in every row"):
        read_cohort(
            write_table(tmp_path, {"t": [0, 0, 0, 0], "e": [1, 0, 1, 0]}),
            task=Survival("t", "e"),
        )


def test_predictions_at_other_times_or_in_another_unit_are_not_compared() -> None:
    one = Survival("t", "e", unit="months", horizons=(12,), curve_times=(12, 24))
    assert one.explain_difference(replace(one, time="other", event="status")) == ""
    assert "in months, those of the table in days" in one.explain_difference(
        replace(one, unit="days")
    )
    assert "at 12, 24, the table was read for 12, 30" in one.explain_difference(
        replace(one, curve_times=(12, 30))
    )


def test_another_unit_than_the_models_is_an_error(tmp_path: Path) -> None:
    task = Survival(unit="months", horizons=(12,), curve_times=(12, 24))
    with pytest.raises(OptionError, match="in days by its name, but the unit is months"):
        read_cohort(
            write_table(tmp_path, {"os_survival_days": TIMES, "os_censorship": [1, 0, 1, 0]}),
            task=task,
        )


def test_times_of_reports_are_round_and_reach_the_longest_follow_up(tmp_path: Path) -> None:
    times = np.linspace(1, 130, 50).tolist()
    cohort = read(tmp_path, {"OS_MONTHS": times, "OS_STATUS": [0, 1] * 25})
    task = cohort.task
    assert isinstance(task, Survival)
    assert task.horizons == (12, 36, 60)
    assert task.curve_times[0] == 12
    assert task.curve_times[-1] >= max(times)
    assert set(task.horizons) <= set(task.curve_times)
    assert len(task.curve_times) <= 14


def test_patients_of_equal_survival_are_ranked_by_risk() -> None:
    """Before the first event of the training set nobody's survival by Cox's model is below 1."""
    survival = np.array([[1.0, 0.5], [1.0, 0.7], [1.0, 0.5], [0.9, 0.9]])
    ranks = rank_by_survival(survival, np.array([0.3, 0.1, 0.2, 0.0]))
    assert ranks.argsort(axis=0).T.tolist() == [[1, 2, 0, 3], [3, 1, 2, 0]]
    same = rank_by_survival(np.ones((3, 1)), np.full(3, 0.2))
    assert same.tolist() == [[0], [0], [0]], "ties stay ties"


def test_the_auc_of_a_flat_curve_is_that_of_its_risks() -> None:
    random = np.random.default_rng(0)
    times, events = random.exponential(10, 80), np.ones(80)
    targets = np.stack([times, events], axis=1)
    risks = -times + random.normal(0, 5, 80)
    flat = np.stack([risks, risks, np.ones(80), np.exp(-np.exp(risks / 10))], axis=1)
    task = Survival("months", "death", "cox", horizons=(5, 10), curve_times=(5, 10))
    weights = np.ones((1, 80))
    expected, _ = cumulative_auc(times, events, times, events, risks, [5.0, 10.0])
    for name, auc in zip(("auc_at_5", "auc_at_10"), expected, strict=True):
        formula = task.metrics[name].for_training(targets)
        assert formula(targets, flat, weights)[0] == pytest.approx(auc)
        assert auc > 0.6
