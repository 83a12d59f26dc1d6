"""The table a training command ends with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sacmil.results import Predictions

_METRICS = ("accuracy", "auc", "f1")


def print_summary(predictions: Predictions, data: str) -> None:
    """Accuracy, AUC and F1 of every model over the test folds, as `sacmil evaluate` has them."""
    from sacmil.evaluation.summary import summarize
    from sacmil.evaluation.table_format import render_table
    from sacmil.evaluation.tables import TableStyle, has_intervals, make_caption, summary_table

    figures = summarize(predictions, metrics=_METRICS)
    shows = has_intervals(figures, TableStyle())
    text = make_caption(predictions, data=data, with_intervals=shows)
    click.echo(render_table(summary_table(figures, caption=text)), nl=False)
