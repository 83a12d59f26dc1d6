"""A round is trained and reported by the product, and can be stopped at any time."""

from __future__ import annotations

import csv
import gzip
import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from inline_workers import InlineWorkers
from studies import run as run_module
from studies.data import Place, divide_slides, load_slides
from studies.results import FinishedJobs, choose_settings, read_manifest, read_runs
from studies.run import RunSettings, choose_round, run_round
from studies.study import Job, Round, Study, StudyModel, Task, Tuning, list_jobs
from studies.train import _fit_center, _order_by_rows, run_job

import sacmil
from sacmil.bag import Bag
from sacmil.errors import ConfigError, RunError, SacMILError
from sacmil.formats import write_bag
from sacmil.models import Recipe, create_model
from sacmil.parallel import TaskOutcome
from sacmil.training.fit import fit, predict_samples
from sacmil.training.loading import make_sample_loader

SLIDES = {"train": 10, "val": 6, "test": 12}
RECIPE = {"optimizer": "adamw", "lr": 1e-3, "epochs": 2, "monitor": "val_auc"}
CLUSTER = Task(synthetic="cluster", slides=SLIDES, instances=(60, 80), longer=(2,))
STUDY = Study(
    name="trial",
    question="Does it work?",
    recipe=RECIPE,
    tasks={"cluster": CLUSTER},
    models={
        "sac_mil": StudyModel(options={"dim": 16, "k": 4}),
        "mean_pool": StudyModel(),
        "gone": StudyModel(retired="its option was removed"),
    },
    references={"": "sac_mil"},
    tuning=Tuning(grid={"lr": (1e-3, 1e-4)}),
    rounds=(
        Round(id="tuned", purpose="development", seeds=(0,), tunes=True, models=("mean_pool",)),
        Round(id="plain", purpose="development", seeds=(0, 1), models=("sac_mil", "mean_pool")),
        Round(
            id="confirmed",
            purpose="confirmation",
            seeds=(10,),
            models=("mean_pool",),
            tuned_in="tuned",
        ),
    ),
)


@pytest.fixture(autouse=True)
def _inline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "WorkerPool", InlineWorkers)


@pytest.fixture
def settings(tmp_path: Path) -> RunSettings:
    return RunSettings(place=Place(tmp_path / "scratch"), results=tmp_path / "results", commit="c0")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("scratch"))


@pytest.fixture(scope="module")
def job() -> Job:
    return list_jobs(STUDY, STUDY.get_round("plain"), {})[0]


@pytest.fixture(scope="module")
def found(job: Job, place: Place) -> dict[str, Any]:
    return run_job(job, place)


def test_a_job_predicts_what_plain_training_predicts(job: Job, found: dict[str, Any]) -> None:
    slides = load_slides(job.data, job.fold, Place(Path())).slides
    parts = divide_slides(slides, job.data, job.fold)
    torch.manual_seed(job.seed)
    model = create_model("sac_mil", in_dim=64, num_classes=2, **job.options)
    loaders = {}
    for part, numbers in parts.items():
        bags = [slides[n].bag for n in numbers]
        half = [replace(bag, features=bag.features.astype(np.float16)) for bag in bags]
        loaders[part] = make_sample_loader(model, half, [slides[n].label for n in numbers])
    fit(model, loaders["train"], Recipe(**RECIPE), validation=loaders["val"], seed=job.seed)
    expected = predict_samples(model, loaders["test"])
    predicted = np.array([row[3:] for row in found["predictions"]])
    assert np.allclose(predicted, expected, atol=1e-5)
    assert 0 <= found["further"]["x2"] <= 1


def test_a_job_that_tunes_never_sees_the_test_set(job: Job, place: Place) -> None:
    found = run_job(replace(job, role="tune"), place)
    assert {"val_auc", "val_loss"} <= set(found)
    assert not {"auc", "accuracy", "predictions", "localization", "further"} & set(found)


def test_darkness_is_not_trained(job: Job, place: Place) -> None:
    found = run_job(replace(job, zoo_model="darkness", model="darkness", options={}), place)
    assert found["parameters"] == 0
    assert "epochs" not in found


def test_real_features_are_centered_by_the_training_set_only(job: Job) -> None:
    slides = load_slides(job.data, 0, Place(Path())).slides
    parts = divide_slides(slides, job.data, 0)
    center = _fit_center(slides, parts)
    seen = np.concatenate([center(slides[n].bag.features) for n in parts["train"]])
    assert np.abs(seen.mean(0)).max() < 1e-3
    assert np.square(seen).mean() == pytest.approx(1, abs=1e-3)
    other = [s if n in parts["train"] else s._replace(bag=None) for n, s in enumerate(slides)]
    again = _fit_center(other, parts)(slides[0].bag.features)
    assert np.array_equal(again, center(slides[0].bag.features))


def test_raster_goes_row_by_row() -> None:
    coords = np.array([[1.0, 1.0], [0.0, 1.0], [1.0, 0.0], [0.0, 0.0]])
    assert _order_by_rows(coords, coords)["order"].tolist() == [3, 2, 1, 0]


def test_a_round_is_reported_by_the_products_statistics(settings: RunSettings) -> None:
    assert run_round(STUDY, STUDY.get_round("plain"), settings)
    file = settings.results / "trial" / "plain" / "cluster.csv.gz"
    runs = read_runs(settings.results, "trial", "plain")
    recorded = np.mean([float(row["auc"]) for row in runs if row["model"] == "sac_mil"])
    estimates = sacmil.evaluate(file, metrics=["auc"], draws=20).estimates
    assert estimates["sac_mil"]["auc"].mean == pytest.approx(recorded, abs=1e-6)
    assert len(sacmil.compare(file, draws=20).pairs) == 1
    for row in read_manifest(settings.results):
        content = (settings.results / row["file"]).read_bytes()
        assert row["sha256"] == hashlib.sha256(content).hexdigest()
        lines = gzip.decompress(content).decode().splitlines()
        assert int(row["rows"]) == len(list(csv.reader(lines))) - 1
        assert row["commit"] == "c0"
    with pytest.raises(RunError, match="a second look proves nothing"):
        run_round(STUDY, STUDY.get_round("plain"), settings)


def test_a_stopped_round_goes_on_where_it_was(
    settings: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def stop_at_third(job: Job, place: Place) -> dict[str, Any]:
        if len(done) == 2:
            raise KeyboardInterrupt
        done.append(job.key)
        return run_job(job, place)

    monkeypatch.setattr(run_module, "run_job", stop_at_third)
    with pytest.raises(KeyboardInterrupt):
        run_round(STUDY, STUDY.get_round("plain"), settings)
    assert not settings.results.exists(), "nothing half-finished is among the results"
    monkeypatch.setattr(run_module, "run_job", lambda job, place: done.append(job.key) or FAKE)
    assert run_round(STUDY, STUDY.get_round("plain"), settings)
    assert len(done) == len(set(done)) == 4


FAKE = {
    "auc": 0.5,
    "seconds": 0.1,
    "device": "cpu",
    "torch": "2",
    "val_auc": 0.7,
    "val_loss": 0.5,
    "predictions": [[f"s{n}", f"s{n}", n % 2, 0.4, 0.6] for n in range(6)],
}


def test_a_confirmation_takes_what_tuning_chose(
    settings: RunSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prefer_small_rates(job: Job, place: Place) -> dict[str, Any]:
        return FAKE | {"val_auc": 0.9 if job.recipe["lr"] == 1e-4 else 0.7}

    monkeypatch.setattr(run_module, "run_job", prefer_small_rates)
    with pytest.raises(RunError, match="round tuned has no results"):
        run_round(STUDY, STUDY.get_round("confirmed"), settings)
    assert run_round(STUDY, STUDY.get_round("tuned"), settings)
    assert run_round(STUDY, STUDY.get_round("confirmed"), settings)
    (row,) = read_runs(settings.results, "trial", "confirmed")
    assert '"lr":0.0001' in row["training"]
    assert [row["role"] for row in read_runs(settings.results, "trial", "tuned")].count("tune") == 2


def test_where_nothing_was_learned_the_recipe_stays() -> None:
    tuning = Tuning(grid={"lr": (1.0, 2.0)}, min_auc=0.63)
    rows = [
        {"val_auc": auc, "val_loss": 0.5, "training": f'{{"lr": {lr}}}', "failure": ""}
        for auc, lr in ((0.6, 1.0), (0.62, 2.0))
    ]
    assert choose_settings(tuning, rows, {"lr": 7.0}) == {"lr": 7.0}
    assert choose_settings(tuning, [rows[0], rows[1] | {"val_auc": 0.64}], {}) == {"lr": 2.0}
    assert choose_settings(tuning, rows[:1], {"lr": 7.0}) is None, "before the search has ended"


def test_failed_jobs_are_reported_and_tried_again(
    settings: RunSettings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(job: Job, place: Place) -> dict[str, Any]:
        raise SacMILError("no such thing")

    monkeypatch.setattr(run_module, "run_job", fail)
    assert not run_round(STUDY, STUDY.get_round("plain"), settings)
    assert "SacMILError: no such thing" in capsys.readouterr().err
    monkeypatch.setattr(run_module, "run_job", lambda job, place: FAKE)
    assert run_round(STUDY, STUDY.get_round("plain"), settings)


def test_a_confirmation_needs_code_that_is_known(
    settings: RunSettings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run_module, "FOLDER", tmp_path)  # which is no repository
    with pytest.raises(ConfigError, match="found no git repository; commit first"):
        run_round(STUDY, STUDY.get_round("confirmed"), replace(settings, commit=""))


def test_without_a_planned_round_one_must_be_named() -> None:
    done = STUDY.replace(rounds=tuple(one.replace(status="done") for one in STUDY.rounds))
    assert choose_round(STUDY, None).id == "tuned"
    assert choose_round(done, "plain").id == "plain"
    assert choose_round(done, None, tiny=True).id == "confirmed"
    with pytest.raises(ConfigError, match="every round is done"):
        choose_round(done, None)


class FullDevice:
    """Workers on a device with memory for two jobs."""

    def __init__(self) -> None:
        self.waiting: list[str] = []
        self.most: list[int] = []

    def submit(self, key: str, *_: Any, limit_s: float) -> None:
        self.waiting.append(key)

    def next_outcome(self, timeout_s: float) -> TaskOutcome:
        self.most.append(len(self.waiting))
        full = len(self.waiting) > 2
        found = {"failure": "OutOfMemoryError: CUDA out of memory."} if full else FAKE
        return TaskOutcome(self.waiting.pop(), found, None)


def test_a_job_that_finds_no_memory_beside_others_is_done_with_fewer(
    job: Job, settings: RunSettings, tmp_path: Path
) -> None:
    jobs = [replace(job, seed=seed) for seed in range(6)]
    finished, pool = FinishedJobs(tmp_path / "jobs"), FullDevice()
    four = replace(settings, workers=4)
    assert run_module._do_jobs(pool, jobs, finished, four, float("inf"))  # type: ignore[arg-type]
    assert finished.read().keys() == {job.key for job in jobs}
    assert pool.most[:3] == [4, 3, 2]
    assert max(pool.most[2:]) == 2


def test_no_job_is_begun_when_the_time_is_up(settings: RunSettings) -> None:
    assert not run_round(STUDY, STUDY.get_round("plain"), replace(settings, minutes=0))
    assert not settings.results.exists()


# Real data ------------------------------------------------------------------------------------

WINDOWED = Task(
    bags="bags",
    labels="labels.csv",
    folds=4,
    validation=0.25,
    windows={"side": 10, "step": 5, "min_instances": 25},
)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight slides of 23 × 17 tiles with holes; positive tiles lie in a corner."""
    folder = tmp_path_factory.mktemp("real")
    random = np.random.default_rng(0)
    places = np.argwhere(np.ones((23, 17), dtype=bool))
    lines = ["slide_id,patient_id,label"]
    for number in range(8):
        coords = places[random.random(len(places)) < 0.8]
        features = random.standard_normal((len(coords), 4), dtype=np.float32)
        truth = (coords.sum(1) < 2 * number).astype(np.int64)
        name = f"slide-{number}"
        bag = Bag(name, features, coords * 50, patch_size=50, labels=truth)
        write_bag(folder / "bags" / f"{name}.h5", bag)
        lines.append(f"{name},{name},{'positive' if number % 2 else 'negative'}")
    (folder / "labels.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.mark.parametrize("task", [WINDOWED, WINDOWED.replace(windows=None, folds=2)])
def test_no_patient_of_the_test_set_trains_or_chooses(real: Path, task: Task) -> None:
    data = task.model_dump(mode="json")
    slides = load_slides(data, 0, Place(real, data=real)).slides
    tested = []
    for fold in range(task.folds):
        parts = divide_slides(slides, data, 100 + fold)
        patients = {part: {slides[n].patient for n in numbers} for part, numbers in parts.items()}
        assert not patients["train"] & patients["test"]
        assert not patients["val"] & (patients["train"] | patients["test"])
        assert patients.get("whole", patients["test"]) == patients["test"]
        tested += sorted(patients["test"])
    assert sorted(tested) == [f"slide-{number}" for number in range(8)]


def test_windows_that_test_share_no_tile_and_those_that_train_do(real: Path) -> None:
    slides = load_slides(WINDOWED.model_dump(mode="json"), 0, Place(real, data=real)).slides
    for kind, overlap in (("test", False), ("train", True)):
        windows = [slide for slide in slides if slide.part == kind]
        tiles = [
            (slide.patient, *place) for slide in windows for place in slide.bag.coords.tolist()
        ]
        assert (len(set(tiles)) < len(tiles)) == overlap
        for window in windows:
            assert window.label == (window.bag.labels > 0).any()
            assert np.ptp(window.bag.patch_coords, axis=0).max() < 10
            assert len(window.bag) >= 25


def test_other_data_in_the_same_form_needs_no_change(real: Path, settings: RunSettings) -> None:
    study = STUDY.replace(
        tasks={"windows": WINDOWED},
        rounds=(Round(id="r", purpose="development", repeats=(1,), models=("mean_pool",)),),
    )
    placed = replace(settings, place=Place(settings.place.scratch, data=real))
    assert run_round(study, study.rounds[0], placed)
    runs = read_runs(settings.results, "trial", "r")
    assert [row["fold"] for row in runs] == ["100", "101", "102", "103"]
    assert all(0 <= float(row["localization"]) <= 1 for row in runs if row["localization"] != "nan")


def test_missing_real_data_is_one_sentence_before_any_job(settings: RunSettings) -> None:
    study = STUDY.replace(
        tasks={"windows": WINDOWED},
        rounds=(Round(id="r", purpose="development", repeats=(1,), models=("mean_pool",)),),
    )
    with pytest.raises(SacMILError, match="no such folder given; give the folder of real data"):
        run_round(study, study.rounds[0], settings)
    assert not settings.place.scratch.exists()


@pytest.mark.parametrize(
    ("change", "problem"),
    [({"workers": 0}, "0 workers; expected at least 1"), ({"place": None}, "torch finds no GPU")],
)
def test_what_would_fail_every_job_is_reported_once(
    settings: RunSettings,
    change: dict[str, Any],
    problem: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if "place" in change:
        change = {"place": replace(settings.place, device="cuda")}
    with pytest.raises(ConfigError, match=problem):
        run_round(STUDY, STUDY.get_round("plain"), replace(settings, **change))
