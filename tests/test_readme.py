"""What README and CONTRIBUTING show works as shown."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import pytest

ROOT = Path(__file__).parent.parent


def blocks(file: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (ROOT / file).read_text(), flags=re.DOTALL)


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_python_example_runs(tmp_path: Path) -> None:
    (code,) = blocks("README.md", "python")
    done = run(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "my-model" / "card.json").is_file()
    assert len([line for line in code.splitlines() if line]) == 10


@pytest.mark.slow
def test_the_quickstart_takes_features_of_clam_to_a_report(tmp_path: Path) -> None:
    (commands,) = [text for text in blocks("README.md", "sh") if "sacmil crossval" in text]
    assert len(commands.splitlines()) == 6
    write_clam_features(tmp_path)
    for line in commands.splitlines():
        trains = any(f" {name} " in line for name in ("crossval", "train"))
        command = [sys.executable, "-m", *line.split(), *(["-o", "epochs=1"] if trains else [])]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (line, done.stderr)
    for name in ("report/report.html", "model/card.json", "predictions/predictions.csv"):
        assert (tmp_path / name).is_file()


def write_clam_features(folder: Path) -> None:
    """The folders that CLAM's scripts for patches and features write, and a table."""
    from sacmil.synthetic.bags import make_synthetic_cohort

    rows = ["case_id,slide_id,label"]
    for bag, label in make_synthetic_cohort("subtype", 20, seed=0, instances=(30, 50)).bags:
        grid = (bag.patch_coords * 256).astype("int64")
        for kind in ("h5_files", "patches"):
            path = folder / "features" / kind / f"{bag.slide_id}.h5"
            path.parent.mkdir(parents=True, exist_ok=True)
            with h5py.File(path, "w") as file:
                coords = file.create_dataset("coords", data=grid)
                if kind == "h5_files":
                    file["features"] = bag.features
                else:
                    coords.attrs.update(patch_size=256, patch_level=0, downsample=(1.0, 1.0))
        rows.append(f"{bag.slide_id},{bag.slide_id},{label}")
    (folder / "labels.csv").write_text("\n".join(rows) + "\n")


@pytest.mark.slow
def test_the_scripts_of_the_python_page_run_one_after_the_other(tmp_path: Path) -> None:
    from sacmil.synthetic.bags import make_synthetic_cohort, write_synthetic_cohort

    synthetic = make_synthetic_cohort("cluster", 12, seed=0, instances=(20, 30))
    write_synthetic_cohort(synthetic, tmp_path)
    first, second = blocks("docs/how-to/python.md", "python")
    done = run(first + second, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "abmil sac_mil_local    auc" in done.stdout, "the comparison is a table"
    assert (tmp_path / "report" / "report.html").is_file()
    assert len([line for line in first.splitlines() if line]) <= 10


def test_the_training_loop_of_the_documentation_runs_and_learns() -> None:
    (code,) = [text for text in blocks("docs/how-to/train.md", "python") if "optimizers" in text]
    found: dict[str, Any] = {}
    exec(code, found)
    assert found["history"][-1] < found["history"][0]


@pytest.mark.slow
def test_the_model_of_contributing_keeps_the_contract(tmp_path: Path) -> None:
    """The file is put beside the others and the contract's own tests are run over it."""
    (code,) = blocks("CONTRIBUTING.md", "python")
    (tmp_path / "my_method.py").write_text(code)
    (tmp_path / "conftest.py").write_text(
        "import sys, sacmil.models\n"
        f"sacmil.models.__path__.append({str(tmp_path)!r})\n"
        f"sys.path.insert(0, {str(tmp_path)!r})\n"
    )
    contract = (ROOT / "tests" / "models" / "test_contract.py").read_text()
    (tmp_path / "test_contract.py").write_text(contract)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "my_method", "."],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert int(re.search(r"(\d+) passed", done.stdout).group(1)) > 20


@pytest.mark.parametrize("file", ["README.md", "CONTRIBUTING.md"])
def test_every_linked_file_exists(file: str) -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", (ROOT / file).read_text())
    assert links or file == "CONTRIBUTING.md"
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_make_target_that_is_shown_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    shown = set()
    for file in ("README.md", "CONTRIBUTING.md"):
        shown |= set(re.findall(r"make ([a-z-]+)", "\n".join(blocks(file, "sh"))))
    assert {"demo", "test", "check"} <= shown
    assert [target for target in shown if not re.search(rf"^{target}:", makefile, re.M)] == []


def test_every_command_that_is_shown_exists() -> None:
    from sacmil.cli.main import cli

    known = cli.list_commands(None)
    shown = re.findall(r"^sacmil ([a-z]+)", "\n".join(blocks("README.md", "sh")), flags=re.M)
    assert shown
    assert set(shown) <= set(known)


def test_the_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 130
    assert max(map(len, lines)) <= 120
