"""``sacmil compare``: who is better than whom, and how sure that is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli._figures import (
    LOCALISED,
    check_can_report,
    check_metric_name,
    figure_options,
    localisation_tables,
    tell_report,
)

if TYPE_CHECKING:
    from sacmil.evaluation.comparison import Comparison
    from sacmil.evaluation.report import Report
    from sacmil.results import Predictions, SlideLocalisation


def _metric(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    from sacmil.evaluation.metrics import TITLES

    if "," in value or value == "all":
        raise click.BadParameter("models are compared by one metric; give one name")
    check_metric_name(value.strip(), list(TITLES))
    return value.strip()


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
    every pair; the sentences say which differences can be claimed. A difference is claimed when a
    paired permutation test over patients passes, after Holm's correction for the number of pairs.
    """
    from sacmil.evaluation.metrics import LOCALISATION_TITLES
    from sacmil.evaluation.report import Report
    from sacmil.evaluation.summary import USUAL, summarise
    from sacmil.evaluation.tables import Style
    from sacmil.workflows.evaluation import read_run_localisation, read_runs, what_was_asked

    check_can_report(out)
    predictions, localised = read_runs(runs), read_run_localisation(runs)
    _check_several(sorted(set(predictions.model.tolist())))
    drawn: dict[str, Any] = {"level": level, "draws": draws, "seed": seed}
    by_localisation = metric in LOCALISATION_TITLES
    shown = dict.fromkeys(USUAL if by_localisation else (*USUAL, metric) if out else (metric,))
    style = Style(percent=percent)
    report = Report(
        title=f"Comparison of {', '.join(run.name or str(run) for run in runs)}",
        predictions=predictions,
        comparisons=_compare(predictions, localised, metric, against, drawn),
        figures=summarise(predictions, metrics=tuple(shown), **drawn),
        metric=metric,
        asked=what_was_asked(runs),
        further=localisation_tables(localised, predictions, style, **drawn),
        data=", ".join(map(str, runs)),
        level=level,
        draws=draws,
        style=style,
    )
    _print(report, layout)
    tell_report(out, report)


def _compare(
    predictions: Predictions,
    localised: list[SlideLocalisation],
    metric: str,
    against: str | None,
    drawn: dict[str, Any],
) -> list[Comparison]:
    from sacmil.evaluation.comparison import compare
    from sacmil.evaluation.localisation_summary import compare_localisation
    from sacmil.evaluation.metrics import METRICS

    if metric in METRICS:
        return compare(predictions, metric=metric, against=against, **drawn)
    _check_localised(sorted(set(predictions.model.tolist())), localised)
    return compare_localisation(localised, metric=metric, against=against, **drawn)


def _check_localised(models: list[str], localised: list[SlideLocalisation]) -> None:
    from sacmil.errors import RunError
    from sacmil.results import LOCALISATION

    found = {row.model for row in localised if row.has_both_kinds}
    missing = [model for model in models if model not in found]
    if missing:
        raise RunError(
            f"there is no localisation of {', '.join(missing)}; expected {LOCALISATION} in the "
            "run, with slides that have positive and negative instances: put labels into the bags, "
            "then run sacmil evaluate RUN --bags DIRECTORY"
        )


def _check_several(models: list[str]) -> None:
    from sacmil.errors import RunError

    if len(models) < 2:
        found = ", ".join(models) or "none"
        raise RunError(f"a comparison needs two models; found {found}: give more runs")


def _print(report: Report, layout: str) -> None:
    from sacmil.evaluation.claims import claims
    from sacmil.evaluation.layouts import render
    from sacmil.evaluation.metrics import LOCALISATION_TITLES
    from sacmil.evaluation.tables import comparison_table, summary_table

    caption = report.how_compared()
    table = comparison_table(report.comparisons, caption=caption, style=report.style)
    if layout == "text":
        summary = summary_table(report.figures, caption=report.caption(), style=report.style)
        if report.metric in LOCALISATION_TITLES:
            summary = report.further[LOCALISED]
        click.echo(render(summary))
        for sentence in claims(report.comparisons, level=report.level, style=report.style):
            click.echo(sentence)
        click.echo()
    click.echo(render(table, layout), nl=False)
