"""``sacmil evaluate``: metrics of a run's models, or of models on another cohort."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli import _options as opt
from sacmil.cli._messages import exit_with_errors, name_options

if TYPE_CHECKING:
    from sacmil.cohorts.dataset import Dataset
    from sacmil.evaluation.report import Report


def _parse_metrics(ctx: click.Context, parameter: click.Parameter, value: str) -> tuple[str, ...]:
    from sacmil.evaluation.metrics import LOCALIZATION_TITLES, list_metrics

    names = [name.strip() for name in value.split(",")]
    for name in LOCALIZATION_TITLES.keys() & names:
        raise click.BadParameter(
            f"{name} is printed whenever bags have instance labels; leave it out of the list"
        )
    return list_metrics("all" if value == "all" else names)


@click.command()
@click.argument("items", nargs=-1, required=True, type=opt.PATH)
@opt.option("--table", "Table of slides and labels to test models on.", opt.PATH)
@opt.repeatable(
    "--bags",
    "Folder of the cohort's bags; repeatable. Without --table: the bags of the run, to "
    "measure localisation with instance labels.",
    opt.PATH,
)
@opt.drop_missing_option
@opt.cohort_options
@opt.option("--device", "Device: cpu, cuda:0, …  [default: cpu]")
@opt.option(
    "--metrics",
    "Comma-separated names, or all.",
    default="accuracy,auc,f1",
    callback=_parse_metrics,
)
@opt.option(
    "--spread",
    "Print the standard deviation, the interval, or both.",
    ["both", "std", "interval", "none"],
    default="both",
)
@opt.evaluation_options
def command(
    items: tuple[Path, ...],
    table: Path | None,
    bags: tuple[Path, ...],
    spread: Any,
    table_format: str,
    *,
    percent: bool,
    out: Path | None,
    **given: Any,
) -> None:
    """Evaluate the models of ITEMS.

    ITEMS are runs, whose predictions.csv is read. With --table and --bags, ITEMS are models, or
    runs of one model, to test on that cohort; a run then predicts with the mean of its models.
    With --bags only, localisation is measured again and stored in the runs.
    """
    from sacmil.cli._progress import progress_bars
    from sacmil.evaluation.table_format import TableStyle
    from sacmil.workflows.evaluate import evaluate

    settings = {name: given.pop(name) for name in ("metrics", "level", "draws", "seed")}
    _check_call(items, table, bags, out, given)
    opt.check_can_report(out)
    settings["device"] = given.pop("device") or "cpu"
    if table is None:
        dataset, settings["bags"] = None, bags or None
    else:
        dataset, settings["out"] = _read_dataset(table, bags, **given), out
    with progress_bars() as progress:
        evaluation = evaluate(items, dataset, on_progress=progress, **settings)
    if table is not None:
        evaluation = replace(evaluation, data=str(table))
    reasons = [failure.reason for failure in evaluation.failures]
    if not len(evaluation.predictions):
        exit_with_errors(reasons)
    style = TableStyle(percent=percent, spread=spread)
    _print_report(evaluation.make_report(style), table_format)
    if out is not None:
        if evaluation.comparison_problem:
            click.echo(f"Warning: {name_options(evaluation.comparison_problem)}", err=True)
        click.echo(f"Report: {evaluation.write_report(out, style=style)}", err=True)
    exit_with_errors(reasons)


def _check_call(
    items: tuple[Path, ...],
    table: Path | None,
    bags: tuple[Path, ...],
    out: Path | None,
    cohort: dict[str, Any],
) -> None:
    from sacmil.workflows.inputs import check_output_folder

    if table is None:
        unused = cohort | ({"device": None} if bags else {})
        opt.reject_given(unused, "{} needs a cohort; add --table, the slides and labels")
    elif not bags:
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

    click.echo(render_table(report.summary, table_format), nl=False)
    for extra in report.extra_tables.values() if table_format == "text" else ():
        click.echo()
        click.echo(render_table(extra), nl=False)
