"""Text cells of CSV files, escaped so that no spreadsheet runs a slide's name as a formula."""

from __future__ import annotations

import re
from collections.abc import Iterable

_TRIGGERS = "=+\\-@\t\r\n＝＋－＠"
"""First characters that make Excel or LibreOffice run a cell; the last four in Japanese."""
_RISKY_PATTERN = re.compile(f"'*[{_TRIGGERS}]")
_ESCAPED_PATTERN = re.compile(f"'+[{_TRIGGERS}]")
_NUMBER_PATTERN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", re.IGNORECASE | re.ASCII)


def escape_cell(text: str) -> str:
    """Return the text, with an apostrophe before it if a spreadsheet would run it as a formula.

    Numbers are unchanged. A formula that already has apostrophes before it gets one more, so that
    restore_cell returns the original text.

    >>> [escape_cell(text) for text in ("slide_1", "=1+1", "'=1+1", "-0.5")]
    ['slide_1', "'=1+1", "''=1+1", '-0.5']
    """
    is_risky = _RISKY_PATTERN.match(text) and not _NUMBER_PATTERN.fullmatch(text)
    return f"'{text}" if is_risky else text


def restore_cell(text: str) -> str:
    """Undo escape_cell; text that was never escaped is returned unchanged.

    >>> [restore_cell(text) for text in ("slide_1", "'=1+1", "=1+1", "'quoted'")]
    ['slide_1', '=1+1', '=1+1', "'quoted'"]
    """
    return text[1:] if text.startswith("'") and _ESCAPED_PATTERN.match(text) else text


def escape_cells(cells: Iterable[object]) -> list[object]:
    """Escape the texts of a row for csv.writer; everything else is unchanged."""
    return [escape_cell(cell) if isinstance(cell, str) else cell for cell in cells]


def restore_cells(cells: Iterable[str]) -> list[str]:
    """Undo escape_cells for a row of csv.reader."""
    return [restore_cell(cell) for cell in cells]
