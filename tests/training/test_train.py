"""Training one model is cross-validation with a single job."""

from __future__ import annotations

import dataclasses
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from small_cohort import Material, write_material

from sacmil import load_model, read_bag, write_bag
from sacmil.card import find_model_folders
from sacmil.cohorts.cohort import Cohort
from sacmil.cohorts.dataset import Dataset
from sacmil.cohorts.splits import Fold, make_folds
from sacmil.errors import CohortError, CohortWarning, ConfigError, RunError, SacMILError
from sacmil.evaluation.fold_results import average_by_patient
from sacmil.metrics.classification import METRICS
from sacmil.results import LOCALIZATION_FILE, read_localization, read_predictions
from sacmil.results.run import Run
from sacmil.training.config import TrainingConfig, make_configs
from sacmil.training.train import cross_validate, train

QUICK = {"epochs": 2, "lr": 1e-2}


def test_a_fold_is_trained_as_in_cross_validation(dataset: Material, tmp_path: Path) -> None:
    given = {"folds": dataset.folds, "options": QUICK}
    single = train(dataset.data, "mean_pool", out=tmp_path / "one", fold=1, device="cpu", **given)
    whole = cross_validate(dataset.data, "mean_pool", out=tmp_path / "all", devices="cpu", **given)
    assert single.folder == tmp_path / "one"
    weights = [f / "model.safetensors" for f in (single.folder, whole.model_folders()[1])]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    first = whole.predictions.select(whole.predictions.fold == 1)
    assert single.predictions.slide_id.tolist() == first.slide_id.tolist()
    assert (single.predictions.probabilities == first.probabilities).all()


def test_every_epoch_is_reported_with_loss_and_validation_auc(
    dataset: Material, tmp_path: Path
) -> None:
    lines = []
    train(
        dataset.data,
        {"model": "mean_pool", "recipe": "official"},
        out=tmp_path / "run",
        folds=2,
        options=["epochs=2"],
        on_progress=lambda *line: lines.append(line),
    )
    epochs = [line for line in lines if line[0] == "training mean_pool"]
    assert [line[1:3] for line in epochs] == [(1, 2), (2, 2)]
    assert all("loss " in line[3] for line in epochs)
    assert all(", val AUC " in line[3] for line in epochs)


def test_training_on_every_slide_keeps_the_last_epoch(dataset: Material, tmp_path: Path) -> None:
    config = TrainingConfig(model="mean_pool", recipe="official", training=QUICK)
    with pytest.warns(CohortWarning, match="The last of 2 epochs is kept"):
        run = train(dataset.data, config, out=tmp_path / "run", every_slide=True)
    assert load_model(run.folder).name == "mean_pool"
    assert len(run.predictions) == 0
    with pytest.raises(ConfigError, match="`fold` and `every_slide` exclude each other"):
        train(dataset.data, config, out=tmp_path / "run", every_slide=True, fold=1)


def test_a_failed_job_raises_its_error(dataset: Material, tmp_path: Path) -> None:
    fold = dataset.folds[0]
    val = tuple(s.slide_id for s in dataset.cohort.get_slides(fold.val) if s.label == 0)
    given = {"recipe": "official", "options": QUICK, "folds": [fold._replace(val=val)]}
    with pytest.raises(SacMILError, match="one class only"):
        train(dataset.data, "mean_pool", out=tmp_path / "run", **given)


def test_wrong_arguments_are_rejected_before_the_folder_is_made(
    dataset: Material, tmp_path: Path
) -> None:
    data, out = dataset.data, tmp_path / "run"
    with pytest.raises(ConfigError, match="there are folds 0 to 1"):
        train(data, "mean_pool", out=out, folds=2, fold=7)
    with pytest.raises(ConfigError, match="has the models abmil, dsmil; name the one"):
        train(data, out=out, config={"abmil": {}, "dsmil": {}})
    with pytest.raises(CohortError, match="'zebra' is not in the cohort"):
        train(data, "mean_pool", out=out, folds=[Fold(("zebra",), (), ())])
    with pytest.raises(ConfigError, match="expected one device or more"):
        cross_validate(data, "mean_pool", out=out, devices=[])
    with pytest.raises(ConfigError, match="models have different seeds"):
        cross_validate(data, {"abmil": {"seed": 1}, "dsmil": {}}, out=out)
    assert not out.exists()


CONFIGS = make_configs(
    ["abmil", "mean_pool"],
    {},
    ["epochs=2", "lr=1e-2", "abmil.hidden=16", "recipe=official"],
)
TWO = {"devices": ("cpu", "cpu"), "threads": 1}


def validate(out: Path, dataset: Material, configs=CONFIGS, **arguments) -> Run:
    given = {"folds": dataset.folds, "devices": "cpu", **arguments}
    return cross_validate(dataset.data, configs, out=out, **given)


@pytest.fixture(scope="module")
def trained_once(written_once: Material, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("trained") / "run"
    validate(folder, written_once, {"mean_pool": CONFIGS["mean_pool"]})
    return folder


@pytest.fixture
def mean_pool_run(trained_once: Path, tmp_path: Path) -> Path:
    """A finished cross-validation of mean_pool; a copy of its own, as a test may change it."""
    return Path(shutil.copytree(trained_once, tmp_path / "run"))


def weights(run: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(run)): file.read_bytes() for file in run.rglob("model.safetensors")
    }


@pytest.mark.slow
def test_every_job_runs_once_whatever_runs_in_parallel(dataset, tmp_path) -> None:
    lines, one = [], {"mean_pool": CONFIGS["mean_pool"]}
    parallel = validate(
        tmp_path / "parallel",
        dataset,
        one,
        seeds=(1,),
        **TWO,
        on_progress=lambda *line: lines.append(line),
    )
    assert not parallel.failures
    assert len(weights(tmp_path / "parallel")) == 2, "one for each fold"
    assert lines[-1] == ("cross-validation, epochs", 4, 4, "2 of 2 jobs")
    tested = parallel.predictions.select(parallel.predictions.split == "test")
    once = {*zip(tested.model, tested.slide_id, strict=True)}
    assert len(once) == len(tested) == len(dataset.cohort.slides)

    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("model.safetensors")}
    again = validate(tmp_path / "parallel", dataset, one, seeds=(1,), **TWO)
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert len(again.predictions) == len(parallel.predictions)

    single = validate(tmp_path / "single", dataset, one, seeds=(1,), threads=1)
    ours, theirs = single.predictions, parallel.predictions
    assert ours.slide_id.tolist() == theirs.slide_id.tolist()
    # Up to the last digits: a process that has computed before may choose other kernels.
    np.testing.assert_allclose(ours.probabilities, theirs.probabilities, rtol=1e-4, atol=1e-5)


def test_localisation_of_every_part_is_joined_and_an_older_run_stays_finished(
    dataset, tmp_path
) -> None:
    for path in dataset.bags.values():
        write_bag(path, dataclasses.replace(read_bag(path), labels=np.arange(30) % 2))
    configs = {"mean_pool": CONFIGS["mean_pool"]}
    validate(tmp_path / "run", dataset, configs)
    whole = tmp_path / "run" / LOCALIZATION_FILE
    rows = read_localization(whole)
    assert sorted(row.slide_id for row in rows) == sorted(dataset.bags), "each slide out of fold"
    for row in rows:
        assert row.slide_id in dataset.folds[row.fold].test
    before = {file: file.read_bytes() for file in whole.parent.rglob("*.*") if file != whole}
    content = whole.read_bytes()
    whole.unlink()  # killed just before it was written
    validate(tmp_path / "run", dataset, configs)
    assert whole.read_bytes() == content
    for file in whole.parent.rglob(LOCALIZATION_FILE):  # a run of an earlier version has none
        file.unlink()
    validate(tmp_path / "run", dataset, configs)
    for file, found in before.items():
        if file.name not in (LOCALIZATION_FILE, "provenance.json"):
            assert file.read_bytes() == found, file


def test_a_run_of_another_command_is_not_changed(dataset, mean_pool_run, tmp_path) -> None:
    config = CONFIGS["mean_pool"]
    train(dataset.data, config, out=tmp_path / "one", folds=dataset.folds)
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*") if path.is_file()}
    with pytest.raises(RunError, match="is a run of sacmil crossval, not of sacmil train"):
        train(dataset.data, config, out=mean_pool_run, folds=dataset.folds)
    with pytest.raises(RunError, match="is a run of sacmil train, not of sacmil crossval"):
        validate(tmp_path / "one", dataset, {"mean_pool": config})
    assert {path: path.read_bytes() for path in tmp_path.glob("*/*") if path.is_file()} == before


def test_models_can_join_a_run_that_stands_for_all_of_them_and_other_data_cannot(
    dataset, mean_pool_run, tmp_path
) -> None:
    first = {"mean_pool": CONFIGS["mean_pool"]}
    both = validate(tmp_path / "run", dataset)
    assert set(both.predictions.model) == {"abmil", "mean_pool"}
    cohort, bags, folds = dataset
    other = make_folds(cohort, 2, seed=5)
    with pytest.raises(RunError, match="other folds"):
        validate(tmp_path / "run", dataset, first, folds=other)
    last = cohort.slides[-1]
    renamed = last._replace(patient_id="another")
    fewer = Cohort((*cohort.slides[:-1], renamed), cohort.classes)
    with pytest.raises(RunError, match="other cohort"):
        validate(tmp_path / "run", Material(fewer, bags, folds), first)
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    changed = {"mean_pool": TrainingConfig(model="mean_pool", training={"epochs": 1})}
    with pytest.raises(RunError, match="other settings"):
        validate(tmp_path / "run", dataset, changed)
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before, "a rejected run is unchanged"
    with pytest.raises(RunError, match="several models"):
        find_model_folders(tmp_path / "run")
    folders = find_model_folders(tmp_path / "run" / "abmil")
    assert [folder.name for folder in folders] == ["fold_0", "fold_1"]
    assert all(load_model(folder).name == "abmil" for folder in folders)


def test_a_folder_of_something_else_is_not_changed(dataset, tmp_path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("x")
    with pytest.raises(RunError, match="no run folder"):
        validate(tmp_path / "thesis", dataset)
    assert [file.name for file in (tmp_path / "thesis").iterdir()] == ["chapter1.tex"]


def test_every_bad_bag_is_reported_before_anything_is_trained(dataset, tmp_path) -> None:
    data = dataset.data
    names = list(dataset.bags)[1:4]
    dataset.bags[names[0]].write_bytes(b"")
    dataset.bags[names[1]].write_bytes(dataset.bags[names[1]].read_bytes()[:500])
    with h5py.File(dataset.bags[names[2]], "r+") as file:
        file["features"][0, 0] = np.nan
    with pytest.raises(CohortError) as error:
        cross_validate(data, CONFIGS, out=tmp_path / "run", folds=dataset.folds)
    assert len(error.value.problems) == 3
    for name, problem in zip(names, error.value.problems, strict=True):
        assert name in problem
    assert not list((tmp_path / "run").glob("mean_pool*"))


def test_a_job_that_fails_is_reported_and_the_others_run(dataset, tmp_path) -> None:
    """A slide whose features overflow is in the test set of fold 0 only."""
    wrong = dataset.folds[0].test[0]
    bag = read_bag(dataset.bags[wrong])
    bag = dataclasses.replace(bag, features=np.full_like(bag.features, 1e38))
    write_bag(dataset.bags[wrong], bag)
    others = [tuple(name for name in ids if name != wrong) for ids in dataset.folds[1]]
    mean_pool = {"mean_pool": CONFIGS["mean_pool"]}
    folds = [dataset.folds[0], Fold(*others)]
    found = validate(tmp_path / "run", dataset, mean_pool, folds=folds)
    (reason,) = found.failures.values()
    assert list(found.failures) == ["mean_pool, seed 0, fold 0"]
    assert wrong in reason
    assert set(found.predictions.fold) == {1}


def test_a_validation_set_of_one_class_is_found_before_training(dataset, tmp_path) -> None:
    cohort, _, folds = dataset
    val = tuple(s.slide_id for s in cohort.get_slides(folds[1].val) if s.label == 0)
    short = {"folds": [folds[0], folds[1]._replace(val=val)]}
    with pytest.raises(CohortError) as rejected:
        validate(tmp_path / "run", dataset, **short)
    (problem,) = rejected.value.problems
    assert problem.startswith("fold 1: the recipe chooses the best epoch by")
    assert "the validation set holds one class only" in problem
    assert not (tmp_path / "run").exists()
    last = make_configs(["mean_pool"], {}, ["epochs=1", "monitor=last"])
    assert not validate(tmp_path / "run", dataset, last, **short).failures


def test_a_run_over_other_bags_is_rejected(dataset, mean_pool_run) -> None:
    before = {f: f.read_bytes() for f in mean_pool_run.rglob("*") if f.is_file()}
    slide_id, path = next(iter(dataset.bags.items()))
    bag = read_bag(path)
    write_bag(path, dataclasses.replace(bag, features=bag.features + 1))
    with pytest.raises(RunError, match=rf"other bags .*{slide_id}"):
        validate(mean_pool_run, dataset, {"max_pool": TrainingConfig(model="max_pool")})
    assert {f: f.read_bytes() for f in before} | before == before


def test_a_run_killed_at_its_very_start_can_be_resumed(dataset, tmp_path) -> None:
    (tmp_path / "run" / "splits").mkdir(parents=True)
    (tmp_path / "run" / ".run.lock").touch()
    (tmp_path / "run" / "splits" / "splits_0.csv").write_text(",train,val,test\n")
    found = validate(tmp_path / "run", dataset, {"mean_pool": CONFIGS["mean_pool"]})
    assert not found.failures


def test_names_that_cannot_be_folders_are_rejected(dataset, tmp_path) -> None:
    for name in ("../up", "a b", "", ".hidden"):
        with pytest.raises(RunError, match="not a portable folder name"):
            validate(tmp_path / "run", dataset, {name: CONFIGS["mean_pool"]})


FORKS = """
import os, sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import torch._dynamo  # torch's first optimiser does so, which takes seconds
from small_cohort import write_material
from sacmil.training.config import make_configs
from sacmil.training.train import cross_validate
dataset = write_material(Path(sys.argv[2]), patients=8)
configs = make_configs(["sac_mil"], {}, ["epochs=8", "lr=1e-3", "dim=16", "k=4"])
for line in sys.stdin:
    process = os.fork()
    if not process:
        cross_validate(
            dataset.data, configs, out=line.strip(), folds=dataset.folds, devices="cpu", threads=1
        )
        os._exit(0)
    print(process, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]), flush=True)
"""
"""Trains into each folder of its input, in a process of its own that need not import torch."""


@pytest.mark.slow
def test_killed_at_any_moment_a_run_ends_with_the_same_weights(tmp_path) -> None:
    """Stopped without a kill: tests/training/test_fit.py and tests/compat."""
    here = str(Path(__file__).parent.parent / "support")
    command = [sys.executable, "-c", FORKS, here, str(tmp_path / "bags")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **pipes) as forks:

        def start(name: str) -> int:
            print(tmp_path / name, file=forks.stdin, flush=True)
            return int(forks.stdout.readline())

        def wait() -> int:
            return int(forks.stdout.readline())

        start("whole")
        assert wait() == 0
        for fold_number in (0, 1):
            process = start("killed")
            # Wait until an epoch is stored, then kill it at once.
            fold = tmp_path / "killed" / "sac_mil" / "seed_0" / f"fold_{fold_number}"
            until = time.monotonic() + 60
            while not (fold / "checkpoint.safetensors").exists() and time.monotonic() < until:
                time.sleep(0.01)
            os.kill(process, signal.SIGKILL)
            assert wait() == -signal.SIGKILL, "it was under way"
            assert not (fold / "card.json").exists()
        start("killed")
        assert wait() == 0
        forks.stdin.close()
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    ours, theirs = (tmp_path / name / "predictions.csv" for name in ("killed", "whole"))
    assert ours.read_bytes() == theirs.read_bytes()
    assert len(read_predictions(ours)) == 12
    assert not list((tmp_path / "killed").rglob("*.partial"))


@pytest.mark.slow
@pytest.mark.ray
def test_a_cluster_gives_the_same_predictions(ray_cluster, dataset, tmp_path) -> None:
    first = {"mean_pool": CONFIGS["mean_pool"]}
    cluster = {"threads": 1, "engine": "ray", "address": ray_cluster.address}
    found = validate(tmp_path / "cluster", dataset, first, **cluster)
    assert not found.failures
    validate(tmp_path / "here", dataset, first, threads=1)
    ours, theirs = (read_predictions(tmp_path / name) for name in ("cluster", "here"))
    assert ours.slide_id.tolist() == theirs.slide_id.tolist()
    np.testing.assert_allclose(ours.probabilities, theirs.probabilities, atol=1e-5)


@pytest.mark.slow
def test_labels_without_meaning_give_chance(tmp_path) -> None:
    """With random labels: over 40 patients, the pooled AUC stays within three errors of 0.5."""
    cohort, bags, _ = write_material(tmp_path / "bags", patients=40)
    random = np.random.default_rng(1)
    labels = dict(zip(cohort.patients, random.permutation(np.arange(40) % 2), strict=True))
    slides = tuple(s._replace(label=int(labels[s.patient_id])) for s in cohort.slides)
    shuffled = Cohort(slides, cohort.classes)
    config = TrainingConfig(model="mean_pool", training={"epochs": 3, "lr": 1e-2})
    found = cross_validate(
        Dataset(shuffled, bags), {"mean": config}, out=tmp_path / "run", folds=2, devices="cpu"
    )
    units = average_by_patient(found.predictions)
    assert abs(METRICS["auc"](units.label, units.probabilities) - 0.5) < 3 * 0.092


def test_labels_with_meaning_are_learned(dataset, tmp_path) -> None:
    config = TrainingConfig(model="mean_pool", training={"epochs": 5, "lr": 1e-2})
    found = validate(tmp_path / "run", dataset, {"mean": config})
    units = average_by_patient(found.predictions)
    assert METRICS["auc"](units.label, units.probabilities) > 0.95
