"""A run folder is read without torch, and what is no run is rejected."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from sacmil.errors import OptionError, RunError
from sacmil.results import read_predictions
from sacmil.results.run import Run

FILES = Path(__file__).parent.parent / "compat" / "files" / "0.1-dev-1"


def test_a_run_of_cross_validation_has_its_models_and_their_folders() -> None:
    run = Run(FILES / "run")
    assert run.models == ("abmil", "sac_mil")
    assert len(run.predictions) == len(read_predictions(FILES / "run"))
    names = [str(folder.relative_to(run.folder)) for folder in run.model_folders("abmil")]
    assert names == ["abmil/seed_0/fold_0", "abmil/seed_0/fold_1"]
    assert len(run.model_folders()) == 4
    assert run.failures == {}
    with pytest.raises(RunError, match="has no model 'abmill'; did you mean 'abmil'"):
        run.model_folders("abmill")


def test_a_run_of_training_is_its_own_model_folder() -> None:
    run = Run(FILES / "trained")
    assert run.models == ("sac_mil_twice",)
    assert run.model_folders() == run.model_folders("sac_mil_twice") == [FILES / "trained"]


def test_an_unfinished_run_has_only_the_folders_of_finished_jobs() -> None:
    run = Run(FILES / "interrupted")
    assert all((folder / "card.json").is_file() for folder in run.model_folders())
    assert run.has_predictions == (FILES / "interrupted/predictions.csv").is_file()


@pytest.mark.parametrize("name", ["bags", "models/abmil", "nowhere", "table.csv"])
def test_a_path_that_is_no_run_is_rejected(name: str) -> None:
    with pytest.raises(RunError, match="expected"):
        Run(FILES / name)


def test_a_frame_has_the_columns_of_the_predictions() -> None:
    frame = Run(FILES / "run").to_frame()
    header = (FILES / "run/predictions.csv").read_text().splitlines()[0]
    assert ",".join(frame.columns) == header
    assert set(frame["label"]) == {"high", "low"}


def test_a_run_needs_neither_torch_nor_pandas() -> None:
    code = (
        "import sys\nfrom sacmil.results.run import Run\n"
        f"Run({str(FILES / 'run')!r}).predictions\n"
        "assert not {'torch', 'pandas', 'h5py'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_run_is_made_from_a_run() -> None:
    run = Run(FILES / "run", {"abmil, seed 0, fold 0": "failed"})
    again = Run(run)
    assert (again, again.failures) == (run, run.failures)
    with pytest.raises(OptionError, match="`folder` is 5; expected the path of a run folder"):
        Run(5)
