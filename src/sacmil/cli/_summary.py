"""The table a training command ends with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sacmil.results import Predictions

_METRICS = ("accuracy", "auc", "f1")


def print_summary(predictions: Predictions, data: str) -> None:
    """Accuracy, AUC and F1 of every model over the test folds, as `sacmil evaluate` has them."""
    from sacmil.evaluation.layouts import render
    from sacmil.evaluation.summary import summarise
    from sacmil.evaluation.tables import Style, caption, has_intervals, summary_table

    figures = summarise(predictions, metrics=_METRICS)
    shows = has_intervals(figures, Style())
    text = caption(predictions, data=data, with_intervals=shows)
    click.echo(render(summary_table(figures, caption=text)), nl=False)
