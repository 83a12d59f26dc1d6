"""``sacmil reproduce``."""

from __future__ import annotations

from pathlib import Path

import pytest

from sacmil.reproduce import effective_context, experiments
from sacmil.reproduce.experiments import DatasetPaths, ReproduceRequest, SyntheticSettings


@pytest.fixture
def requests(monkeypatch) -> list[tuple[Path, ReproduceRequest]]:
    """What ``reproduce positions`` was called with, without running it."""
    calls: list[tuple[Path, ReproduceRequest]] = []

    def run(name: str, out: Path, request: ReproduceRequest):
        calls.append((out, request))
        return iter(())

    monkeypatch.setattr(experiments, "run_experiment", run)
    return calls


def test_every_table_of_the_paper_has_a_name() -> None:
    tables = {"table1", "table2", "positions", "correlations", "lambda"}
    assert tables | {"ecl"} <= set(experiments.list_experiments())


def test_reproduce_prints_the_table_and_names_the_other_files(
    sacmil, tmp_path, monkeypatch
) -> None:
    def run(name: str, out: Path, request: ReproduceRequest):
        (out / "table.txt").write_text("SAC-MIL λ 90.3\n", encoding="utf-8")
        return iter([out / "table.txt", out / "table.csv"])

    monkeypatch.setattr(experiments, "run_experiment", run)
    done = sacmil("reproduce", "positions", "--out", tmp_path)
    assert done.code == 0
    assert done.out == f"SAC-MIL λ 90.3\n\n{tmp_path / 'table.csv'}\n"


def test_an_unknown_experiment_is_a_wrong_call(sacmil) -> None:
    done = sacmil("reproduce", "table9")
    assert done.code == 2
    assert "ecl" in done.err


def test_by_default_it_is_the_paper_s_protocol(sacmil, requests) -> None:
    assert sacmil("reproduce", "positions").code == 0
    assert requests == [(Path("reproduced"), ReproduceRequest())]
    assert (ReproduceRequest().folds, ReproduceRequest().epochs, ReproduceRequest().seeds) == (
        5,
        None,
        1,
    )


def test_quick_is_small_and_other_options_override_it(sacmil, requests) -> None:
    assert sacmil("reproduce", "positions", "--quick", "--folds", 3, "--task", "margin").code == 0
    ((_, request),) = requests
    small = SyntheticSettings(task="margin", slides=20, instances=(100, 200))
    assert request == ReproduceRequest(synthetic=small, epochs=2, folds=3)


def test_data_name_a_dataset_a_table_and_a_folder(sacmil, requests) -> None:
    line = "--data camelyon16 c.csv c --data tcga-lung l.csv l --device cpu --workers 2 --seeds 3"
    assert sacmil("reproduce", "positions", *line.split()).code == 0
    ((_, request),) = requests
    data = {
        "camelyon16": DatasetPaths(Path("c.csv"), Path("c")),
        "tcga-lung": DatasetPaths(Path("l.csv"), Path("l")),
    }
    assert request == ReproduceRequest(data=data, devices=("cpu",), workers=2, seeds=3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("--data camelyon16 a b --data camelyon16 c d", "twice"),
        ("--data camelyon16 a b --task margin", "--task is for synthetic cohorts"),
        ("--data tcga-gbm a b", "camelyon16"),
        ("--folds 1", "folds"),
        ("--address auto", "--engine ray"),
        ("--dataset mnist", "camelyon16"),
    ],
)
def test_a_wrong_call_is_reported_at_once(sacmil, requests, line: str, message: str) -> None:
    done = sacmil("reproduce", "positions", *line.split())
    assert done.code == 2
    assert message in done.err
    assert requests == []


def test_data_that_are_not_there_are_one_sentence(sacmil, tmp_path) -> None:
    missing = tmp_path / "no.csv"
    done = sacmil("reproduce", "positions", "--out", tmp_path, "--data", "tcga-brca", missing, "b")
    assert done.code == 1
    assert str(missing) in done.err
    assert "fault of sacmil" not in done.err


def test_a_figure_heeds_no_option_of_training_and_says_so(sacmil, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(effective_context, "check_matplotlib", None)  # it is not even begun
    done = sacmil("reproduce", "ecl", "--out", tmp_path, "--epochs", 3)
    assert done.code == 2
    assert "ecl trains nothing" in done.err


def test_without_torch_it_says_how_to_get_it(sacmil_process, tmp_path) -> None:
    before = "import sys; sys.modules['torch'] = None"
    done = sacmil_process(
        "reproduce", "positions", "--quick", "--out", tmp_path / "o", before=before
    )
    assert done.code == 1
    assert done.err.endswith("pip install 'sacmil[torch]'\n")
    assert not (tmp_path / "o").exists()
