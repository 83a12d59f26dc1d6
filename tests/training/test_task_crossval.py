"""Cross-validations for every task: the same bits again, after kills, and for explicit classes."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from exhaustive import choose_cases, mostly_slow
from small_cohort import Material, write_material
from target_cohort import TASKS, write_targets

from sacmil import list_models, read_bag
from sacmil.cohorts.cohort import Cohort, read_cohort, write_cohort
from sacmil.cohorts.dataset import Dataset
from sacmil.models._registry import get_model_class
from sacmil.results import TASK_FILE, Run
from sacmil.tasks import Classification
from sacmil.training.config import TrainingConfig
from sacmil.training.job import run_job
from sacmil.training.train import cross_validate

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*so no model can learn it:sacmil.errors.CohortWarning"  # the cohorts are small
)

VOLATILE = (".lock", "metrics.csv", "provenance.json")
"""Files that hold times."""
FAMILIES = ("clam_sb", "mean_pool", "sac_mil_near_far")
RECIPE = {
    "epochs": 3,
    "lr": 1e-2,
    "monitor": "val_loss",
    "class_weights": "balanced",
    "instance_dropout": 0.3,
}


def hash_files(run: Path) -> dict[str, str]:
    """SHA-256 of each file that holds no time."""
    files = [file for file in run.rglob("*") if file.is_file() and file.name not in VOLATILE]
    return {
        str(file.relative_to(run)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if not file.name.endswith(VOLATILE)
    }


# --- kill and resume -----------------------------------------------------------------------------


class KilledError(Exception):
    """What a power failure is here."""


def read_and_die(lives: Iterator[int], path: Path) -> Any:
    if next(lives, None) is None:
        raise KilledError
    return read_bag(path)


def validate(material: Material, out: Path) -> Run:
    no_weights = {"class_weights": "none"} if material.cohort.task.kind == "survival" else {}
    config = TrainingConfig(model="mean_pool", training=RECIPE | no_weights)
    return cross_validate(
        material.data,
        {"mean_pool": config},
        out=out,
        folds=material.folds,
        devices="cpu",
        threads=1,
        cache="none",
    )


def check_kills(
    material: Material, folder: Path, monkeypatch: pytest.MonkeyPatch, shares: tuple[float, ...]
) -> None:
    """Kill a run after these shares of all reading, run it again, and compare its files."""

    def limit(life: int) -> Iterator[int]:
        lives = iter(range(life))
        limited = partial(run_job, read=partial(read_and_die, lives))
        monkeypatch.setattr("sacmil.training.run_jobs.run_job", limited)
        return lives

    lives = limit(10**6)
    validate(material, folder / "whole")
    whole, total = hash_files(folder / "whole"), next(lives)
    assert "mean_pool/seed_0/fold_1/model.safetensors" in whole
    assert (TASK_FILE in whole) == (not material.cohort.task.has_classes)
    for share in shares:
        killed = folder / str(share)
        limit(int(share * total))
        with pytest.raises(KilledError):
            validate(material, killed)
        assert set(hash_files(killed)) != set(whole)
        lives = limit(10**6)
        validate(material, killed)
        assert share < 0.5 or next(lives) < 0.6 * total, "the first fold is not trained again"
        assert hash_files(killed) == whole


@pytest.mark.parametrize("name", mostly_slow(["two numbers", "coral", "multilabel"], "multilabel"))
def test_a_run_killed_in_either_fold_ends_as_if_never_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    material = write_targets(tmp_path / "bags", TASKS[name])
    check_kills(material, tmp_path, monkeypatch, (0.3, 0.7))


@pytest.mark.slow
@pytest.mark.parametrize("name", choose_cases(list(TASKS), step=3))
def test_a_run_killed_anywhere_ends_as_if_never_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    material = write_targets(tmp_path / "bags", TASKS[name], patients=16)
    check_kills(material, tmp_path, monkeypatch, (0.02, 0.15, 0.25, 0.45, 0.5, 0.6, 0.8, 0.99))


STEPS = frozenset({"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.link", "os.truncate"})


def validate_until(material: Material, out: Path, last: int, steps: Any) -> None:
    """Cross-validate in this process and die at its step ``last``; -1 lets it live."""

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        is_write = event == "open" and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if (is_write or event in STEPS) and str(arguments[0]).startswith(str(out)):
            steps.value += 1
            if steps.value == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    validate(material, out)
    os._exit(0)


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="kills a forked process")
@pytest.mark.parametrize("name", choose_cases(["two numbers", "coral", "multilabel"], step=3))
def test_killed_outright_at_a_write_of_its_jobs_a_run_ends_with_the_same_files(
    tmp_path: Path, name: str
) -> None:
    material = write_targets(tmp_path / "bags", TASKS[name])
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["sacmil.training.train", "torch._dynamo"])

    def start(out: str, last: int = -1) -> tuple[int | None, int]:
        steps = context.Value("i", 0)
        given = (material, tmp_path / out, last, steps)
        process = context.Process(target=validate_until, args=given)
        process.start()
        process.join(100)
        assert process.exitcode is not None
        return process.exitcode, steps.value

    code, count = start("whole")
    assert code == 0
    whole = hash_files(tmp_path / "whole")
    for seed in range(8):
        last = Random(seed).randint(count // 3, count)
        assert start(f"killed {seed}", last)[0] == -signal.SIGKILL
        assert start(f"killed {seed}")[0] == 0, f"killed at step {last} of {count}"
        assert hash_files(tmp_path / f"killed {seed}") == whole, f"killed at step {last} of {count}"


# --- classes -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def of_classes(tmp_path_factory: pytest.TempPathFactory) -> Material:
    return write_material(tmp_path_factory.mktemp("classes") / "bags", patients=8)


def make_small_config(name: str) -> TrainingConfig:
    training = {"epochs": 1, "lr": 1e-3, "monitor": "val_loss", "label_smoothing": 0.1}
    options = dict(get_model_class(name).small_options)
    return TrainingConfig(model=name, options=options, training=training)


def validate_classes(
    material: Material, cohort: Cohort, names: Iterable[str], out: Path
) -> dict[str, str]:
    run = cross_validate(
        Dataset(cohort, material.bags),
        {name: make_small_config(name) for name in names},
        out=out,
        folds=material.folds,
        devices="cpu",
        threads=1,
    )
    assert not run.failures
    return hash_files(out)


def check_bits(of_classes: Material, folder: Path, names: Iterable[str]) -> None:
    table = folder / "table.csv"
    write_cohort(table, of_classes.cohort)
    plain = read_cohort(table)
    explicit = read_cohort(table, task=Classification(plain.classes))
    by_name = read_cohort(table, task={"kind": "classification", "classes": list(plain.classes)})
    assert plain.task == explicit.task == by_name.task
    first = validate_classes(of_classes, plain, names, folder / "plain")
    again = validate_classes(of_classes, explicit, names, folder / "explicit")
    assert first == again
    weights = {file for file in first if file.endswith("model.safetensors")}
    assert {Path(file).parts[0] for file in weights} == set(names)
    assert {str(Path(file).with_name("card.json")) for file in weights} < set(first)
    assert "predictions.csv" in first
    assert not any(file.endswith(TASK_FILE) for file in first)


def test_classes_have_the_same_bits_again_and_as_an_explicit_task(
    of_classes: Material, tmp_path: Path
) -> None:
    check_bits(of_classes, tmp_path, FAMILIES)


@pytest.mark.slow
def test_classes_of_every_other_model_have_the_same_bits(
    of_classes: Material, tmp_path: Path
) -> None:
    check_bits(of_classes, tmp_path, sorted(set(list_models()) - set(FAMILIES)))


def test_another_order_of_the_classes_has_other_bits(of_classes: Material, tmp_path: Path) -> None:
    """So that equal bits above mean equal tasks."""
    cohort = of_classes.cohort
    slides = tuple(slide._replace(label=1 - slide.class_index) for slide in cohort.slides)
    other = Cohort(slides, cohort.classes[::-1])
    one = validate_classes(of_classes, cohort, ["mean_pool"], tmp_path / "one")
    two = validate_classes(of_classes, other, ["mean_pool"], tmp_path / "two")
    weights = "mean_pool/seed_0/fold_0/model.safetensors"
    assert one[weights] != two[weights]
    assert one["predictions.csv"] != two["predictions.csv"]
