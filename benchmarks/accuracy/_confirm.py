"""The confirmatory run is made once: it may go on with the same code; done, never again."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import sacmil
from sacmil.atomic import atomic_write

_NOT_CODE = ("report.py", "features.py", "heatmaps.py", "_pages.py", "_figures.py", "_ranks.py")
"""Files of this folder that change no line of results."""


def begin_to_confirm(mark: Path) -> None:
    """Write down which code confirms; refuse to go on with other code, or after the end."""
    code = code_hash()
    if not mark.exists():
        _write(mark, {"code": code, "finished": False})
        return
    held = json.loads(mark.read_text(encoding="utf-8"))
    if held["finished"]:
        raise SystemExit(f"{mark}: this study has been confirmed; a second look proves nothing")
    if held["code"] != code:
        raise SystemExit(
            f"{mark}: the confirmatory run was begun with other code ({held['code']}, this is "
            f"{code}); expected the same to its end: check out the commit it was begun with"
        )


def finish_confirming(mark: Path) -> None:
    """Never again."""
    _write(mark, {"code": code_hash(), "finished": True})


def code_hash() -> str:
    """Of everything that can change a line of results: the package, and the studies."""
    found = hashlib.sha256()
    here, package = Path(__file__).parent, Path(sacmil.__file__).parent
    for folder in (here, package):
        for file in sorted(folder.rglob("*.py")):
            if file.name not in _NOT_CODE:
                found.update(file.relative_to(folder).as_posix().encode())
                found.update(file.read_bytes())
    return found.hexdigest()[:16]


def _write(mark: Path, facts: dict[str, object]) -> None:
    with atomic_write(mark) as partial:
        partial.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
