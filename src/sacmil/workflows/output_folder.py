"""Checks of the folder that a workflow writes to."""

from __future__ import annotations

from pathlib import Path

from sacmil.arguments import to_output_folder
from sacmil.card import CARD_FILE, is_exported_run
from sacmil.errors import OptionError


def check_output_folder(out: str | Path) -> Path:
    """Return the path of a folder to write to; reject a file, and a run or model folder."""
    folder = to_output_folder(out)
    if any((folder / name).exists() for name in ("config.yaml", CARD_FILE)):
        raise OptionError(f"{folder}: holds a run or a model; choose another `out`")
    if is_exported_run(folder):
        raise OptionError(f"{folder}: holds an exported run; choose another `out`")
    return folder
