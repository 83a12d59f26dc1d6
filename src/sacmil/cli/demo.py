"""``sacmil demo``: the whole pipeline on synthetic slides, from extraction to a report."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli import _options as opt

if TYPE_CHECKING:
    from sacmil.workflows.demo import DemoRun


@click.command()
@opt.option("--out", "Folder to write the report to.", opt.FOLDER, default="report")
@opt.flag("--quick", "Run every step on a few small slides.")
@opt.option("--slides", "Slides in the cohort, an even number.  [default: 80]", click.IntRange(12))
@opt.option("--epochs", "Epochs per model.  [default: 16]", opt.COUNT)
@opt.option("--seed", "Seed of cohort and training.  [default: 1]", opt.NATURAL)
def command(out: Path, *, quick: bool, **given: int | None) -> None:
    """Make a synthetic cohort, extract, cross-validate, export, predict, and write a report.

    The label depends on where tumour clusters are, not on how many there are. Run the command again
    to do only what is missing. A folder with other settings is rejected.
    """
    from sacmil import create_model  # noqa: F401 - says at once if torch is missing
    from sacmil.cli._progress import progress_bars, show_extraction_progress
    from sacmil.workflows.demo import DemoSettings, run_demo
    from sacmil.workflows.inputs import WorkflowCallbacks

    changed: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    settings = DemoSettings.make_quick(**changed) if quick else DemoSettings(**changed)
    with progress_bars() as progress:
        callbacks = WorkflowCallbacks(
            on_progress=progress, track_extraction=show_extraction_progress
        )
        found = run_demo(out, settings, callbacks)
    _print_results(out, found)


def _print_results(out: Path, result: DemoRun) -> None:
    from sacmil.evaluation.table_format import render_table

    click.echo(render_table(result.report.summary))
    for name, measured in result.localization.items():
        click.echo(f"{name}: tile scores separate tumour from other tissue, AUC {measured.auc:.3f}")
    for name, prediction in result.new_predictions.items():
        click.echo(f"new slide {name}: {prediction}")
    click.echo(f"\n{len(result.bags.failures)} slides with artefacts failed, as intended:")
    for slide in result.slides:
        if slide.slide_id in result.bags.failures:
            click.echo(f"  {slide.slide_id}: {slide.artefact}")
    done = ", ".join(f"{count} {what}" for what, count in result.steps_done.items() if count)
    click.echo(f"\ndone now: {done or 'nothing, everything was there'}")
    click.echo(f"report: {out / 'index.html'}\nviewer: sacmil view {out / 'results'}")
