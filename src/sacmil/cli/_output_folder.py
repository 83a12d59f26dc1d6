"""Folders that a command must not write into."""

from __future__ import annotations

from pathlib import Path

import click


def check_not_run_or_model(out: Path) -> None:
    """Reject a folder that holds a run or a model, whose files must not be overwritten."""
    from sacmil.card import CARD_FILE

    if any((out / name).exists() for name in ("config.yaml", CARD_FILE)):
        raise click.UsageError(f"--out {out} holds a run or a model; choose another folder")
