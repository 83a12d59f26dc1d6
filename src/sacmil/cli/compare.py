"""``sacmil compare``: who is better than whom, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli._figures import check_can_report, figure_options, metric_names, tell_report

if TYPE_CHECKING:
    from sacmil.evaluation.report import Report


def _metric(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    names = metric_names(ctx, parameter, value)
    if len(names) != 1:
        raise click.BadParameter("models are compared by one metric; give one name")
    return names[0]


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--metric", default="auc", show_default=True, callback=_metric, help="What is compared."
)
@click.option("--against", metavar="MODEL", help="Compare the others with this one only.")
@figure_options
def command(
    runs: tuple[Path, ...],
    metric: str,
    against: str | None,
    level: float,
    draws: int,
    seed: int,
    layout: str,
    *,
    percent: bool,
    out: Path | None,
) -> None:
    """Compare all models in RUNS, which must have been tested on the same patients and folds.

    A RUN is a folder of sacmil crossval or sacmil evaluate, or its predictions.csv. The table holds
    every pair; the sentences say which differences can be claimed, after Holm's correction for
    the number of pairs.
    """
    from sacmil.evaluation.comparison import compare
    from sacmil.evaluation.report import Report
    from sacmil.evaluation.summary import USUAL, summarise
    from sacmil.evaluation.tables import Style
    from sacmil.workflows.evaluation import read_runs, what_was_asked

    check_can_report(out)
    predictions = read_runs(runs)
    _check_several(sorted(set(predictions.model.tolist())))
    drawn: dict[str, Any] = {"level": level, "draws": draws, "seed": seed}
    comparisons = compare(predictions, metric=metric, against=against, **drawn)
    shown = dict.fromkeys((*USUAL, metric)) if out else (metric,)
    report = Report(
        title=f"Comparison of {', '.join(run.name or str(run) for run in runs)}",
        predictions=predictions,
        figures=summarise(predictions, metrics=tuple(shown), **drawn),
        comparisons=comparisons,
        metric=metric,
        asked=what_was_asked(runs),
        data=", ".join(map(str, runs)),
        level=level,
        draws=draws,
        style=Style(percent=percent),
    )
    _print(report, layout)
    tell_report(out, report)


def _check_several(models: list[str]) -> None:
    from sacmil.errors import RunError

    if len(models) < 2:
        found = ", ".join(models) or "none"
        raise RunError(f"a comparison needs two models; found {found}: give more runs")


def _print(report: Report, layout: str) -> None:
    from sacmil.evaluation.claims import claims
    from sacmil.evaluation.layouts import render
    from sacmil.evaluation.tables import comparison_table, summary_table

    caption = report.how_compared()
    table = comparison_table(report.comparisons, caption=caption, style=report.style)
    if layout == "text":
        summary = summary_table(report.figures, caption=report.caption(), style=report.style)
        click.echo(render(summary))
        for sentence in claims(report.comparisons, level=report.level, style=report.style):
            click.echo(sentence)
        click.echo()
    click.echo(render(table, layout), nl=False)
