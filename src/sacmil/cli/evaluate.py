"""``sacmil evaluate``: metrics of a run's models, or of models on another cohort."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli import _options as opt
from sacmil.cli._messages import (
    describe_failures,
    exit_with_errors,
    group_failures,
    name_options,
)

if TYPE_CHECKING:
    from sacmil.cohorts.dataset import Dataset
    from sacmil.evaluation.report import Report
    from sacmil.workflows.predict_dataset import EvaluationFailure


def _parse_metrics(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> str | list[str] | None:
    from sacmil.evaluation.localization import LOCALIZATION_TITLES

    if value is None:
        return None

    names = [name.strip() for name in value.split(",")]
    for name in LOCALIZATION_TITLES.keys() & names:
        raise click.BadParameter(
            f"{name} is printed whenever bags have instance labels; leave it out of the list"
        )
    return "all" if value == "all" else names


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
@opt.flag("--calibrated", "Apply the temperatures and thresholds of sacmil calibrate.")
@opt.option(
    "--metrics",
    "Comma-separated names, or all.  [default: of classes accuracy,auc,f1]",
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

    names = ("metrics", "level", "draws", "seed", "calibrated")
    settings = {name: given.pop(name) for name in names}
    _check_call(items, table, bags, out, given)
    opt.check_can_report(out)
    settings["device"] = given.pop("device") or "cpu"
    if table is None:
        dataset, settings["bags"] = None, bags or None
    else:
        given = _add_task_of_model(items[0], table, given)
        dataset, settings["out"] = _read_dataset(table, bags, **given), out
    with progress_bars() as progress:
        evaluation = evaluate(items, dataset, on_progress=progress, **settings)
    if table is not None:
        evaluation = replace(evaluation, data=str(table))
    reasons = _list_reasons(evaluation.failures)
    if not len(evaluation.predictions):
        exit_with_errors(reasons)
    style = TableStyle(percent=percent, spread=spread)
    _print_report(evaluation.make_report(style), table_format)
    if out is not None:
        if evaluation.comparison_problem:
            click.echo(f"Warning: {name_options(evaluation.comparison_problem)}", err=True)
        click.echo(f"Report: {evaluation.write_report(out, style=style)}", err=True)
    exit_with_errors(reasons)


def _list_reasons(failures: Sequence[EvaluationFailure]) -> list[str]:
    """Return a sentence for each cause, with the slides that it concerns."""
    by_model: dict[str, dict[str, str]] = {}
    for failure in failures:
        by_model.setdefault(failure.model, {})[failure.slide_id] = failure.reason
    return [
        reason if len(names) == 1 else f"{describe_failures(names, 'slides')}: {reason}"
        for failed in by_model.values()
        for names, reason in group_failures(failed)
    ]


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


def _add_task_of_model(model: Path, table: Path, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of read_cohort with the task of the model, if none was given.

    Columns of time and status may have other names in the table of another cohort.
    """
    from sacmil.card import find_model_folders, read_card

    known = read_card(find_model_folders(model)[0]).task
    if known is None or given["task"] not in (None, known["kind"]):
        return given
    renamed = {"task", "loss", *opt.SURVIVAL_COLUMNS}
    if any(given[name] is not None for name in opt.TASK_SETTINGS if name not in renamed):
        return given
    if given["loss"] is not None:
        raise click.UsageError("--loss is for training; the model has its own, leave it out")
    settings = {**known["settings"], **_forget_missing_columns(known, table, given)}
    return {**given, "task": {"kind": known["kind"], **settings}}


def _forget_missing_columns(
    known: Mapping[str, Any], table: Path, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Return settings that let columns of time and status be found anew, if the table lacks them.

    Args:
        known: the task of the model.
        table: of another cohort.
        given: arguments of read_cohort.
    """
    from sacmil.cohorts.sheet import read_sheet

    if known["kind"] != "survival":
        return {}
    columns = {name.lower() for name in read_sheet(table, sheet=given["sheet"]).columns}
    times, event = known["settings"]["time"], known["settings"]["event"]
    if {name.lower() for name in (*times, event)} <= columns:
        return {}
    return {"time": "", "event": ""}


def _read_dataset(
    table: Path, bags: tuple[Path, ...], *, drop_missing: bool, **columns: Any
) -> Dataset:
    from sacmil.cohorts.cohort import read_cohort
    from sacmil.cohorts.dataset import Dataset

    cohort = read_cohort(table, min_patients=0, **columns)
    opt.print_targets(cohort)
    # headers are not read: a bad bag shall not stop the others
    return Dataset(cohort, bags, drop_missing=drop_missing, min_patients=0, check_headers=False)


def _print_report(report: Report, table_format: str) -> None:
    from sacmil.evaluation.table_format import render_table

    click.echo(render_table(report.summary, table_format), nl=False)
    for extra in report.extra_tables.values() if table_format == "text" else ():
        click.echo()
        click.echo(render_table(extra), nl=False)
