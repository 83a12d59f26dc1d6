"""Pages written by people, with blocks written by programs.

Only what stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` is written anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from sacmil.atomic import atomic_write

_BLOCK = re.compile(r"(<!-- begin ([\w.]+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def renewed(text: str, fill: Callable[[str], str]) -> str:
    """The text with every block filled anew, given its name."""
    return _BLOCK.sub(lambda found: f"{found[1]}\n{fill(found[2])}\n\n{found[3]}", text)


def renew(page: Path, fill: Callable[[str], str]) -> int:
    """The same for a file; how many blocks it has."""
    text = page.read_text(encoding="utf-8")
    written = renewed(text, fill)
    with atomic_write(page) as partial:
        partial.write_text(written, encoding="utf-8")
    return len(_BLOCK.findall(text))
