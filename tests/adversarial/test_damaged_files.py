"""Damaged files of every kind: each is read or rejected with a sentence, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from exhaustive import choose_count
from kinds import KINDS, make_material
from trial import (
    BAD,
    Case,
    copy_material,
    make_cases,
    print_table,
    run_case,
    run_cases,
    run_command,
)

from sacmil import read_bag, write_bag

COUNT = choose_count(2000, sample=80)
WORKERS = 2
SMALL = (
    *(("TRIDENT features", 0), ("STAMP features", 1), ("CLAM tensors", 2), ("torchmil arrays", 1)),
    *(("slideflow index", 1), ("label table, CSV", 1), ("label table, TSV", 0), ("checkpoints", 3)),
    *(("label table, Excel", 1), ("configuration", 0), ("label table, TSV", 3)),
    *(("model: card", 3), ("model: weights", 2), ("viewer: scores", 6)),
    *(("viewer: outlines", 0), ("native bag", 0)),
)
"""Cases of the default suite that need no further process or a short one."""


@pytest.fixture(scope="module")
def material(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_material(tmp_path_factory.mktemp("trial") / "m", run_command, full=False)


@pytest.mark.filterwarnings("default")
def test_a_few_damaged_files_of_most_kinds_are_read_or_rejected(material, tmp_path) -> None:
    verdicts = [run_case(Case(*case), material, tmp_path / "case") for case in SMALL]
    bad = [verdict.describe() for verdict in verdicts if verdict.outcome in BAD]
    assert not bad, "\n".join(bad)
    assert {"rejected", "accepted"} == {verdict.outcome for verdict in verdicts}


@pytest.mark.filterwarnings("default")
def test_the_judge_notices_faults_and_changed_predictions(material, tmp_path, monkeypatch) -> None:
    """A trial that finds nothing must be able to find something."""
    case = Case("native bag", 0)
    command = KINDS[case.kind].commands[1]
    kind = KINDS[case.kind]._replace(commands=(command,), changes=(_move_tiles,))
    monkeypatch.setitem(KINDS, case.kind, kind)
    monkeypatch.setattr("mutations.BYTES", (_move_tiles,))
    assert run_case(case, material, tmp_path / "case").outcome == "silent change"
    monkeypatch.setattr("sacmil.workflows.predict.predict_slides", _stumble)
    assert run_case(case, material, tmp_path / "case").outcome == "fault"


def _move_tiles(random: Random, path: Path) -> str:
    """Write another bag, checksum and all, as no accident does."""
    bag = read_bag(path)
    write_bag(path, replace(bag, features=bag.features[::-1] * 3))
    return "another bag"


def _stumble(*_: Any, **__: Any) -> None:
    raise KeyError("stumble")


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_every_command_accepts_undamaged_files(tmp_path) -> None:
    material = make_material(tmp_path / "material", run_command)
    for name, kind in KINDS.items():
        for command in dict.fromkeys(kind.commands):
            copy_material(material, tmp_path / "case", {*kind.needs, *kind.files})
            ended = run_command(command.format(d=tmp_path / "case"))
            assert ended.code == 0, f"{name}: {command}\n{ended.output}"


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
def test_many_damaged_files_are_read_or_rejected(tmp_path) -> None:
    material = make_material(tmp_path / "material", run_command)
    verdicts = run_cases(make_cases(COUNT), material, tmp_path / "cases", WORKERS)
    table = print_table(verdicts)
    print(table)  # noqa: T201
    bad = [verdict.describe() for verdict in verdicts if verdict.outcome in BAD]
    assert not bad, "\n".join([table, *bad])
