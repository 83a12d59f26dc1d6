"""A job is what sacmil.training would do, and its line tells what the model answered."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.accuracy import _queue
from benchmarks.accuracy._bags import load_bags
from benchmarks.accuracy._darkness import DARKNESS
from benchmarks.accuracy._figures import standings
from benchmarks.accuracy._job import Job
from benchmarks.accuracy._lines import Lines
from benchmarks.accuracy._parts import parts_of
from benchmarks.accuracy._plans import ARRANGEMENTS
from benchmarks.accuracy._queue import Clock, work
from benchmarks.accuracy._tasks import Size, recipe, synthetic
from benchmarks.accuracy._train import Kept, Place, train
from inline_workers import InlineWorkers

from sacmil import Bag
from sacmil.models import Recipe, create_model
from sacmil.models._registry import update_keys
from sacmil.parallel import TaskOutcome
from sacmil.training.fit import fit, predict_samples
from sacmil.training.loading import SampleLoader, make_sample_loader

SIZE = Size(train=10, val=6, test=12, few=60, many=80, epochs=2)
JOB = Job(
    study="s",
    task="cluster",
    variant="sac_mil",
    model="sac_mil",
    options={"dim": 16, "k": 4},
    source=synthetic("cluster", 0, SIZE, further=[("x2", 4, 120, 160)]),
    training=recipe(SIZE, lr=1e-3),
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="module")
def found(place: Place) -> dict[str, Any]:
    return train(JOB, place)


def test_a_job_answers_what_plain_training_answers(found: dict[str, Any]) -> None:
    bags = load_bags(JOB.source, None)
    parts = parts_of(bags, {})
    torch.manual_seed(0)
    model = create_model("sac_mil", in_dim=bags.features.shape[1], num_classes=2, **JOB.options)

    def samples(part: str) -> SampleLoader:
        numbers = parts[part]
        whole = [
            Bag(bags.units[n], bags.features[bags.slice(n)], bags.coords[bags.slice(n)] * 512, 512)
            for n in numbers
        ]
        return make_sample_loader(model, whole, bags.labels[numbers].tolist())

    fit(model, samples("train"), Recipe(**update_keys(JOB.training)), validation=samples("val"))
    expected = predict_samples(model, samples("test"))
    odds = np.array(str(found["answers"]).split(), dtype=float)
    assert np.allclose(1 / (1 + np.exp(-odds)), expected[:, 1], atol=1e-5)


@pytest.mark.slow
def test_the_same_job_gives_the_same_answers(found: dict[str, Any], place: Place) -> None:
    assert train(JOB, place)["answers"] == found["answers"]
    assert train(replace(JOB, seed=1), place)["answers"] != found["answers"]


def test_a_job_that_tunes_never_looks_at_the_test_part(place: Place) -> None:
    found = train(replace(JOB, role="tune"), place)
    assert {"val_auc", "val_loss"} <= set(found)
    assert not {"auc", "accuracy", "answers", "labels", "localisation", "more"} & set(found)


def test_real_features_are_centred_by_what_trains_alone() -> None:
    bags = load_bags(synthetic("cluster", 0, SIZE), None)
    shifted = replace(bags, features=bags.features + np.float16(9))
    test = parts_of(bags, {})["test"]
    shifted.features[shifted.slice(test[0])] = 100
    train_part = parts_of(bags, {})["train"]
    plain, moved = (Kept(each, "cpu").centred(train_part) for each in (bags, shifted))
    rows = bags.slice(train_part[0])
    assert torch.allclose(plain[rows], moved[rows], atol=0.02)
    seen = torch.cat([plain[bags.slice(bag)] for bag in train_part]).float()
    assert seen.mean(0).abs().max() < 0.01
    assert seen.square().mean() == pytest.approx(1, abs=0.01)


def test_further_pieces_are_tested_on_beside(found: dict[str, Any]) -> None:
    assert 0 <= found["more"]["x2"] <= 1


def test_the_report_finds_the_figure_that_the_line_tells(
    found: dict[str, Any], tmp_path: Path
) -> None:
    lines = Lines(tmp_path / "s.csv")
    lines.append(JOB, found)
    worse = np.array(found["labels"]) * -2.0 + 1  # the opposite of the truth
    lines.append(replace(JOB, variant="wrong"), found | {"answers": worse.tolist()})
    first, last = standings(lines.lines, "sac_mil")
    assert (first.variant, last.variant) == ("sac_mil", "wrong")
    assert first.figures["auc"].mean == pytest.approx(found["auc"])
    assert first.against is None
    assert last.against is not None
    assert last.against.difference == pytest.approx(found["auc"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ARRANGEMENTS)
def test_arrangements_to_measure_against_are_permutations(name: str, place: Place) -> None:
    coords = np.argwhere(np.ones((5, 7))).astype(float)
    order = ARRANGEMENTS[name](coords, coords)["order"]
    assert sorted(order) == list(range(35))
    assert train(replace(JOB, arrangement=name), place)["auc"] >= 0


def test_raster_goes_row_by_row() -> None:
    coords = np.array([[1.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    assert ARRANGEMENTS["raster"](coords, coords)["order"].tolist() == [3, 2, 1, 0]


@pytest.mark.slow
def test_work_goes_on_where_it_was_stopped(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_queue, "WorkerPool", InlineWorkers)
    lines = Lines(tmp_path / "s.csv")
    jobs = [replace(JOB, seed=seed) for seed in range(2)]
    lines.append(jobs[0], {"auc": 0.5, "seconds": 1.0})
    broken = replace(JOB, training={"speed": "high"})
    assert work([*jobs, broken], lines, place, 1, Clock(5))
    told = Lines(tmp_path / "s.csv").lines
    assert [line["key"] for line in told] == [jobs[0].key, jobs[1].key, broken.key]
    assert told[0]["auc"] == "0.5"  # not done again
    assert told[1]["answers"]
    assert "'speed'" in told[2]["failure"]


class FullDevice:
    """Workers on a device with memory for two jobs, of which the last comes too late."""

    count = 4

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.most: list[int] = []

    def submit(self, key: str, *_: Any, limit_s: float) -> None:
        self.asked.append(key)

    def next_outcome(self, timeout_s: float) -> TaskOutcome:
        self.most.append(len(self.asked))
        full = len(self.asked) > 2
        found = {"failure": "OutOfMemoryError: CUDA out of memory."} if full else {"auc": 0.5}
        return TaskOutcome(self.asked.pop(), found, None)


def test_a_job_that_finds_no_memory_beside_others_is_done_with_fewer(
    place: Place, tmp_path: Path
) -> None:
    jobs = [replace(JOB, seed=seed) for seed in range(6)]
    lines, pool = Lines(tmp_path / "s.csv"), FullDevice()
    assert _queue._train_all(list(jobs), lines, place, pool, Clock(1))  # type: ignore[arg-type]
    assert {line["key"] for line in lines.lines} == {job.key for job in jobs}
    assert all(line["auc"] == "0.5" for line in lines.lines)
    assert pool.most[:3] == [4, 3, 2]
    assert max(pool.most[2:]) == 2


def test_a_job_that_finds_no_memory_alone_has_failed(place: Place, tmp_path: Path) -> None:
    class Tiny(FullDevice):
        def next_outcome(self, timeout_s: float) -> TaskOutcome:
            return TaskOutcome(self.asked.pop(), {"failure": "CUDA out of memory"}, None)

    lines = Lines(tmp_path / "s.csv")
    _queue._train_all([JOB], lines, place, Tiny(), Clock(1))  # type: ignore[arg-type]
    assert [line["failure"] for line in lines.lines] == ["CUDA out of memory"]


def test_no_job_is_begun_when_the_time_is_up(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_queue, "_prepare", lambda *_: True)
    assert not work([JOB], Lines(tmp_path / "s.csv"), place, 1, Clock(0))
    assert not (tmp_path / "s.csv").exists()


def test_darkness_needs_no_training_and_answers_by_the_mean_of_its_scores(place: Place) -> None:
    job = replace(JOB, model=DARKNESS, variant=DARKNESS, options={})
    found = train(job, place)
    bags = load_bags(JOB.source, None)
    dark = [-bags.features[bags.slice(n)].astype(float).mean() for n in parts_of(bags, {})["test"]]
    odds = np.array(str(found["answers"]).split(), dtype=float)
    assert np.allclose(odds, 2 * np.array(dark), atol=1e-3)
    assert found["parameters"] == 0
    assert "epochs" not in found
