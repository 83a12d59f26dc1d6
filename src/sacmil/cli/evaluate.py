"""``sacmil evaluate``: how good the models of a run are, or models on another cohort."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli._cohort import cohort_options
from sacmil.cli._figures import (
    check_can_report,
    figure_options,
    localisation_tables,
    metric_names,
    tell_report,
)
from sacmil.cli._folders import refuse_run_or_model

if TYPE_CHECKING:
    from sacmil.cohorts.table import Cohort
    from sacmil.evaluation.comparison import Comparison
    from sacmil.evaluation.report import Report
    from sacmil.results import Predictions
    from sacmil.workflows.evaluation import Evaluation

_TOLD = 10
"""How many failures a report tells with their reasons; the command tells all."""


@click.command()
@click.argument("items", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--table",
    type=click.Path(path_type=Path),
    help="Test models on this cohort: slides and their labels.",
)
@click.option(
    "--bags",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Folder of the cohort's bags; may be given again. Without --table: the bags of the run, "
    "to measure localisation by their instance labels.",
)
@click.option("--drop-missing", is_flag=True, help="Leave out slides of the table without a bag.")
@cohort_options
@click.option("--device", help="cpu, cuda:0, …  [default: cpu]")
@click.option(
    "--metrics",
    default="accuracy,auc,f1",
    show_default=True,
    callback=metric_names,
    help="Names separated by commas, or all.",
)
@click.option(
    "--spread",
    default="both",
    show_default=True,
    type=click.Choice(["both", "std", "interval", "none"]),
    help="What stands beside a mean.",
)
@figure_options
def command(
    items: tuple[Path, ...],
    table: Path | None,
    bags: tuple[Path, ...],
    metrics: list[str],
    spread: Any,
    layout: str,
    *,
    percent: bool,
    out: Path | None,
    level: float,
    draws: int,
    seed: int,
    **cohort: Any,
) -> None:
    """Say how good the models of ITEMS are.

    ITEMS are runs, whose predictions.csv is read; with --table and --bags they are models, or runs
    of one model, which are tested on that cohort. A run then means the mean over its parts. With
    --bags alone, localisation of runs is measured anew, and kept in them.
    """
    from sacmil.evaluation.report import Report
    from sacmil.evaluation.summary import summarise
    from sacmil.evaluation.tables import Style
    from sacmil.workflows.evaluation import what_was_asked

    _check_call(items, table, bags, out, cohort)
    check_can_report(out)
    evaluation = _evaluation(items, table, bags, out, **cohort)
    drawn: dict[str, Any] = {"level": level, "draws": draws, "seed": seed}
    style = Style(percent=percent, spread=spread)
    report = Report(
        title=f"Evaluation of {', '.join(item.name or str(item) for item in items)}",
        predictions=evaluation.predictions,
        figures=summarise(evaluation.predictions, metrics=metrics, **drawn),
        comparisons=_compared(evaluation.predictions, drawn) if out else [],
        asked=what_was_asked(items),
        warnings=_told(evaluation),
        further=localisation_tables(
            evaluation.localisation, evaluation.predictions, style, **drawn
        ),
        data=str(table) if table else ", ".join(map(str, items)),
        level=level,
        draws=draws,
        style=style,
    )
    _print(report, layout)
    tell_report(out, report)
    _conclude(evaluation)


def _check_call(
    items: tuple[Path, ...],
    table: Path | None,
    bags: tuple[Path, ...],
    out: Path | None,
    cohort: dict[str, Any],
) -> None:
    given = [name for name, value in cohort.items() if value and not (bags and name == "device")]
    if table is None and given:
        option = given[0].replace("_", "-")
        raise click.UsageError(f"--{option} is of a cohort; give --table, its slides and labels")
    if table is None:
        _check_predicted(items)
    elif not bags:
        raise click.UsageError("--table says which slides; give --bags, the folder of their bags")
    if out is not None and (table is not None or out.resolve() not in map(Path.resolve, items)):
        refuse_run_or_model(out)


def _check_predicted(items: tuple[Path, ...]) -> None:
    from sacmil.card import CARD
    from sacmil.results import PREDICTIONS

    for item in items:
        if (item / CARD).is_file() and not (item / PREDICTIONS).is_file():
            raise click.UsageError(
                f"{item} is a model, which has no predictions of its own; give --table and --bags "
                "to test it on a cohort"
            )


def _evaluation(
    items: tuple[Path, ...],
    table: Path | None,
    bags: tuple[Path, ...],
    out: Path | None,
    *,
    device: str | None,
    drop_missing: bool,
    **columns: Any,
) -> Evaluation:
    from sacmil.cli._cohort import read_cohort
    from sacmil.results import LOCALISATION, PREDICTIONS, write_localisation, write_predictions
    from sacmil.workflows.evaluation import Evaluation, read_run_localisation, read_runs

    if table is None:
        if bags:
            _localise(items, bags, device or "cpu")
        return Evaluation(read_runs(items), [], read_run_localisation(items), [])
    cohort = read_cohort(table, need=0, **columns)
    evaluation = _tested(items, cohort, bags, device or "cpu", drop_missing=drop_missing)
    if out is not None:  # what took long is written before anything else can go wrong
        write_predictions(out / PREDICTIONS, evaluation.predictions)
        (out / LOCALISATION).unlink(missing_ok=True)  # of an evaluation before
        if evaluation.localisation:
            write_localisation(out / LOCALISATION, evaluation.localisation)
    if not len(evaluation.predictions):
        _conclude(evaluation)
    return evaluation


def _localise(items: tuple[Path, ...], bags: tuple[Path, ...], device: str) -> None:
    from sacmil import load_model  # noqa: F401 - says at once if torch is missing
    from sacmil.cli._progress import bars
    from sacmil.workflows.run_localisation import localise_run

    for item in items:
        with bars() as progress:
            localise_run(item, bags, device=device, progress=progress)


def _tested(
    items: tuple[Path, ...],
    cohort: Cohort,
    bags: tuple[Path, ...],
    device: str,
    *,
    drop_missing: bool,
) -> Evaluation:
    from sacmil import load_model  # noqa: F401 - says at once if torch is missing
    from sacmil.cli._progress import bars
    from sacmil.cohorts import bags as of_cohort
    from sacmil.workflows.evaluation import evaluate_models

    if drop_missing:
        cohort = of_cohort.drop_missing(cohort, bags, need=0)
    located = of_cohort.locate_bags(cohort, bags)
    with bars() as progress:
        return evaluate_models(items, cohort, located, device=device, progress=progress)


def _compared(predictions: Predictions, drawn: dict[str, Any]) -> list[Comparison]:
    """All pairs, where models can be compared: a report of runs on different data is one too."""
    from sacmil.errors import RunError
    from sacmil.evaluation.comparison import compare

    try:
        return compare(predictions, **drawn)
    except RunError as error:
        click.echo(f"Warning: models are not compared: {error}", err=True)
        return []


def _told(evaluation: Evaluation) -> list[str]:
    """What a report says before its figures."""
    from sacmil.evaluation.tables import count

    failed = {failure.slide_id: failure.reason for failure in evaluation.failures}
    if not failed:
        return evaluation.doubts
    told = f"{count(len(failed), 'slide')} could not be answered by every model."
    return [*evaluation.doubts, told, *list(failed.values())[:_TOLD]]


def _print(report: Report, layout: str) -> None:
    from sacmil.evaluation.layouts import render
    from sacmil.evaluation.tables import summary_table

    table = summary_table(report.figures, caption=report.caption(), style=report.style)
    click.echo(render(table, layout), nl=False)
    for further in report.further.values() if layout == "text" else ():
        click.echo()
        click.echo(render(further), nl=False)


def _conclude(evaluation: Evaluation) -> None:
    for failure in evaluation.failures:
        click.echo(f"Error: {failure.reason}", err=True)
    if evaluation.failures:
        raise SystemExit(1)
