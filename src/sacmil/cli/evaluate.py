"""``sacmil evaluate``: metrics of a run's models, or of models on another cohort."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli._cohort import cohort_options
from sacmil.cli._evaluation_options import (
    check_can_report,
    evaluation_options,
    make_localization_tables,
    parse_metric_names,
    save_report,
)
from sacmil.cli._output_folder import check_not_run_or_model

if TYPE_CHECKING:
    from sacmil.cohorts.cohort import Cohort
    from sacmil.evaluation.comparison import PairComparison
    from sacmil.evaluation.report import Report
    from sacmil.results import Predictions
    from sacmil.workflows.evaluate import Evaluation

_MAX_LISTED_FAILURES = 10
"""Number of failures listed in a report; the command prints all."""


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
    layout: str,
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
    from sacmil.evaluation.report import Report
    from sacmil.evaluation.summary import summarize
    from sacmil.evaluation.tables import TableStyle
    from sacmil.workflows.evaluate import read_run_settings

    _check_call(items, table, bags, out, cohort)
    check_can_report(out)
    evaluation = _evaluate(items, table, bags, out, **cohort)
    resampling: dict[str, Any] = {"level": level, "draws": draws, "seed": seed}
    style = TableStyle(percent=percent, spread=spread)
    report = Report(
        title=f"Evaluation of {', '.join(item.name or str(item) for item in items)}",
        predictions=evaluation.predictions,
        estimates=summarize(evaluation.predictions, metrics=metrics, **resampling),
        comparisons=_compare_if_possible(evaluation.predictions, resampling) if out else [],
        settings=read_run_settings(items),
        warnings=_list_warnings(evaluation),
        extra_tables=make_localization_tables(
            evaluation.localization, evaluation.predictions, style, **resampling
        ),
        data=str(table) if table else ", ".join(map(str, items)),
        level=level,
        draws=draws,
        style=style,
    )
    _print_report(report, layout)
    save_report(out, report)
    _exit_on_failures(evaluation)


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
        raise click.UsageError(f"--{option} needs a cohort; add --table, the slides and labels")
    if table is None:
        _check_has_predictions(items)
    elif not bags:
        raise click.UsageError("--table needs bags; add --bags, the folder of the slides' bags")
    if out is not None and (table is not None or out.resolve() not in map(Path.resolve, items)):
        check_not_run_or_model(out)


def _check_has_predictions(items: tuple[Path, ...]) -> None:
    from sacmil.card import CARD_FILE
    from sacmil.results import PREDICTIONS_FILE

    for item in items:
        if (item / CARD_FILE).is_file() and not (item / PREDICTIONS_FILE).is_file():
            raise click.UsageError(
                f"{item} is a model without predictions; add --table and --bags "
                "to test it on a cohort"
            )


def _evaluate(
    items: tuple[Path, ...],
    table: Path | None,
    bags: tuple[Path, ...],
    out: Path | None,
    *,
    device: str | None,
    drop_missing: bool,
    **columns: Any,
) -> Evaluation:
    from sacmil.cli._cohort import read_cohort_table
    from sacmil.results import (
        LOCALIZATION_FILE,
        PREDICTIONS_FILE,
        write_localization,
        write_predictions,
    )
    from sacmil.workflows.evaluate import Evaluation, read_run_localization, read_runs

    if table is None:
        if bags:
            _measure_localization(items, bags, device or "cpu")
        return Evaluation(read_runs(items), [], read_run_localization(items), [])
    cohort = read_cohort_table(table, min_patients=0, **columns)
    evaluation = _evaluate_models(items, cohort, bags, device or "cpu", drop_missing=drop_missing)
    if out is not None:  # write first what took longest to compute
        write_predictions(out / PREDICTIONS_FILE, evaluation.predictions)
        (out / LOCALIZATION_FILE).unlink(missing_ok=True)  # of an earlier evaluation
        if evaluation.localization:
            write_localization(out / LOCALIZATION_FILE, evaluation.localization)
    if not len(evaluation.predictions):
        _exit_on_failures(evaluation)
    return evaluation


def _measure_localization(items: tuple[Path, ...], bags: tuple[Path, ...], device: str) -> None:
    from sacmil import load_model  # noqa: F401 - says at once if torch is missing
    from sacmil.cli._progress import progress_bars
    from sacmil.cohorts.bag_index import BagIndex
    from sacmil.workflows.run_localization import measure_run_localization

    index = BagIndex(bags)
    for item in items:
        with progress_bars() as progress:
            measure_run_localization(item, index, device=device, progress=progress)


def _evaluate_models(
    items: tuple[Path, ...],
    cohort: Cohort,
    bags: tuple[Path, ...],
    device: str,
    *,
    drop_missing: bool,
) -> Evaluation:
    from sacmil import load_model  # noqa: F401 - says at once if torch is missing
    from sacmil.cli._progress import progress_bars
    from sacmil.cohorts.dataset import Dataset
    from sacmil.workflows.evaluate import evaluate_models

    # A damaged bag does not stop the others here, so headers are not checked first.
    dataset = Dataset(cohort, bags, drop_missing=drop_missing, min_patients=0, check_headers=False)
    with progress_bars() as progress:
        return evaluate_models(
            items, dataset.cohort, dataset.bags, device=device, progress=progress
        )


def _compare_if_possible(
    predictions: Predictions, resampling: dict[str, Any]
) -> list[PairComparison]:
    """Compare all pairs; if the runs are of different data, warn and return none."""
    from sacmil.errors import RunError
    from sacmil.evaluation.comparison import compare_models

    try:
        return compare_models(predictions, **resampling)
    except RunError as error:
        click.echo(f"Warning: models are not compared: {error}", err=True)
        return []


def _list_warnings(evaluation: Evaluation) -> list[str]:
    """Return the warnings at the top of a report."""
    from sacmil.evaluation.tables import format_count

    failed = {failure.slide_id: failure.reason for failure in evaluation.failures}
    if not failed:
        return evaluation.warnings
    summary = f"{format_count(len(failed), 'slide')} could not be predicted by every model."
    return [*evaluation.warnings, summary, *list(failed.values())[:_MAX_LISTED_FAILURES]]


def _print_report(report: Report, layout: str) -> None:
    from sacmil.evaluation.table_format import render_table
    from sacmil.evaluation.tables import summary_table

    table = summary_table(
        report.estimates, caption=report.make_summary_caption(), style=report.style
    )
    click.echo(render_table(table, layout), nl=False)
    for extra in report.extra_tables.values() if layout == "text" else ():
        click.echo()
        click.echo(render_table(extra), nl=False)


def _exit_on_failures(evaluation: Evaluation) -> None:
    for failure in evaluation.failures:
        click.echo(f"Error: {failure.reason}", err=True)
    if evaluation.failures:
        raise SystemExit(1)
