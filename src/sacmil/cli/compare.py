"""``sacmil compare``: which models differ significantly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli import _options as opt

if TYPE_CHECKING:
    from sacmil.evaluation.report import Report


@click.command()
@click.argument("runs", nargs=-1, required=True, type=opt.PATH)
@opt.option("--metric", "Metric to compare.  [default: that of the task, auc for classes]")
@opt.option("--against", "Compare the other models with this one only.", metavar="MODEL")
@opt.flag("--calibrated", "Apply the temperatures and thresholds of sacmil calibrate.")
@opt.evaluation_options
def command(
    runs: tuple[Path, ...],
    metric: str | None,
    table_format: str,
    *,
    percent: bool,
    out: Path | None,
    **resampling: Any,
) -> None:
    """Compare all models in RUNS, tested on the same patients and folds.

    A RUN is a folder of sacmil crossval or sacmil evaluate, or its predictions.csv. The table holds
    every pair, and a sentence per pair states the result. A difference is significant if a paired
    permutation test over patients passes after Holm's correction for the number of pairs.
    """
    from sacmil.evaluation.localization import LOCALIZATION_TITLES
    from sacmil.evaluation.table_format import TableStyle
    from sacmil.workflows.compare import compare

    opt.check_can_report(out)
    only_compared = out is None and metric not in LOCALIZATION_TITLES
    metrics = (metric,) if metric and only_compared else None
    comparison = compare(runs, metric=metric, metrics=metrics, **resampling)
    style = TableStyle(percent=percent)
    _print_report(comparison.make_report(style), table_format)
    if out is not None:
        click.echo(f"Report: {comparison.write_report(out, style=style)}", err=True)


def _print_report(report: Report, table_format: str) -> None:
    from sacmil.evaluation.localization import LOCALIZATION_TITLES
    from sacmil.evaluation.table_format import render_table
    from sacmil.workflows.runs import LOCALIZATION_HEADING

    if table_format == "text":
        of_tiles = report.metric in LOCALIZATION_TITLES
        table = report.extra_tables[LOCALIZATION_HEADING] if of_tiles else report.summary
        click.echo(render_table(table))
        click.echo("".join(f"{sentence}\n" for sentence in report.conclusions))
    click.echo(render_table(report.comparison, table_format), nl=False)
