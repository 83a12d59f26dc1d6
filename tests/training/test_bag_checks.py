"""Bags are checked before training, each in a process that may crash, with predict's limits."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from deadly_reading import devour, die
from small_cohort import write_material
from unwritten_bag import write_unwritten_bag

from sacmil import Bag, read_bag, write_bag
from sacmil.errors import BagWarning, CohortError, SacMILError
from sacmil.formats import native
from sacmil.models import MILModel
from sacmil.parallel import run_each
from sacmil.plans import planners
from sacmil.regions import arrange
from sacmil.training import bag_checks
from sacmil.training.bag_checks import PLAN_FOLDER, check_and_hash_bags, read_width
from sacmil.training.train import cross_validate


def write_bags(folder: Path, count: int) -> dict[str, Path]:
    random = np.random.default_rng(0)
    bags = {f"s{number}": folder / f"s{number}.h5" for number in range(count)}
    for name, path in bags.items():
        features = random.standard_normal((3, 4)).astype(np.float32)
        write_bag(path, Bag(name, features, [[0, 0], [0, 256], [256, 0]], 256))
    return bags


def check(out: Path, bags: dict[str, Path]) -> dict[str, str]:
    return check_and_hash_bags(out, bags, lambda *_: None)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows limits no memory")
def test_a_file_that_kills_its_reader_or_needs_too_much_memory_is_a_problem_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bags = write_bags(tmp_path, 1)
    monkeypatch.setattr(bag_checks, "run_each", run_each)
    for read, problem in ((die, "died (SIGABRT)"), (devour, "more memory than a worker process")):
        monkeypatch.setattr(bag_checks, "inspect_bag", read)
        with pytest.raises(CohortError) as raised:
            check(tmp_path, bags)
        (found,) = raised.value.problems
        assert found.startswith(f"{bags['s0']}: ")
        assert problem in found


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_the_width_of_a_bag_that_kills_its_reader_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (path,) = write_bags(tmp_path, 1).values()
    assert read_width(path) == 4
    monkeypatch.setattr(bag_checks, "run_each", run_each)
    monkeypatch.setattr(bag_checks, "inspect_width", die)
    assert read_width(path) is None


def test_a_worker_process_finds_what_the_files_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bags = write_bags(tmp_path, 2)
    expected = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in bags.items()}
    monkeypatch.setattr(bag_checks, "run_each", run_each)
    assert check(tmp_path, bags) == expected


def test_a_bag_that_was_never_written_is_a_problem_and_not_gigabytes(tmp_path: Path) -> None:
    bags = write_bags(tmp_path, 1) | {"s1": write_unwritten_bag(tmp_path / "s1.h5")}
    with pytest.raises(CohortError, match=r"'features' declares 4\.0 GiB but stores 0 bytes"):
        check(tmp_path, bags)


def test_hashes_are_those_of_the_files_and_files_that_are_known_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bags = write_bags(tmp_path, 2)
    first = check(tmp_path, bags)
    monkeypatch.setattr(bag_checks, "run_each", None)
    assert check(tmp_path, bags) == first
    assert list(first) == ["s0", "s1"]


def test_what_is_odd_about_a_bag_is_a_warning_of_the_command(tmp_path: Path) -> None:
    bags = write_bags(tmp_path, 1)
    with pytest.warns(BagWarning):
        bag = Bag("s0", np.ones((2, 4), np.float32), [[0, 0], [0, 0]], 256)
    write_bag(bags["s0"], bag)
    with pytest.warns(BagWarning, match="repeat another's coordinates"):
        check(tmp_path, bags)


def test_plans_are_made_while_bags_are_checked_and_removed_after_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_material(tmp_path / "bags", patients=8).data
    made: list[object] = []

    def make_again(*_: object) -> None:
        raise AssertionError("made again")

    monkeypatch.setattr(planners, "arrange", lambda *given: made.append(given) or arrange(*given))
    monkeypatch.setattr(MILModel, "plan", make_again)
    settings = {"folds": 2, "options": {"epochs": 1}, "devices": "cpu"}
    run = cross_validate(data, ["sac_mil_local", "sac_mil"], out=tmp_path / "run", **settings)
    assert not run.failures
    assert len(made) == 2 * len(data.bags)
    assert not (tmp_path / "run" / PLAN_FOLDER).exists()


def test_bags_that_a_worker_verified_are_not_verified_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bags = write_bags(tmp_path, 2)
    for path in bags.values():
        os.utime(path, ns=(10**18, 10**18))
    monkeypatch.setattr(bag_checks, "run_each", run_each)
    check(tmp_path, bags)
    monkeypatch.setattr(native, "compute_checksum", lambda *_: "another")
    assert len(read_bag(bags["s0"])) == 3
    os.utime(bags["s1"], ns=(2 * 10**18, 2 * 10**18))
    with pytest.raises(SacMILError, match="since the file was written"):
        read_bag(bags["s1"])
