"""``sacmil demo``: the whole way from slides drawn on the spot to a report and the viewer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sacmil.workflows.demo import Demonstration


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
    from sacmil.cli._extraction_progress import told
    from sacmil.cli._progress import bars
    from sacmil.workflows.demo import Settings, run_demo
    from sacmil.workflows.prediction_settings import Watcher

    changed: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    settings = Settings.quick(**changed) if quick else Settings(**changed)
    with bars() as tell:
        found = run_demo(out, settings, Watcher(tell=tell, extraction=told))
    _conclude(out, found)


def _conclude(out: Path, found: Demonstration) -> None:
    from sacmil.evaluation.layouts import render
    from sacmil.evaluation.tables import summary_table
    from sacmil.workflows.demo.page import next_commands

    report = found.report
    click.echo(render(summary_table(report.figures, caption=report.caption(), style=report.style)))
    for name, place in found.located.items():
        click.echo(f"{name}: a tile's score tells nests from other tissue with AUC {place.auc:.3f}")
    for name, said in found.new.items():
        click.echo(f"new slide {name}: {said}")
    click.echo(f"\n{len(found.bags.failures)} slides could not be used, as is meant:")
    for name in found.bags.failures:
        click.echo(f"  {name}: {_mishap(found, name)}")
    done = ", ".join(f"{count} {what}" for what, count in found.done.items() if count)
    click.echo(f"\ndone now: {done or 'nothing, all of it was there'}")
    click.echo(f"report: {out / 'index.html'}\nviewer: {next_commands(out)[0]}")


def _mishap(found: Demonstration, name: str) -> str:
    return next(slide.mishap for slide in found.drawn if slide.slide_id == name)
