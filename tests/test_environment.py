"""What doctor reports agrees with pyproject.toml."""

from __future__ import annotations

import math
import re
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sacmil import environment
from sacmil.errors import MissingExtraError

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]


def packages(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w.-]", requirement)[0].lower() for requirement in requirements}


def test_the_extras_are_those_of_the_project_but_for_developers() -> None:
    assert {extra.name for extra in environment.list_extras()} == set(EXTRAS) - {"all", "dev"}


def test_an_extra_lacks_exactly_its_packages_that_are_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(environment, "_find_version", lambda package: None)
    for extra in environment.list_extras():
        assert {package.lower() for package in extra.missing} == packages(EXTRAS[extra.name])


def test_every_package_sacmil_needs_is_listed_with_its_version() -> None:
    assert packages(PROJECT["dependencies"]) <= {
        name.lower() for name in environment.list_versions()
    }


@pytest.mark.parametrize("source", sorted((Path(__file__).parents[1] / "src").rglob("*.py")))
def test_every_extra_a_message_names_can_be_installed(source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    named = re.findall(r"MissingExtraError\(\s*\"(\w+)\"", text)
    named += re.findall(r"sacmil\[(\w+)\]", text)
    assert set(named) <= set(EXTRAS)


def test_a_missing_extra_is_an_import_error_with_the_command() -> None:
    error = MissingExtraError("plots", "a heatmap")
    assert isinstance(error, ImportError)
    assert str(error) == (
        "a heatmap needs the extra 'plots', which is not installed: pip install 'sacmil[plots]'"
    )


@pytest.mark.parametrize("error", [ImportError("no libcudart"), OSError("bad library")])
def test_a_torch_that_does_not_load_is_reported_not_raised(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    class Broken:
        def find_spec(self, name: str, *_: Any) -> None:
            if name == "torch":
                raise error

    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    assert environment.list_devices()[-1] == (
        f"gpu: unknown, torch is installed but does not load ({error})"
    )


@pytest.mark.parametrize(
    ("triton", "expected"),
    [
        ("3.7.1", "Triton 3.7.1 (SAC-MIL uses its fast kernels"),
        (None, "no fast kernels for SAC-MIL"),
    ],
)
def test_a_gpu_is_listed_with_its_fast_kernels(
    monkeypatch: pytest.MonkeyPatch, triton: str | None, expected: str
) -> None:
    found = SimpleNamespace(name="Some GPU", total_memory=16 * 2**30)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: found)
    versions = {"torch": "2", "triton": triton}
    monkeypatch.setattr(environment, "_find_version", versions.get)
    line = environment.list_devices()[1]
    assert line.startswith("cuda:0: Some GPU, 16 GiB, ")
    assert expected in line


def test_memory_is_free_up_to_the_smallest_limit_of_a_group(tmp_path: Path) -> None:
    root, own = tmp_path / "groups", tmp_path / "own"
    own.write_text("1:name=systemd:/other\n0::/job/step\n")
    assert environment._list_free_in_groups(root, own) == [math.inf] * 4  # no files, no limits
    for folder, limit, used, files in (
        ("job/step", "max", 10, 0),
        ("job", "1000", 900, 300),
        ("", "5000", 1000, 0),
    ):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "memory.max").write_text(f"{limit}\n")
        (root / folder / "memory.current").write_text(f"{used}\n")
        (root / folder / "memory.stat").write_text(f"anon 1\ninactive_file {files}\n")
    # cached files give way, so that 400 of the job's 1000 are free
    assert environment._list_free_in_groups(root, own) == [math.inf, math.inf, 400, 4000]
    assert environment._list_free_in_groups(root, tmp_path / "none") == [math.inf]


def test_some_memory_is_free_but_not_more_than_there_is() -> None:
    pages = environment.os.sysconf("SC_PHYS_PAGES") * environment.os.sysconf("SC_PAGE_SIZE")
    assert 0 < environment.find_free_memory() <= pages


def test_an_unknown_amount_of_free_memory_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: "MemTotal: 5 kB")
    assert environment.find_free_memory() == 0
