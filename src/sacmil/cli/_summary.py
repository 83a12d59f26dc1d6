"""The table printed at the end of training."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sacmil.results import Predictions

_METRICS = ("accuracy", "auc", "f1")


def print_summary(predictions: Predictions, data: str) -> None:
    """Print accuracy, AUC and F1 of every model over the test folds, as `sacmil evaluate` does."""
    from sacmil.evaluation.summary import summarize
    from sacmil.evaluation.table_format import render_table
    from sacmil.evaluation.tables import TableStyle, has_intervals, make_caption, summary_table

    estimates = summarize(predictions, metrics=_METRICS)
    with_intervals = has_intervals(estimates, TableStyle())
    text = make_caption(predictions, data=data, with_intervals=with_intervals)
    click.echo(render_table(summary_table(estimates, caption=text)), nl=False)
