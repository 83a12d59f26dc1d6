"""The check of prose counts what a reader reads, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "prose"


@pytest.fixture(scope="module")
def prose() -> ModuleType:
    loader = SourceFileLoader("prose", str(SCRIPT))
    module = module_from_spec(spec_from_loader("prose", loader))
    loader.exec_module(module)
    return module


def words_of(prose: ModuleType, text: str) -> list[int]:
    return [sentence.words for sentence in prose.iter_sentences(text)]


def test_sentences_end_at_full_stops_and_with_their_paragraph(prose: ModuleType) -> None:
    assert words_of(prose, "One two three. Four five!\nSix seven\neight\n\nNine") == [3, 2, 3, 1]
    assert words_of(prose, "- One two\n- three\n1. four five six") == [2, 1, 3]


def test_abbreviations_and_file_names_end_no_sentence(prose: ModuleType) -> None:
    assert words_of(prose, "As in Eq. 4 of Bai et al. 2024, see a.csv.") == [11]


@pytest.mark.parametrize(
    "text",
    [
        "```sh\nsacmil train --out run\n```",
        "```\na/\n├── tree of words\n```",
        "````{code-cell}\n```\nnested\n```\n````",
        "| a | table |\n|---|---|\n| of | words |",
        "# A heading of words",
        "![a picture of words](x.png)",
        "<!-- a comment\n\nof words -->",
        "$$\nx = y\n$$",
        "---\ntitle: front matter\n---",
    ],
)
def test_code_tables_headings_and_pictures_are_no_prose(prose: ModuleType, text: str) -> None:
    assert words_of(prose, text) == []
    assert words_of(prose, f"{text}\n\nOne two.") == [2]


def test_a_note_is_prose(prose: ModuleType) -> None:
    assert words_of(prose, "```{note}\nOne two three.\n```\nFour.") == [3, 1]
    assert words_of(prose, ":::{note}\nOne two three.\n:::\n```\nno prose\n```\nFour.") == [3, 1]
    assert words_of(prose, "::::{grid} 2\n:::{card} A title\n:link: x\nOne.\n:::\n::::") == [1]


def test_a_sentence_may_begin_with_code(prose: ModuleType) -> None:
    assert words_of(prose, "One two. `sacmil info` prints it.") == [2, 3]


def test_a_link_counts_as_its_text_and_code_as_a_word(prose: ModuleType) -> None:
    assert words_of(prose, "See [the results](a/very/long.md) of `sacmil compare a b`.") == [5]


def check(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    page = folder / "page.md"
    page.write_text(text)
    command = [sys.executable, str(SCRIPT), str(page)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_sentence_of_36_words_fails_and_names_its_line(tmp_path: Path) -> None:
    assert check(tmp_path, "word " * 35 + ".").returncode == 0
    done = check(tmp_path, "Short.\n\n" + "word " * 36 + ".")
    assert done.returncode == 1
    assert "page.md:3: a sentence of 36 words, expected at most 35: word word" in done.stdout


def test_a_page_of_1501_words_fails(tmp_path: Path) -> None:
    assert check(tmp_path, "Three words here. " * 500).returncode == 0
    done = check(tmp_path, "Three words here. " * 500 + "More.")
    assert done.returncode == 1
    assert "1501 words without tables and code; expected at most 1500" in done.stdout
