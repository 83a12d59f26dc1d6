"""Drawn cells have the composition, size and density that the study states."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from inline_workers import InlineWorkers
from scipy.spatial import cKDTree
from studies import cells as study_cells
from studies import run as run_module
from studies.cells import draw_patients, find_distance, leave_out_others, make_drawn_sets
from studies.classical import (
    Composition,
    NeighborMixing,
    average_neighbors,
    fit_cox,
    fit_logistic,
)
from studies.data import Place
from studies.report import compute_rows, read_table, write_table
from studies.run import RunSettings, run_round
from studies.study import Round, Study, StudyModel
from studies.study import Task as StudyTask

import sacmil
from sacmil import Bag, read_bag, read_cohort, write_bag
from sacmil.cells import measure_neighbor_distance
from sacmil.models import Sample
from sacmil.tasks._survival_losses import cox_loss


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    """Six patients: in three, tumour cells keep to one side."""
    random = np.random.default_rng(0)
    parts = []
    for patient in range(6):
        where = random.random((700, 2)) * 500
        apart = patient % 2 == 1
        is_tumour = where[:, 0] < 250 if apart else random.random(700) < 0.5
        kinds = np.where(is_tumour, "Tumor", random.choice(["CD8T", "B"], 700)).astype(object)
        kinds[:20] = "Endothelial"
        label = "compartmentalised" if apart else "mixed"
        columns = {"patient": patient, "x": where[:, 0], "y": where[:, 1], "type": kinds}
        parts.append(pd.DataFrame({**columns, "label": label}))
    return pd.concat(parts)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study_cells, "COUNTS", (50, 100, 330))
    monkeypatch.setattr(study_cells, "MAIN", 100)
    monkeypatch.setattr(study_cells, "THINNED", 50)
    monkeypatch.setattr(study_cells, "DRAWS", 3)


def test_every_draw_has_as_many_cells_of_each_kind_of_one_patient(table: pd.DataFrame) -> None:
    slides = draw_patients(table, 100)
    assert len(slides) == 6 * 3
    for slide in slides:
        own = table[table.patient == int(slide.patient)]
        assert slide.label == int(slide.patient) % 2
        assert slide.cells.is_tumour.sum() == 100
        assert len(np.unique(slide.cells.coords, axis=0)) == 200
        for is_tumour in (True, False):
            kinds = ["Tumor"] if is_tumour else ["CD8T", "B"]
            pool = own.loc[own["type"].isin(kinds), ["x", "y"]].to_numpy()
            picked = slide.cells.coords[slide.cells.is_tumour == is_tumour]
            assert cKDTree(pool).query(picked)[0].max() == 0
    assert not np.array_equal(slides[0].cells.coords, slides[1].cells.coords)
    assert {slide.patient for slide in draw_patients(table, 330)} < set("012345")


def test_kinds_are_in_random_order(table: pd.DataFrame) -> None:
    """The order of rows must not show a model what positions do."""
    for slide in draw_patients(table, 100):
        first = slide.cells.is_tumour[:100].sum()
        assert 30 < first < 70


def test_thinned_draws_are_equally_dense(table: pd.DataFrame) -> None:
    plain = draw_patients(table, 50)
    aim = find_distance(plain)
    thinned = leave_out_others(draw_patients(table, 50, distance=aim), aim)
    found = [measure_neighbor_distance([slide.cells.coords]) for slide in thinned]
    assert len(thinned) > 0.6 * len(plain)
    assert max(found) / min(found) < 1.021
    assert {slide.label for slide in thinned} == {0, 1}
    before = [measure_neighbor_distance([slide.cells.coords]) for slide in plain]
    assert max(before) / min(before) > 1.05


def test_shuffled_draws_keep_positions_and_composition(table: pd.DataFrame) -> None:
    sets = dict(make_drawn_sets(table))
    assert set(sets) == {"tnbc-50", "tnbc-100", "tnbc-330", "tnbc-100-shuffled", "tnbc-50-thinned"}
    for one, other in zip(sets["tnbc-100"], sets["tnbc-100-shuffled"], strict=True):
        np.testing.assert_array_equal(one.cells.coords, other.cells.coords)
        assert other.cells.is_tumour.sum() == 100
        assert not np.array_equal(one.cells.is_tumour, other.cells.is_tumour)


def test_sets_are_written_once(table: pd.DataFrame, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(study_cells, "WHOLE_SETS", {})
    monkeypatch.setattr(study_cells, "SURVIVAL_SETS", ())
    table.to_csv(tmp_path / "tnbc_mibi_cells.csv.gz")
    for _ in range(2):
        study_cells.run(Namespace(data=tmp_path, out=tmp_path))
    assert capsys.readouterr().out.count("tnbc-100:") == 1
    folder = tmp_path / "cells" / "tnbc-100"
    cohort = read_cohort(folder / "labels.csv")
    assert cohort.patients_per_class == (3, 3)
    bag = read_bag(folder / "bags" / "1-0.h5")
    assert bag.features.sum(0).tolist() == [100, 100]


# --- classical statistics


def make_samples(table: pd.DataFrame) -> list[Sample]:
    return [
        Sample(
            torch.tensor(np.stack([cells.is_tumour, ~cells.is_tumour], 1), dtype=torch.float32),
            torch.tensor(cells.coords),
            {},
            torch.tensor(label),
        )
        for _, _, label, cells in draw_patients(table, 100)
    ]


def test_neighbor_mixing_separates_what_composition_does_not(table: pd.DataFrame) -> None:
    samples = make_samples(table)
    found = {}
    for kind in (Composition, NeighborMixing):
        model = kind(in_dim=2, num_classes=2)
        model.fit_to(samples[:12])
        found[kind] = [model(*one[:3]).logits.diff().item() for one in samples[12:]]
    labels = np.array([int(one.target) for one in samples[12:]])
    assert np.ptp(found[Composition]) < 1e-6
    assert ((np.array(found[NeighborMixing]) > 0) == labels).all()


def test_neighbors_are_the_nearest_others() -> None:
    coords = torch.rand(1500, 2, dtype=torch.float64)
    values = torch.rand(1500, 3, dtype=torch.float64)
    near = cKDTree(coords).query(coords, k=11)[1][:, 1:]
    np.testing.assert_allclose(
        average_neighbors(values, coords), values.numpy()[near].mean(1), rtol=1e-12
    )


def test_logistic_regression_is_at_its_minimum() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((60, 4))
    y = (x[:, 0] + random.standard_normal(60) > 0).astype(np.int64)
    weights = fit_logistic(x, y)
    probability = 1 / (1 + np.exp(-(weights[0] + x @ weights[1:])))
    gradient = x.T @ (probability - y) + weights[1:]
    assert abs((probability - y).sum()) < 1e-3
    assert np.abs(gradient).max() < 1e-3


def test_cox_regression_is_at_the_minimum_of_the_products_loss() -> None:
    random = np.random.default_rng(0)
    x = random.standard_normal((80, 3))
    times = np.ceil(random.exponential(8, 80) * np.exp(-x[:, 0]))  # with ties
    events = (random.random(80) < 0.6).astype(np.float64)
    weights = torch.tensor(fit_cox(x, times, events), requires_grad=True)
    risks = torch.tensor(x) @ weights
    loss = cox_loss(risks, torch.tensor(times), torch.tensor(events), "breslow") * events.sum()
    (loss + weights.square().sum() / 2).backward()
    assert weights.grad.abs().max() < 1e-3
    assert weights[0].item() > 0.5


class InlinePool:
    """Does in this process what a pool of processes does."""

    map = staticmethod(map)


def test_survival_is_trained_and_reported_by_the_products_concordance(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patients whose cells are of the first kind live a tenth as long."""
    monkeypatch.setattr(run_module, "WorkerPool", InlineWorkers)
    random = np.random.default_rng(0)
    rows = []
    for number in range(24):
        is_ill = number % 2
        kinds = np.eye(2, dtype=np.float16)[(random.random(40) > 0.2 + 0.6 * is_ill).astype(int)]
        bag = Bag(str(number), kinds, random.random((40, 2)) * 200, 10)
        write_bag(tmp_path / "data" / "bags" / f"{number}.h5", bag)
        months = round(float((3 if is_ill else 30) * random.uniform(0.8, 1.2)), 1)
        known = int(number % 5 > 0)
        rows.append({"slide_id": number, "patient_id": number, "months": months, "event": known})
    pd.DataFrame(rows).to_csv(tmp_path / "data" / "survival.csv", index=False)
    target = {"task": "survival", "time": "months", "event": "event"}
    study = Study(
        name="timed",
        question="Who lives longer?",
        recipe={"lr": 1e-3, "epochs": 4, "monitor": "last"},
        tasks={"a": StudyTask(bags="bags", labels="survival.csv", folds=2, target=target)},
        models={"composition": StudyModel(), "mean_pool": StudyModel()},
        references={"": "mean_pool"},
        rounds=(
            Round(
                id="one", purpose="confirmation", repeats=(2,), models=("composition", "mean_pool")
            ),
        ),
    )
    place = Place(tmp_path / "scratch", data=tmp_path / "data")
    settings = RunSettings(place=place, results=tmp_path / "results", commit="c0")
    assert run_round(study, study.rounds[0], settings)
    rows = compute_rows(study, settings.results, InlinePool())
    row = {row["model"]: row for row in rows}
    assert row["composition"]["c"] > 0.7
    assert row["composition"]["c_low"] <= row["composition"]["c"] <= row["composition"]["c_high"]
    assert "difference" in row["composition"]
    file = settings.results / "timed" / "one" / "a.csv.gz"
    estimate = sacmil.evaluate(file, metrics=["c"], draws=20).estimates["composition"]["c"]
    assert estimate.mean == pytest.approx(row["composition"]["c"], abs=1e-9)
    write_table(tmp_path / "table.csv", list(row.values()))
    assert {line["model"]: line["c"] for line in read_table(tmp_path / "table.csv")} == {
        name: f"{of['c']:.4f}" for name, of in row.items()
    }
