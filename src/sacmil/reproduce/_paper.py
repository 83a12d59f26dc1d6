"""A table of the paper as printed, with its misprints."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

DATASETS = {"camelyon16": "CAMELYON-16", "tcga-lung": "TCGA-LUNG", "tcga-brca": "TCGA-BRCA"}
"""Titles by name, in the paper's order; it spells the last TCGA-BRAC."""
METRICS = {"accuracy": "ACC", "auc": "AUC", "f1": "F1"}
"""Titles by name, in the paper's order."""
MARKS = "†‡§¶"


class PaperResult(NamedTuple):
    """One value of the paper, in percent."""

    mean: float
    std: float
    """Standard deviation over the five folds."""


PaperResults = Mapping[str, Mapping[str, Mapping[str, PaperResult]]]
"""Row, then dataset, then metric."""


class Misprint(NamedTuple):
    """A printed value that cannot be right."""

    note: str
    rows: tuple[str, ...]
    datasets: tuple[str, ...] = ()
    """Empty: the whole row."""
    metrics: tuple[str, ...] = tuple(METRICS)


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper."""

    title: str
    encoder: str
    """Encoder of the features; see ``sacmil encoders``."""
    results: PaperResults
    misprints: tuple[Misprint, ...]

    @property
    def datasets(self) -> tuple[str, ...]:
        """Datasets of the table."""
        return tuple(next(iter(self.results.values())))

    def list_notes(self) -> dict[str, str]:
        """Return the note of each mark."""
        return {mark: misprint.note for mark, misprint in self._mark_misprints()}

    def find_row_marks(self, row: str) -> str:
        """Return the marks of a whole row."""
        return "".join(
            mark
            for mark, misprint in self._mark_misprints()
            if row in misprint.rows and not misprint.datasets
        )

    def find_cell_marks(self, row: str, dataset: str, metric: str) -> str:
        """Return the marks of one cell."""
        return "".join(
            mark
            for mark, misprint in self._mark_misprints()
            if row in misprint.rows and dataset in misprint.datasets and metric in misprint.metrics
        )

    def _mark_misprints(self) -> list[tuple[str, Misprint]]:
        assert len(self.misprints) <= len(MARKS)
        return list(zip(MARKS, self.misprints, strict=False))


def parse_results(text: str) -> PaperResults:
    """Parse lines of ``row | mean_std mean_std mean_std | …``.

    The three are accuracy, AUC and F1; datasets are in the order of DATASETS.

    >>> parse_results("SAC-MIL | 90.3_0.6 96.1_1.2 89.3_1.6")["SAC-MIL"]["camelyon16"]["auc"]
    PaperResult(mean=96.1, std=1.2)
    """
    lines = [line.split("|") for line in text.strip().splitlines()]
    return {
        row.strip(): dict(zip(DATASETS, map(_parse_cell, cells), strict=False))
        for row, *cells in lines
    }


def _parse_cell(cell: str) -> dict[str, PaperResult]:
    values = [PaperResult(*map(float, value.split("_"))) for value in cell.split()]
    return dict(zip(METRICS, values, strict=True))
