"""``sacmil evaluate``: metrics of a run's models, or of models on another cohort."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli._cohort import cohort_options, get_option_name
from sacmil.cli._evaluation_options import check_can_report, evaluation_options, parse_metric_names
from sacmil.cli._option_names import name_options

if TYPE_CHECKING:
    from sacmil.cohorts.dataset import Dataset
    from sacmil.evaluation.report import Report
    from sacmil.workflows.evaluate import Evaluation


@click.command()
@click.argument("items", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--table",
    type=click.Path(path_type=Path),
    help="Table of slides and labels to test models on.",
)
@click.option(
    "--bags",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Folder of the cohort's bags; repeatable. Without --table: the bags of the run, to "
    "measure localisation with instance labels.",
)
@click.option("--drop-missing", is_flag=True, help="Skip slides without a bag.")
@cohort_options
@click.option("--device", help="Device: cpu, cuda:0, …  [default: cpu]")
@click.option(
    "--metrics",
    default="accuracy,auc,f1",
    show_default=True,
    callback=parse_metric_names,
    help="Comma-separated names, or all.",
)
@click.option(
    "--spread",
    default="both",
    show_default=True,
    type=click.Choice(["both", "std", "interval", "none"]),
    help="Print the standard deviation, the interval, or both.",
)
@evaluation_options
def command(
    items: tuple[Path, ...],
    table: Path | None,
    bags: tuple[Path, ...],
    metrics: list[str],
    spread: Any,
    table_format: str,
    *,
    percent: bool,
    out: Path | None,
    level: float,
    draws: int,
    seed: int,
    **cohort: Any,
) -> None:
    """Evaluate the models of ITEMS.

    ITEMS are runs, whose predictions.csv is read. With --table and --bags, ITEMS are models, or
    runs of one model, to test on that cohort; a run then predicts with the mean of its models.
    With --bags only, localisation is measured again and stored in the runs.
    """
    from sacmil.cli._progress import progress_bars
    from sacmil.evaluation.tables import TableStyle
    from sacmil.workflows.evaluate import evaluate

    _check_call(items, table, bags, out, cohort)
    check_can_report(out)
    device = cohort.pop("device") or "cpu"
    dataset = _read_dataset(table, bags, **cohort) if table else None
    with progress_bars() as progress:
        evaluation = evaluate(
            items,
            dataset,
            bags=None if table else bags or None,
            metrics=metrics,
            level=level,
            draws=draws,
            seed=seed,
            device=device,
            out=out if table else None,
            on_progress=progress,
        )
    if table is not None:
        evaluation = replace(evaluation, data=str(table))
    if not len(evaluation.predictions):
        _exit_on_failures(evaluation)
    style = TableStyle(percent=percent, spread=spread)
    _print_report(evaluation.make_report(style), table_format)
    if out is not None:
        if evaluation.comparison_problem:
            click.echo(f"Warning: {name_options(evaluation.comparison_problem)}", err=True)
        click.echo(f"Report: {evaluation.write_report(out, style=style)}", err=True)
    _exit_on_failures(evaluation)


def _check_call(
    items: tuple[Path, ...],
    table: Path | None,
    bags: tuple[Path, ...],
    out: Path | None,
    cohort: dict[str, Any],
) -> None:
    from sacmil.workflows.output_folder import check_output_folder

    given = [name for name, value in cohort.items() if value and not (bags and name == "device")]
    if table is None and given:
        raise click.UsageError(
            f"{get_option_name(given[0])} needs a cohort; add --table, the slides and labels"
        )
    if table is not None and not bags:
        raise click.UsageError("--table needs bags; add --bags, the folder of the slides' bags")
    if out is not None and (table is not None or out.resolve() not in map(Path.resolve, items)):
        check_output_folder(out)


def _read_dataset(
    table: Path, bags: tuple[Path, ...], *, drop_missing: bool, **columns: Any
) -> Dataset:
    from sacmil.cohorts.cohort import read_cohort
    from sacmil.cohorts.dataset import Dataset

    cohort = read_cohort(table, min_patients=0, **columns)
    # headers are not read: a bad bag shall not stop the others
    return Dataset(cohort, bags, drop_missing=drop_missing, min_patients=0, check_headers=False)


def _print_report(report: Report, table_format: str) -> None:
    from sacmil.evaluation.table_format import render_table
    from sacmil.evaluation.tables import summary_table

    table = summary_table(
        report.estimates, caption=report.make_summary_caption(), style=report.style
    )
    click.echo(render_table(table, table_format), nl=False)
    for extra in report.extra_tables.values() if table_format == "text" else ():
        click.echo()
        click.echo(render_table(extra), nl=False)


def _exit_on_failures(evaluation: Evaluation) -> None:
    for failure in evaluation.failures:
        click.echo(f"Error: {name_options(failure.reason)}", err=True)
    if evaluation.failures:
        raise SystemExit(1)
