"""How well scores localise the positive instances of each slide: localisation_by_slide.csv."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from sacmil.atomic import atomic_write
from sacmil.csv_text import escape_cells, restore_cells
from sacmil.errors import RunError

LOCALIZATION_FILE = "localisation_by_slide.csv"


class SlideLocalization(NamedTuple):
    """One model on one test slide whose instances have labels."""

    slide_id: str
    patient_id: str
    fold: int
    seed: int
    model: str
    instances: int
    """Number of instances with a known label."""
    positives: int
    """Number of instances with a label above zero."""
    auc: float
    """NaN unless the slide has positive and negative instances."""
    average_precision: float
    """NaN unless the slide has positive and negative instances."""

    @property
    def has_both_labels(self) -> bool:
        """Whether the slide has positive and negative instances."""
        return 0 < self.positives < self.instances


def write_localization(path: str | Path, rows: Iterable[SlideLocalization]) -> None:
    """Write a row per model and slide; numbers are read back exactly, NaN is an empty cell."""
    with atomic_write(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(SlideLocalization._fields)
        for row in rows:
            writer.writerow([*escape_cells(row[:-2]), *map(_to_text, row[-2:])])


def read_localization(path: str | Path) -> list[SlideLocalization]:
    """Read localisation_by_slide.csv, given the file or its run folder; empty if it is missing."""
    file = Path(path) / LOCALIZATION_FILE if Path(path).is_dir() else Path(path)
    try:
        with file.open(newline="", encoding="utf-8-sig") as stream:
            header, *rows = [restore_cells(row) for row in csv.reader(stream)] or [[]]
    except FileNotFoundError:
        return []
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise RunError(f"{file}: cannot be read as a table ({error})") from error
    if header != list(SlideLocalization._fields):
        raise RunError(
            f"{file}: has the columns {', '.join(header) or 'none'}; expected "
            f"{', '.join(SlideLocalization._fields)}"
        )
    return [_parse_row(file, number, row) for number, row in enumerate(rows, start=2) if row]


def _parse_row(file: Path, number: int, row: list[str]) -> SlideLocalization:
    try:
        slide, patient, fold, seed, model, instances, positives, *values = row
        auc, precision = (float(text or "nan") for text in values)
        keys = (slide, patient, int(fold), int(seed), model)
        found = SlideLocalization(*keys, int(instances), int(positives), auc, precision)
    except ValueError as error:
        raise RunError(
            f"{file}, line {number}: cannot be parsed ({error}); expected whole numbers for "
            "fold, seed, instances and positives, and numbers for the rest"
        ) from error
    if found.has_both_labels and not (0 <= auc <= 1 and 0 <= precision <= 1):
        raise RunError(f"{file}, line {number}: has {auc} and {precision}; expected 0 to 1")
    return found


def _to_text(value: float) -> str:
    return "" if math.isnan(value) else repr(value)
