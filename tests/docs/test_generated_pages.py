"""What the site makes from the package: complete, and the truth."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

import sacmil
from sacmil.training.config import TrainingConfig

pytest.importorskip("sphinx", reason="pip install 'sacmil[docs]'")

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.syspath_prepend(DOCS / "_extensions")
        import generated_pages

        yield generated_pages
        sys.modules.pop("generated_pages")


@pytest.fixture
def written(pages: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pages, "DOCS", tmp_path)
    (tmp_path.parent / "src").exists() or (tmp_path.parent / "src").symlink_to(DOCS.parent / "src")
    pages.write_command_pages(None)
    pages.write_python_page(None)
    return tmp_path / "reference"


def test_every_command_has_a_page_with_every_option(written: Path) -> None:
    from sacmil.cli.main import cli

    names = cli.list_commands(None)
    found = {page.stem for page in (written / "commands").glob("*.md")}
    assert found == {*names, "index"}
    for name in names:
        text = (written / "commands" / f"{name}.md").read_text()
        options = [param for param in cli.get_command(None, name).params if param.opts[0][0] == "-"]
        assert [one.opts[0] for one in options if one.opts[0] not in text] == []


def test_every_public_name_is_listed_with_a_sentence(written: Path) -> None:
    text = (written / "python.md").read_text()
    for name in set(sacmil.__all__) - {"__version__"}:
        (row,) = [line for line in text.splitlines() if f"`sacmil.{name} <" in line]
        assert row.split(" | ")[1].strip(" |").endswith("."), row


def test_settings_are_those_of_the_class(pages: ModuleType) -> None:
    found = {name: (default, text) for name, default, text in pages.iter_fields(TrainingConfig)}
    assert found.keys() == TrainingConfig.model_fields.keys()
    assert found["seed"][0] == "0"
    assert found["recipe"] == ("'standard'", "A name among the model's recipes.")


def test_a_model_has_a_card(pages: ModuleType) -> None:
    cards = "\n".join(page.read_text() for page in (DOCS / "reference" / "models").glob("*.md"))
    assert [name for name in sacmil.list_models() if f"{{model-facts}} {name}\n" not in cards] == []


def test_results_of_a_model_are_those_of_the_tables(pages: ModuleType) -> None:
    rows = list(pages.iter_results("clam_mb"))
    assert rows
    for study, task, auc, best in rows:
        assert study.startswith("[")
        assert task
        assert float(auc.split()[0]) <= float(best.split()[-1])
