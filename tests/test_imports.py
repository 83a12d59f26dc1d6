"""What importing costs, and what runs where torch is not installed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click import Context

from sacmil.cli.main import cli

FOR_TABLES_PAGES_OUTLINES = ("pandas", "jinja2", "shapely")
TRAINING_AND_PREDICTION = "sacmil." + ", sacmil.".join(
    ("bag", "card", "results", "formats", "plans", "models", "training.train", "deploy.runtime")
)
HEAVY = (
    *("torch", "h5py", "scipy", "numpy", "safetensors", "tqdm", "pydantic"),
    *FOR_TABLES_PAGES_OUTLINES,
)

WITHOUT_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, *_):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, NoTorch())
"""


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"SACMIL_TRACEBACK": ""},
    )


def loaded_after(code: str) -> set[str]:
    report = (
        "import json, sys; print('\\n' + json.dumps([n for n in sys.argv[1:] if n in sys.modules]))"
    )
    done = python(f"{code}\n{report}", *HEAVY)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


def command(line: str) -> str:
    return f"""
import sys
from sacmil.cli.main import main
kept, sys.argv = sys.argv, {["sacmil", *line.split()]!r}
try:
    main()
except SystemExit as ended:
    assert not ended.code, ended.code
sys.argv = kept
"""


def test_importing_and_asking_for_help_load_nothing_heavy() -> None:
    helps = [f"{name} --help" for name in cli.list_commands(Context(cli))]
    code = [
        "import sacmil",
        "import sacmil; dir(sacmil)",
        "import sacmil.errors, sacmil.units, sacmil.atomic, sacmil.environment",
        *map(command, ["--help", "--version", *helps]),
    ]
    check = "assert not [name for name in sys.argv[1:] if name in sys.modules], {!r}"
    script = "\n".join(f"{each}\n{check.format(each)}" for each in code)
    done = python(f"import sys\n{script}", *HEAVY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") > len(helps) > 15


@pytest.mark.parametrize(
    ("code", "not_loaded"),
    [
        ("from sacmil import Bag", {"torch", "h5py", "scipy"}),
        ("from sacmil import read_bag", {"torch", "scipy"}),
        ("import sacmil.results", {"torch", "h5py", "scipy"}),
        ("import sacmil.viewer.server", {"torch", "h5py"}),
        (
            "import sacmil.metrics.classification, sacmil.synthetic.slides, sacmil.regions",
            {"torch"},
        ),
        (f"import {TRAINING_AND_PREDICTION}", set(FOR_TABLES_PAGES_OUTLINES)),
        ("import sacmil.deploy.runtime", {"torch", *FOR_TABLES_PAGES_OUTLINES}),
    ],
)
def test_a_module_loads_nothing_that_it_does_not_need(code: str, not_loaded: set[str]) -> None:
    assert not loaded_after(code) & not_loaded


def test_without_torch_bags_cohorts_regions_and_metrics_run(tmp_path: Path) -> None:
    code = """
import numpy as np, sacmil
from sacmil.synthetic.bags import make_synthetic_cohort
from sacmil.metrics.classification import auc
from sacmil.regions import arrange
bag = make_synthetic_cohort("cluster", 1, 0, instances=(400, 800)).bags[0].bag
sacmil.write_bag(sys.argv[1], bag)
assert np.array_equal(sacmil.read_bag(sys.argv[1]).features, bag.features)
assert sorted(arrange(bag.patch_coords, 16)) == list(range(len(bag)))
assert auc([0, 1], [0.1, 0.9]) == 1
assert "torch" not in sys.modules
"""
    done = python(WITHOUT_TORCH + code, tmp_path / "a.h5")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("line", ["--help", "doctor", "info --json"])
def test_without_torch_these_commands_run(tmp_path: Path, line: str) -> None:
    from sacmil import Bag, write_bag

    write_bag(tmp_path / "a.h5", Bag("s", [[1.0]], [[0, 0]], 256))
    arguments = [*line.split(), *([tmp_path / "a.h5"] if line.startswith("info") else [])]
    done = python(f"{WITHOUT_TORCH}\nfrom sacmil.cli.main import main\nmain()", *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


@pytest.mark.parametrize("line", ["models", "models sac_mil", "demo"])
def test_without_torch_a_command_that_needs_it_says_how_to_get_it(
    tmp_path: Path, line: str
) -> None:
    out = ["--out", tmp_path / "report"] if line == "demo" else []
    done = python(f"{WITHOUT_TORCH}\nfrom sacmil.cli.main import main\nmain()", *line.split(), *out)
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.startswith("Error: sacmil.")
    assert done.stderr.endswith("pip install 'sacmil[torch]'\n")
    assert done.stderr.count("\n") == 1


def test_without_torch_a_name_that_needs_it_raises_missing_extra_each_time() -> None:
    code = """
import sacmil
from sacmil.errors import MissingExtraError
for name in ("create_model", "predict", "create_model", "MILModel"):
    try:
        getattr(sacmil, name)
    except MissingExtraError as error:
        assert "pip install 'sacmil[torch]'" in str(error) and f"sacmil.{name}" in str(error)
    else:
        raise AssertionError(name)
"""
    done = python(WITHOUT_TORCH + code)
    assert done.returncode == 0, done.stderr


def test_a_broken_import_of_something_else_is_not_called_a_missing_torch() -> None:
    code = """
import sys
sys.modules["safetensors"] = None
import sacmil
from sacmil.errors import MissingExtraError
try:
    sacmil.create_model
except MissingExtraError:
    raise SystemExit("misreported")
except ImportError as error:
    assert "safetensors" in str(error)
"""
    done = python(code)
    assert done.returncode == 0, done.stderr
