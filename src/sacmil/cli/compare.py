"""``sacmil compare``: which models differ significantly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli._evaluation_options import (
    LOCALIZATION_HEADING,
    check_can_report,
    check_metric_name,
    evaluation_options,
    make_localization_tables,
    save_report,
)

if TYPE_CHECKING:
    from sacmil.evaluation.comparison import PairComparison
    from sacmil.evaluation.report import Report
    from sacmil.results import Predictions, SlideLocalization


def _parse_metric(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    from sacmil.evaluation.metrics import METRIC_TITLES

    if "," in value or value == "all":
        raise click.BadParameter(f"{value!r}; expected the name of one metric")
    check_metric_name(value.strip(), list(METRIC_TITLES))
    return value.strip()


@click.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--metric", default="auc", show_default=True, callback=_parse_metric, help="Metric to compare."
)
@click.option("--against", metavar="MODEL", help="Compare the other models with this one only.")
@evaluation_options
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
    """Compare all models in RUNS, tested on the same patients and folds.

    A RUN is a folder of sacmil crossval or sacmil evaluate, or its predictions.csv. The table holds
    every pair, and a sentence per pair states the result. A difference is significant if a paired
    permutation test over patients passes after Holm's correction for the number of pairs.
    """
    from sacmil.evaluation.metrics import LOCALIZATION_TITLES
    from sacmil.evaluation.report import Report
    from sacmil.evaluation.summary import DEFAULT_METRICS, summarize
    from sacmil.evaluation.tables import TableStyle
    from sacmil.workflows.evaluate import read_run_localization, read_run_settings, read_runs

    check_can_report(out)
    predictions, localization = read_runs(runs), read_run_localization(runs)
    _check_two_models(sorted(set(predictions.model.tolist())))
    resampling: dict[str, Any] = {"level": level, "draws": draws, "seed": seed}
    by_localization = metric in LOCALIZATION_TITLES
    metrics = dict.fromkeys(
        DEFAULT_METRICS if by_localization else (*DEFAULT_METRICS, metric) if out else (metric,)
    )
    style = TableStyle(percent=percent)
    report = Report(
        title=f"Comparison of {', '.join(run.name or str(run) for run in runs)}",
        predictions=predictions,
        comparisons=_compare_models(predictions, localization, metric, against, resampling),
        estimates=summarize(predictions, metrics=tuple(metrics), **resampling),
        metric=metric,
        settings=read_run_settings(runs),
        extra_tables=make_localization_tables(localization, predictions, style, **resampling),
        data=", ".join(map(str, runs)),
        level=level,
        draws=draws,
        style=style,
    )
    _print_report(report, layout)
    save_report(out, report)


def _compare_models(
    predictions: Predictions,
    localization: list[SlideLocalization],
    metric: str,
    against: str | None,
    resampling: dict[str, Any],
) -> list[PairComparison]:
    from sacmil.evaluation.comparison import compare_models
    from sacmil.evaluation.localization_summary import compare_localization
    from sacmil.evaluation.metrics import METRICS

    if metric in METRICS:
        return compare_models(predictions, metric=metric, against=against, **resampling)
    _check_has_localization(sorted(set(predictions.model.tolist())), localization)
    return compare_localization(localization, metric=metric, against=against, **resampling)


def _check_has_localization(models: list[str], localization: list[SlideLocalization]) -> None:
    from sacmil.errors import RunError
    from sacmil.results import LOCALIZATION_FILE

    found = {row.model for row in localization if row.has_both_labels}
    missing = [model for model in models if model not in found]
    if missing:
        raise RunError(
            f"there is no localisation of {', '.join(missing)}; expected {LOCALIZATION_FILE} in "
            "the run, with slides that have positive and negative instances. Put labels into the "
            "bags, then run sacmil evaluate RUN --bags DIRECTORY"
        )


def _check_two_models(models: list[str]) -> None:
    from sacmil.errors import RunError

    if len(models) < 2:
        found = ", ".join(models) or "none"
        raise RunError(f"a comparison needs two models; found {found}: give more runs")


def _print_report(report: Report, layout: str) -> None:
    from sacmil.evaluation.conclusions import list_conclusions
    from sacmil.evaluation.metrics import LOCALIZATION_TITLES
    from sacmil.evaluation.table_format import render_table
    from sacmil.evaluation.tables import comparison_table, summary_table

    caption = report.describe_comparison()
    table = comparison_table(report.comparisons, caption=caption, style=report.style)
    if layout == "text":
        summary = summary_table(
            report.estimates, caption=report.make_summary_caption(), style=report.style
        )
        if report.metric in LOCALIZATION_TITLES:
            summary = report.extra_tables[LOCALIZATION_HEADING]
        click.echo(render_table(summary))
        for sentence in list_conclusions(
            report.comparisons, level=report.level, style=report.style
        ):
            click.echo(sentence)
        click.echo()
    click.echo(render_table(table, layout), nl=False)
