"""The table of localisation in evaluations and comparisons."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from sacmil.evaluation.fold_results import select_test_rows
from sacmil.evaluation.localization import summarize_localization
from sacmil.evaluation.table_format import ResultTable, TableStyle
from sacmil.evaluation.tables import localization_table
from sacmil.results import Predictions, SlideLocalization

LOCALIZATION_HEADING = "Localisation"
"""Heading of the table."""


def make_localization_tables(
    rows: Sequence[SlideLocalization],
    predictions: Predictions,
    style: TableStyle,
    *,
    level: float,
    draws: int,
    seed: int,
) -> dict[str, ResultTable]:
    """Return the table by its heading; none unless slides have both kinds of instances."""
    found = summarize_localization(rows, level=level, draws=draws, seed=seed)
    if not found:
        return {}
    # Instance labels may exist in one fold only, so folds are counted in the predictions.
    test = select_test_rows(predictions)
    tested = set(zip(test.model.tolist(), test.fold.tolist(), strict=True))
    folds = max(Counter(model for model, _ in tested).values(), default=0)
    table = localization_table(found, folds=folds, level=level, draws=draws, style=style)
    return {LOCALIZATION_HEADING: table}
