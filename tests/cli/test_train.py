"""``sacmil train`` and ``sacmil crossval``: from a table and bags to figures, or to one list."""

from __future__ import annotations

import csv
import json
import shutil
import sys
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from sacmil import Bag, load_model, read_bag, write_bag
from sacmil.bag import EncoderId
from sacmil.cohorts import bags as cohort_bags
from sacmil.errors import CohortWarning
from sacmil.formats import _registry
from sacmil.parallel import run_each
from sacmil.results import read_predictions

QUICK = ("-o", "dim=16", "-o", "k=4", "-o", "epochs=1", "-o", "lr=1e-2")
SMALL = ("-o", "dim=16", "-o", "k=4", "-o", "epochs=2", "-o", "lr=1e-2")


def write_material(folder: Path, **facts: Any) -> Path:
    """Sixteen bags and their table."""
    random = np.random.default_rng(0)
    path = folder / "table.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["case_id", "slide_id", "label"])
        for number in range(16):
            label = number % 2
            features = random.standard_normal((12, 6)).astype(np.float32) + 2 * label
            coords = np.stack(np.divmod(random.permutation(36)[:12], 6), 1) * 256
            bag = Bag(f"s{number}", features, coords, 256, **facts)
            write_bag(folder / f"bags/s{number}.h5", bag)
            writer.writerow([f"p{number}", f"s{number}.svs", ["low", "high"][label]])
    return path


@pytest.fixture(scope="module")
def kept_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Written once, for tests that change nothing in its folder but add to it."""
    return write_material(tmp_path_factory.mktemp("material"))


@pytest.fixture(scope="module")
def kept_named_table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the encoder and the scale of its bags."""
    folder = tmp_path_factory.mktemp("named")
    return write_material(folder, mpp=0.5, encoder=EncoderId("uni_v1", "abc"))


def copied(kept: Path, folder: Path) -> Path:
    shutil.copytree(kept.parent / "bags", folder / "bags")
    return Path(shutil.copy(kept, folder))


@pytest.fixture
def table(kept_table: Path, tmp_path: Path) -> Path:
    return copied(kept_table, tmp_path)


@pytest.fixture
def named_table(kept_named_table: Path, tmp_path: Path) -> Path:
    return copied(kept_named_table, tmp_path)


@pytest.fixture(scope="module")
def comparison() -> dict[str, Any]:
    """How the command of ``compared`` ended, once it has."""
    return {}


@pytest.fixture
def compared(sacmil: Callable, kept_table: Path, comparison: dict[str, Any]) -> Any:
    """How a cross-validation of two models ended, into the folder "compared" of the table."""
    if not comparison:
        splits = kept_table.parent / "splits"
        assert sacmil("split", kept_table, "--folds", 2, "--out", splits).code == 0
        models = ("--splits", splits, "--models", "sac_mil,mean_pool", "--seeds", 2)
        done = sacmil("crossval", *given(kept_table, "compared"), *models, *QUICK)
        comparison["done"] = done
    return comparison["done"]


def given(table: Path, out: str) -> tuple[object, ...]:
    return (table, "--bags", table.parent / "bags", "--out", table.parent / out)


def test_a_table_and_bags_become_a_model_and_figures(sacmil: Callable, table: Path) -> None:
    done = sacmil("train", *given(table, "run"), "--folds", 2, *SMALL)
    assert done.code == 0, done.err
    assert "sac_mil_near_far, epoch 2 of 2 kept" in done.out
    assert "Unit: the patient (8 patients, 8 slides); 1 fold, 1 seed" in done.out
    run = table.parent / "run"
    assert load_model(run).classes == ("high", "low")
    assert len(read_predictions(run)) == 8
    assert {file.name for file in run.iterdir() if not file.name.startswith(".")} == {
        "bags.csv",
        "card.json",
        "config.yaml",
        "metrics.csv",
        "model.safetensors",
        "predictions.csv",
        "provenance.json",
        "splits",
    }
    before = (run / "card.json").stat().st_mtime_ns
    assert sacmil("train", *given(table, "run"), "--folds", 2, *SMALL).out == done.out
    assert (run / "card.json").stat().st_mtime_ns == before, "what is done is done"


def test_the_configuration_of_a_run_makes_the_same_weights_again(
    sacmil: Callable, table: Path
) -> None:
    done = sacmil("train", *given(table, "first"), "--folds", 2, *QUICK, "--seed", 3)
    assert done.code == 0, done.err
    config = table.parent / "first" / "config.yaml"
    done = sacmil("train", *given(table, "second"), "--folds", 2, "--config", config)
    assert done.code == 0, done.err
    first, second = (table.parent / n / "model.safetensors" for n in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()


CRASHING_HDF5 = """
import os, h5py
open_any = h5py.h5f.open
h5py.h5f.open = lambda name, *rest: os.abort() if b"s3.h5" in name else open_any(name, *rest)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_bag_that_crashes_hdf5_is_a_problem_and_not_the_end_of_the_command(
    sacmil: Callable, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Every Python that starts imports a module of this name, so worker processes do.
    (tmp_path / "sitecustomize.py").write_text(CRASHING_HDF5)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(cohort_bags, "run_each", run_each)
    (tmp_path / "bags/s5.h5").unlink()
    done = sacmil("crossval", *given(table, "run"), *SMALL)
    assert done.code == 1, done
    assert "s3.h5: reading its header failed: the worker process died (SIGABRT)" in done.err
    assert "s5: has no bag" in done.err


def test_a_command_walks_the_bag_folder_once_and_reads_each_header_once(
    sacmil: Callable, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walks, headers = [], []
    walk, read_header = _registry.list_bag_files, cohort_bags._read_header
    monkeypatch.setattr(
        _registry, "list_bag_files", lambda *given: walks.append(given) or walk(*given)
    )
    monkeypatch.setattr(
        cohort_bags, "_read_header", lambda path: headers.append(path) or read_header(path)
    )
    bags = table.parent / "bags"
    quick = ("--folds", 2, "-o", "epochs=1")
    for count, call in (
        (16, ("train", *given(table, "one"), "--model", "mean_pool", *quick)),
        (16, ("crossval", *given(table, "run"), "--models", "mean_pool", *quick)),
        (0, ("evaluate", table.parent / "one", "--table", table, "--bags", bags)),
    ):
        walks.clear()
        headers.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", CohortWarning)  # it was trained on these slides
            done = sacmil(*call)
        assert done.code == 0, done.err
        assert len(walks) == 1
        assert len(headers) == len(set(headers)) == count


def test_refitting_on_every_slide_tests_none(sacmil: Callable, table: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always", CohortWarning)
        done = sacmil("train", *given(table, "all"), "--all", "--recipe", "official", *SMALL)
    assert done.code == 0, done.err
    assert "of the recipe official chooses an epoch on a validation set" in done.err
    assert "The last of 2 epochs is kept" in done.err
    assert "AUC" not in done.out
    notes = json.loads((table.parent / "all" / "card.json").read_text())["notes"]
    assert notes["training"]["slides"] == {"train": 16, "val": 0, "test": 0}


def test_models_are_compared_on_the_same_folds(compared: Any, kept_table: Path) -> None:
    assert compared.code == 0, compared.err
    assert "2 folds, 2 seeds" in compared.out
    names = [line.split()[0] for line in compared.out.splitlines()[2:4]]
    assert names == ["mean_pool", "sac_mil"]
    found = read_predictions(kept_table.parent / "compared")
    tested = [
        {(s, f) for m, s, f in zip(found.model, found.slide_id, found.fold, strict=True) if m == n}
        for n in names
    ]
    assert tested[0] == tested[1]
    assert len(tested[0]) == 16


@pytest.mark.usefixtures("compared")
def test_the_configuration_of_a_comparison_makes_the_same_predictions_again(
    sacmil: Callable, kept_table: Path
) -> None:
    folder = kept_table.parent
    options = ("--splits", folder / "splits", "--config", folder / "compared" / "config.yaml")
    done = sacmil("crossval", *given(kept_table, "again"), *options)
    assert done.code == 0, done.err
    ours, theirs = (
        list(csv.DictReader((folder / name / "predictions.csv").read_text().splitlines()))
        for name in ("compared", "again")
    )
    assert [row for row in ours if row["seed"] == "0"] == theirs
    assert len(theirs) == 2 * 16


def test_everything_wrong_with_the_dataset_is_reported_at_once(
    sacmil: Callable, table: Path
) -> None:
    with table.open("a") as file:
        file.write("p0,s0.svs,low\np16,s16.svs,low\np1,s1-b,odd\n")
    done = sacmil("train", *given(table, "run"), *SMALL)
    assert done.code == 1
    for problem in ("'s0' occurs 2 times", "s16: has no bag", "class 'odd' has 1 patient"):
        assert problem in done.err
    assert not (table.parent / "run").exists()


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("train", ["--model", "sacmil"], "did you mean 'sac_mil'"),
        ("train", ["-o", "epochz=3"], "did you mean 'epochs'"),
        ("train", ["--fold", "7", "--folds", "2"], "there are folds 0 to 1"),
        ("train", ["--device", "cuda:9", "--folds", "2"], "sacmil doctor"),
        ("train", ["--folds", "9"], "fold"),
        ("train", ["-o", "k=0"], "expected a whole number of at least 2"),
        ("train", ["--all", "--folds", "3"], "which --all does not make"),
        ("crossval", ["--models", "sac_mil,abmill"], "did you mean 'abmil"),
        ("crossval", ["--gpus", "a"], "expected numbers such as 0,1"),
        ("crossval", ["--address", "x"], "--engine ray"),
        ("crossval", ["--models", "abmil", "-o", "k=3"], "no setting 'k'"),
        ("crossval", ["--recipe", "offical"], "did you mean 'official'"),
    ],
)
def test_a_wrong_call_says_what_to_type(
    sacmil: Callable, table: Path, command: str, arguments: list[str], message: str
) -> None:
    done = sacmil(command, *given(table, "run"), *arguments)
    assert done.code in (1, 2)
    assert message in done.err
    assert "fault of sacmil" not in done.err


def test_a_bag_of_another_width_is_refused_before_training(sacmil: Callable, table: Path) -> None:
    odd = Bag("s3", np.ones((5, 9), np.float32), np.arange(10).reshape(5, 2) * 256, 256)
    write_bag(table.parent / "bags" / "s3.h5", odd)
    done = sacmil("crossval", *given(table, "run"), *SMALL)
    assert done.code == 1
    assert "9 features; expected 6" in done.err
    assert not (table.parent / "run").exists()


def test_options_of_new_folds_are_not_ignored(sacmil: Callable, table: Path) -> None:
    splits = table.parent / "splits"
    assert sacmil("split", table, "--folds", 2, "--out", splits).code == 0
    for option in (["--folds", "3"], ["--repeats", "2"], ["--preserve", "case_id"]):
        done = sacmil("crossval", *given(table, "run"), "--splits", splits, *option)
        assert done.code == 2
        assert f"{option[0]} is for new folds" in done.err


def test_slides_without_a_bag_can_be_left_out_of_given_splits(
    sacmil: Callable, table: Path
) -> None:
    splits = table.parent / "splits"
    assert sacmil("split", table, "--folds", 2, "--out", splits).code == 0
    (table.parent / "bags" / "s3.h5").unlink()
    call = ("crossval", *given(table, "run"), "--splits", splits, "--models", "mean_pool")
    with warnings.catch_warnings():
        warnings.simplefilter("always", CohortWarning)
        done = sacmil(*call, "--drop-missing", "-o", "epochs=1")
    assert done.code == 0, done.err
    assert "s3" in done.err
    assert len(read_predictions(table.parent / "run")) == 15


@pytest.mark.usefixtures("compared")
def test_one_model_of_a_runs_configuration_can_be_trained(
    sacmil: Callable, kept_table: Path
) -> None:
    config = kept_table.parent / "compared" / "config.yaml"
    call = ("train", *given(kept_table, "one"), "--config", config, "--model", "mean_pool")
    done = sacmil(*call, "--folds", 2)
    assert done.code == 0, done.err
    assert "mean_pool, epoch 1 of 1 kept" in done.out


def test_bags_that_need_hints_point_to_convert(sacmil: Callable, table: Path) -> None:
    (table.parent / "clam" / "h5_files").mkdir(parents=True)
    for number in range(16):
        with h5py.File(table.parent / f"clam/h5_files/s{number}.h5", "w") as file:
            file["features"], file["coords"] = np.ones((4, 6), np.float32), np.eye(4, 2) * 256
    call = ("train", table, "--bags", table.parent / "clam", "--out", table.parent / "run")
    done = sacmil(*call, *SMALL)
    assert done.code == 1
    assert "sacmil convert" in done.err
    assert "16 problems:" in done.err


def rewritten(table: Path, number: int, **changes: object) -> None:
    """One bag, made otherwise."""
    path = table.parent / f"bags/s{number}.h5"
    write_bag(path, replace(read_bag(path), **changes))


@pytest.mark.parametrize("what", ["weights", "tiles", "slide", "twice"])
def test_bags_that_do_not_go_together_are_refused(
    sacmil: Callable, named_table: Path, what: str
) -> None:
    table = named_table
    bags = table.parent / "bags"
    if what == "weights":
        rewritten(table, 3, encoder=EncoderId("uni_v1", "other"))
        message = "uni_v1 other; expected uni_v1 abc, as 15 others have"
    elif what == "tiles":
        rewritten(table, 3, mpp=0.51)  # no other size
        rewritten(table, 4, mpp=1.0)
        message = "s4.h5: tiles of 256 µm; expected tiles of 128 µm"
    elif what == "slide":
        rewritten(table, 3, slide_id="another")
        message = "holds the slide 'another' but is named 's3'"
    else:
        (bags / "s3.h5").write_bytes((bags / "s5.h5").read_bytes())
        message = "is the same file as"
    done = sacmil("crossval", *given(table, "run"), "--folds", 2, *SMALL)
    assert done.code == 1
    assert message in done.err
    assert f"{'2 problems' if what == 'twice' else '1 problem'}:" in done.err


def test_problems_in_headers_and_missing_bags_are_one_list(sacmil: Callable, table: Path) -> None:
    bags = table.parent / "bags"
    (bags / "s0.h5").unlink()
    (bags / "s1.h5").write_text("no HDF5")
    (bags / "s2.h5").write_bytes((bags / "s4.h5").read_bytes()[:700])
    rewritten(table, 3, features=np.ones((12, 7), np.float32))
    done = sacmil("train", *given(table, "run"), "--all", *SMALL)
    assert done.code == 1
    assert "4 problems:" in done.err
    for name in ("s0", "s1", "s2", "s3"):
        assert f"- {name}: has no bag" in done.err or f"{name}.h5: " in done.err


def test_crossval_counts_seeds_from_the_given_one(sacmil: Callable, table: Path) -> None:
    options = ("--folds", 2, "--models", "mean_pool", "-o", "epochs=1")
    done = sacmil("crossval", *given(table, "run"), *options, "-o", "seed=7", "--seeds", 2)
    assert done.code == 0, done.err
    run = table.parent / "run"
    assert {folder.name for folder in (run / "mean_pool").iterdir()} == {"seed_7", "seed_8"}
    assert json.loads((run / "provenance.json").read_text())["seeds"] == [7, 8]
    config = run / "config.yaml"
    done = sacmil("crossval", *given(table, "again"), "--folds", 2, "--config", config)
    assert done.code == 0, done.err
    weights = "mean_pool/seed_7/fold_0/model.safetensors"
    again = table.parent / "again" / weights
    assert (run / weights).read_bytes() == again.read_bytes()


@pytest.mark.parametrize(
    ("command", "arguments", "message"),
    [
        ("crossval", ["-o", "model=clam_sb"], "models are named by --model"),
        ("crossval", ["-o", "seed=-1"], "expected a whole number from 0 up"),
        ("crossval", ["-o", "epocs=6"], "did you mean 'epochs'"),
        ("crossval", ["--models", "meanpool"], "did you mean"),
        ("train", ["--recipe", "fast"], "there is no recipe of sac_mil_near_far 'fast'"),
        ("train", ["--all", "--fold", "1"], "--fold and --all exclude each other"),
        ("train", ["--all", "--splits", "."], "--splits and --all exclude each other"),
    ],
)
def test_a_wrong_call_ends_with_2(
    sacmil: Callable, table: Path, command: str, arguments: list[str], message: str
) -> None:
    done = sacmil(command, *given(table, "run"), *arguments)
    assert done.code == 2
    assert message in done.err
    assert not (table.parent / "run").exists()


def test_a_folder_of_another_model_is_not_called_by_the_new_ones_name(
    sacmil: Callable, table: Path
) -> None:
    assert sacmil("train", *given(table, "run"), "--all", *QUICK).code == 0
    done = sacmil("train", *given(table, "run"), "--all", "--model", "abmil", "-o", "epochs=1")
    assert done.code == 1
    assert "holds another model, or one trained on other data" in done.err
