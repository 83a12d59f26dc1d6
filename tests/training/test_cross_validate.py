"""Cross-validation: side by side or alone, killed or not, the same figures, each part once."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest
from small_cohort import write_material

from sacmil import load_model, read_bag, write_bag
from sacmil.card import find_model_folders
from sacmil.cohorts.cohort import Cohort
from sacmil.cohorts.splits import make_folds
from sacmil.errors import CohortError, RunError
from sacmil.evaluation.metrics import METRICS
from sacmil.evaluation.patient_level import average_by_patient
from sacmil.results import LOCALIZATION_FILE, read_localization, read_predictions
from sacmil.training.config import TrainingConfig, make_configs
from sacmil.training.cross_validate import TrainingResources, cross_validate
from sacmil.training.train import train_fold

CONFIGS = make_configs(
    ["sac_mil", "mean_pool"],
    {},
    ["epochs=2", "lr=1e-2", "sac_mil.dim=16", "sac_mil.k=4", "recipe=official"],
)
TWO = TrainingResources(devices=("cpu", "cpu"), threads=1)


def weights(run: Path) -> dict[str, bytes]:
    return {
        str(file.relative_to(run)): file.read_bytes() for file in run.rglob("model.safetensors")
    }


def test_every_part_is_done_once_whatever_runs_beside_it(material, tmp_path) -> None:
    told = []
    together = cross_validate(
        tmp_path / "together",
        *material,
        CONFIGS,
        seeds=(0, 1),
        resources=TWO,
        on_progress=lambda *line: told.append(line),
    )
    assert not together.failures
    assert len(weights(tmp_path / "together")) == 8, "two models, two seeds, two folds"
    assert told[-1] == ("cross-validation, epochs", 16, 16, "8 of 8 parts")
    tested = together.predictions.select(together.predictions.split == "test")
    once = {(m, s, i) for m, s, i in zip(tested.model, tested.seed, tested.slide_id, strict=True)}
    assert len(once) == len(tested) == 4 * len(material.cohort.slides)

    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("model.safetensors")}
    again = cross_validate(tmp_path / "together", *material, CONFIGS, seeds=(0, 1), resources=TWO)
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert len(again.predictions) == len(together.predictions)

    alone = TrainingResources(threads=1)
    cross_validate(tmp_path / "alone", *material, CONFIGS, seeds=(1,), resources=alone)
    # Up to the last digits: a process that has computed before may choose other kernels.
    for part in (tmp_path / "alone").glob("*/seed_*/fold_*"):
        ours = load_model(part).state_dict()
        theirs = load_model(tmp_path / "together" / part.relative_to(tmp_path / "alone"))
        for name, value in theirs.state_dict().items():
            np.testing.assert_allclose(ours[name], value, rtol=1e-4, atol=1e-5)


def test_localisation_of_every_part_is_joined_and_an_older_run_stays_finished(
    material, tmp_path
) -> None:
    for path in material.bags.values():
        write_bag(path, dataclasses.replace(read_bag(path), labels=np.arange(30) % 2))
    configs = {"mean_pool": CONFIGS["mean_pool"]}
    cross_validate(tmp_path / "run", *material, configs)
    whole = tmp_path / "run" / LOCALIZATION_FILE
    rows = read_localization(whole)
    assert sorted(row.slide_id for row in rows) == sorted(material.bags), "each slide out of fold"
    for row in rows:
        assert row.slide_id in material.folds[row.fold].test
    before = {file: file.read_bytes() for file in whole.parent.rglob("*.*") if file != whole}
    content = whole.read_bytes()
    whole.unlink()  # killed just before it was written
    cross_validate(tmp_path / "run", *material, configs)
    assert whole.read_bytes() == content
    for file in whole.parent.rglob(LOCALIZATION_FILE):  # a run of an earlier version has none
        file.unlink()
    cross_validate(tmp_path / "run", *material, configs)
    for file, found in before.items():
        if file.name not in (LOCALIZATION_FILE, "provenance.json"):
            assert file.read_bytes() == found, file


def test_a_run_of_another_command_is_left_alone(material, tmp_path) -> None:
    cohort, bags, folds = material
    config = CONFIGS["mean_pool"]
    cross_validate(tmp_path / "folds", *material, {"mean_pool": config})
    train_fold(tmp_path / "one", cohort, bags, folds, config)
    before = {path: path.read_bytes() for path in tmp_path.glob("*/*") if path.is_file()}
    with pytest.raises(RunError, match="is a run of sacmil crossval, not of sacmil train"):
        train_fold(tmp_path / "folds", cohort, bags, folds, config)
    with pytest.raises(RunError, match="is a run of sacmil train, not of sacmil crossval"):
        cross_validate(tmp_path / "one", *material, {"mean_pool": config})
    assert {path: path.read_bytes() for path in tmp_path.glob("*/*") if path.is_file()} == before


def test_models_can_join_a_run_and_other_data_cannot(material, tmp_path) -> None:
    first = {"mean_pool": CONFIGS["mean_pool"]}
    cross_validate(tmp_path / "run", *material, first)
    both = cross_validate(tmp_path / "run", *material, CONFIGS)
    assert set(both.predictions.model) == {"sac_mil", "mean_pool"}
    cohort, bags, folds = material
    other = make_folds(cohort, 2, seed=5)
    with pytest.raises(RunError, match="other folds"):
        cross_validate(tmp_path / "run", cohort, bags, other, first)
    fewer = Cohort(cohort.slides[:-1], cohort.classes)
    with pytest.raises(RunError, match="other cohort"):
        cross_validate(tmp_path / "run", fewer, bags, folds, first)
    changed = {"mean_pool": TrainingConfig(model="mean_pool", training={"epochs": 1})}
    with pytest.raises(RunError, match="other settings"):
        cross_validate(tmp_path / "run", *material, changed)


def test_a_folder_of_something_else_is_left_alone(material, tmp_path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("x")
    with pytest.raises(RunError, match="no run folder"):
        cross_validate(tmp_path / "thesis", *material, CONFIGS)
    assert [file.name for file in (tmp_path / "thesis").iterdir()] == ["chapter1.tex"]


def test_every_bad_bag_is_told_before_anything_is_trained(material, tmp_path) -> None:
    names = list(material.bags)[1:4]
    material.bags[names[0]].write_bytes(b"")
    material.bags[names[1]].write_bytes(material.bags[names[1]].read_bytes()[:500])
    with h5py.File(material.bags[names[2]], "r+") as file:
        file["features"][0, 0] = np.nan
    with pytest.raises(CohortError) as refusal:
        cross_validate(tmp_path / "run", *material, {"mean_pool": CONFIGS["mean_pool"]})
    assert len(refusal.value.problems) == 3
    for name, problem in zip(names, refusal.value.problems, strict=True):
        assert name in problem
    assert not list((tmp_path / "run").glob("mean_pool*"))


def test_a_part_that_fails_is_told_and_the_others_are_done(material, tmp_path) -> None:
    """A validation part of one class leaves fold 0 of the choosing model nothing to choose by."""
    cohort, bags, folds = material
    val = tuple(s.slide_id for s in cohort.of(folds[0].val) if s.label == 0)
    folds = [folds[0]._replace(val=val), folds[1]]
    found = cross_validate(tmp_path / "run", cohort, bags, folds, CONFIGS)
    assert sorted(found.failures) == [f"{m}, seed 0, fold 0" for m in ("mean_pool", "sac_mil")]
    assert all("one class only" in reason for reason in found.failures.values())
    assert set(found.predictions.fold) == {1}


def test_a_run_over_other_bags_is_refused_and_says_so(material, tmp_path) -> None:
    first = {"mean_pool": CONFIGS["mean_pool"]}
    cross_validate(tmp_path / "run", *material, first)
    before = {f: f.read_bytes() for f in (tmp_path / "run").rglob("*") if f.is_file()}
    slide_id, path = next(iter(material.bags.items()))
    bag = read_bag(path)
    write_bag(path, dataclasses.replace(bag, features=bag.features + 1))
    with pytest.raises(RunError, match=rf"other bags .*{slide_id}"):
        cross_validate(tmp_path / "run", *material, {"max_pool": TrainingConfig(model="max_pool")})
    assert {f: f.read_bytes() for f in before} | before == before


def test_a_refused_command_leaves_the_run_as_it_was(material, tmp_path) -> None:
    cross_validate(tmp_path / "run", *material, {"mean_pool": CONFIGS["mean_pool"]})
    before = (tmp_path / "run" / "config.yaml").read_bytes()
    changed = TrainingConfig(model="mean_pool", training={"epochs": 1})
    with pytest.raises(RunError, match="other settings"):
        cross_validate(tmp_path / "run", *material, {"mean_pool": changed})
    assert (tmp_path / "run" / "config.yaml").read_bytes() == before


def test_a_run_killed_at_its_very_start_can_be_taken_up(material, tmp_path) -> None:
    (tmp_path / "run" / "splits").mkdir(parents=True)
    (tmp_path / "run" / ".run.lock").touch()
    (tmp_path / "run" / "splits" / "splits_0.csv").write_text(",train,val,test\n")
    found = cross_validate(tmp_path / "run", *material, {"mean_pool": CONFIGS["mean_pool"]})
    assert not found.failures


def test_a_run_means_all_its_parts(material, tmp_path) -> None:
    cross_validate(tmp_path / "run", *material, CONFIGS)
    with pytest.raises(RunError, match="several models"):
        find_model_folders(tmp_path / "run")
    parts = find_model_folders(tmp_path / "run" / "sac_mil")
    assert [part.name for part in parts] == ["fold_0", "fold_1"]
    assert all(load_model(part).name == "sac_mil" for part in parts)


def test_names_that_cannot_be_folders_are_refused(material, tmp_path) -> None:
    for name in ("../up", "a b", "", ".hidden"):
        with pytest.raises(RunError, match="name of a folder"):
            cross_validate(tmp_path / "run", *material, {name: CONFIGS["mean_pool"]})


SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from small_cohort import write_material
from sacmil.training.config import make_configs
from sacmil.training.cross_validate import Resources, cross_validate
from sacmil.training.train import train_run
material = write_material(Path(sys.argv[2]), patients=8)
configs = make_configs(["sac_mil"], {}, ["epochs=8", "lr=1e-3", "dim=16", "k=4"])
cross_validate(Path(sys.argv[3]), *material, configs, resources=Resources(threads=1))
"""


@pytest.mark.parametrize("folds", [(1,), pytest.param((0, 1), marks=pytest.mark.slow)])
def test_killed_at_any_moment_a_run_ends_with_the_same_weights(folds, tmp_path) -> None:
    here = str(Path(__file__).parent.parent / "support")

    def start(out: Path) -> subprocess.Popen:
        command = [sys.executable, "-c", SCRIPT, here, str(tmp_path / "bags"), str(out)]
        return subprocess.Popen(command, start_new_session=True)

    assert start(tmp_path / "whole").wait() == 0
    for fold_number in folds:
        process = start(tmp_path / "killed")
        # Wait until some epochs are remembered, then end it and its children at once.
        fold = tmp_path / "killed" / "sac_mil" / "seed_0" / f"fold_{fold_number}"
        until = time.monotonic() + 60
        while not (fold / "checkpoint.safetensors").exists() and time.monotonic() < until:
            time.sleep(0.01)
        assert process.poll() is None, "it was under way"
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        assert not (fold / "card.json").exists()
    assert start(tmp_path / "killed").wait() == 0
    assert weights(tmp_path / "killed") == weights(tmp_path / "whole")
    ours, theirs = (tmp_path / name / "predictions.csv" for name in ("killed", "whole"))
    assert ours.read_bytes() == theirs.read_bytes()
    assert len(read_predictions(ours)) == 12
    assert not list((tmp_path / "killed").rglob("*.partial"))


@pytest.mark.slow
def test_a_cluster_gives_the_same_answers(ray_cluster, material, tmp_path) -> None:
    first = {"mean_pool": CONFIGS["mean_pool"]}
    cluster = TrainingResources(threads=1, engine="ray", address=ray_cluster.address)
    found = cross_validate(tmp_path / "cluster", *material, first, resources=cluster)
    assert not found.failures
    cross_validate(tmp_path / "here", *material, first, resources=TrainingResources(threads=1))
    ours, theirs = (read_predictions(tmp_path / name) for name in ("cluster", "here"))
    assert ours.slide_id.tolist() == theirs.slide_id.tolist()
    np.testing.assert_allclose(ours.probabilities, theirs.probabilities, atol=1e-5)


def test_labels_without_meaning_give_chance(tmp_path) -> None:
    """Labels drawn by lot: over 60 patients, the pooled AUC stays within three errors of 0.5."""
    cohort, bags, _ = write_material(tmp_path / "bags", patients=60)
    random = np.random.default_rng(1)
    drawn = dict(zip(cohort.patients, random.permutation(np.arange(60) % 2), strict=True))
    slides = tuple(s._replace(label=int(drawn[s.patient_id])) for s in cohort.slides)
    shuffled = Cohort(slides, cohort.classes)
    config = TrainingConfig(model="mean_pool", training={"epochs": 5, "lr": 1e-2})
    found = cross_validate(
        tmp_path / "run", shuffled, bags, make_folds(shuffled, 3), {"mean": config}
    )
    units = average_by_patient(found.predictions)
    assert abs(METRICS["auc"](units.label, units.probabilities) - 0.5) < 3 * 0.075


def test_labels_with_meaning_are_learnt(material, tmp_path) -> None:
    config = TrainingConfig(model="mean_pool", training={"epochs": 5, "lr": 1e-2})
    found = cross_validate(tmp_path / "run", *material, {"mean": config})
    units = average_by_patient(found.predictions)
    assert METRICS["auc"](units.label, units.probabilities) > 0.95
