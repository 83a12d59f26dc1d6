"""Checks the pages of results: short, with the same headings, and no figure without a source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from studies.report import DOCS, MAX_TABLES, read_table
from studies.study import FOLDER, list_studies

MAX_WORDS = {"index.md": 600, "protocol.md": 800, "lab-notes.md": 1500}
"""Words of a page with its tables."""
MAX_STUDY_WORDS = 500
HEADINGS = ("Question", "Answer", "Setup", "Result", "Caveats", "Run it again")
_FIGURE = re.compile(r"(?<![\w.])[01]\.\d{2,3}(?!\d)")


def find_problems(docs: Path = DOCS, studies: Path = FOLDER) -> list[str]:
    """Return what is wrong with the pages, a sentence each."""
    names = [path.stem for path in list_studies(studies)]
    problems = [
        f"{path.stem}.md: a study without a page"
        for path in list_studies(studies)
        if _has_results(path) and not _exists(docs, path.stem)
    ]
    for page in sorted(docs.glob("*.md")):
        text = page.read_text(encoding="utf-8")
        limit = MAX_WORDS.get(page.name, MAX_STUDY_WORDS)
        count = count_words(text)
        if count > limit:
            problems.append(f"{page.name}: {count} words; expected at most {limit}")
        if page.stem in names:
            problems += _check_study_page(page.name, text)
        if page.name != "lab-notes.md":  # whose trials have no predictions
            sources = [page.stem] if page.stem in names else names
            problems += _check_figures(page.name, text, docs, studies, sources)
    return problems


def _has_results(study: Path) -> bool:
    return "status: done" in study.read_text(encoding="utf-8")


def count_words(text: str) -> int:
    """Count words as ``wc -w`` does, tables and comments included.

    >>> count_words("# A title\\n|a|b|")
    4
    """
    return len(text.split())


def _exists(docs: Path, name: str) -> bool:
    return (docs / f"{name}.md").exists()


def _check_study_page(name: str, text: str) -> Iterator[str]:
    headings = tuple(re.findall(r"^## (.+)$", text, re.MULTILINE))
    if headings != HEADINGS:
        yield f"{name}: headings {', '.join(headings)}; expected {', '.join(HEADINGS)}"
    tables = len(re.findall(r"^\| ?:?---", text, re.MULTILINE))
    if tables > MAX_TABLES:
        yield f"{name}: {tables} tables; expected at most {MAX_TABLES}"
    pictures = text.count("![")
    if pictures > 1:
        yield f"{name}: {pictures} figures; expected at most one"


def _check_figures(
    name: str, text: str, docs: Path, studies: Path, sources: Iterable[str]
) -> Iterator[str]:
    """Every figure such as 0.977 must be in the full tables, or in the study itself."""
    known: set[str] = set()
    for source in sources:
        table, study = docs / "tables" / f"{source}.csv", studies / f"{source}.yaml"
        known |= set(_FIGURE.findall(study.read_text(encoding="utf-8")))
        if table.exists():
            known |= _list_figures(table)
    for figure in dict.fromkeys(_FIGURE.findall(text)):
        if figure not in known:
            yield f"{name}: {figure} is not in docs/results/tables"


def _list_figures(table: Path) -> set[str]:
    found = set()
    for row in read_table(table):
        numbers = re.findall(r"\d\.\d+", " ".join(value for value in row.values() if value))
        for number in numbers:
            found |= {f"{float(number):.2f}", f"{float(number):.3f}"}
    return found
