"""``sacmil demo``: the whole way from slides drawn on the spot to a report and the viewer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sacmil.workflows.demo import DemoResult


@click.command()
@click.option(
    "--out",
    default="report",
    show_default=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Report folder.",
)
@click.option("--quick", is_flag=True, help="Every step, on a few small slides.")
@click.option(
    "--slides", type=click.IntRange(12), help="In the cohort, an even number.  [default: 60]"
)
@click.option("--epochs", type=click.IntRange(1), help="Of each model.  [default: 16]")
@click.option("--seed", type=click.IntRange(0), help="Of cohort and training.  [default: 1]")
def command(out: Path, *, quick: bool, **given: int | None) -> None:
    """Draw a cohort, extract, cross-validate, export, predict, and write a report.

    The label is where tumour nests stand, not how many there are. The same command again does only
    what is missing; a folder of other settings is refused.
    """
    from sacmil import create_model  # noqa: F401 - says at once if torch is missing
    from sacmil.cli._extraction_progress import show_extraction_progress
    from sacmil.cli._progress import progress_bars
    from sacmil.workflows.demo import DemoSettings, run_demo
    from sacmil.workflows.prediction_settings import WorkflowCallbacks

    changed: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    settings = DemoSettings.make_quick(**changed) if quick else DemoSettings(**changed)
    with progress_bars() as tell:
        found = run_demo(
            out,
            settings,
            WorkflowCallbacks(on_progress=tell, track_extraction=show_extraction_progress),
        )
    _print_results(out, found)


def _print_results(out: Path, result: DemoResult) -> None:
    from sacmil.evaluation.table_format import render_table
    from sacmil.evaluation.tables import summary_table
    from sacmil.workflows.demo.page import list_next_commands

    report = result.report
    click.echo(
        render_table(
            summary_table(
                report.estimates, caption=report.make_summary_caption(), style=report.style
            )
        )
    )
    for name, place in result.localization.items():
        click.echo(f"{name}: a tile's score tells nests from other tissue with AUC {place.auc:.3f}")
    for name, said in result.new_predictions.items():
        click.echo(f"new slide {name}: {said}")
    click.echo(f"\n{len(result.bags.failures)} slides could not be used, as is meant:")
    for name in result.bags.failures:
        click.echo(f"  {name}: {_find_artefact(result, name)}")
    done = ", ".join(f"{count} {what}" for what, count in result.steps_done.items() if count)
    click.echo(f"\ndone now: {done or 'nothing, all of it was there'}")
    click.echo(f"report: {out / 'index.html'}\nviewer: {list_next_commands(out)[0]}")


def _find_artefact(result: DemoResult, name: str) -> str:
    return next(slide.artefact for slide in result.slides if slide.slide_id == name)
