"""``sacmil demo``: the pipeline on synthetic data, from slides or bags to a report."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli import _options as opt

if TYPE_CHECKING:
    from sacmil.workflows.demo import DemoRun
    from sacmil.workflows.inputs import WorkflowCallbacks
    from sacmil.workflows.survival_demo import SurvivalDemoRun


@click.command()
@opt.option(
    "--task", "What to predict.", ["classes", "survival"], default="classes", show_default=True
)
@opt.option("--out", "Folder to write the report to.", opt.FOLDER, default="report")
@opt.flag("--quick", "Run every step on a few small slides.")
@opt.option(
    "--slides",
    "Slides in the cohort, of classes an even number.  [default: 80; 600 for survival]",
    click.IntRange(12),
)
@opt.option("--epochs", "Epochs per model.  [default: 16; 16 for survival]", opt.COUNT)
@opt.option("--seed", "Seed of cohort and training.  [default: 1]", opt.NATURAL)
def command(out: Path, *, task: str, quick: bool, **given: int | None) -> None:
    """Make a synthetic cohort, extract, cross-validate, export, predict, and write a report.

    The label depends on where tumour clusters are, not on how many there are. With --task survival
    the cohort has features instead of slides, and the hazard depends on where immune cells are. Run
    the command again to do only what is missing. A folder with other settings is rejected.
    """
    from sacmil import create_model  # noqa: F401 - says at once if torch is missing
    from sacmil.cli._progress import progress_bars, show_extraction_progress
    from sacmil.workflows.inputs import WorkflowCallbacks

    changed: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    with progress_bars() as progress:
        callbacks = WorkflowCallbacks(
            on_progress=progress, track_extraction=show_extraction_progress
        )
        run = _run_survival if task == "survival" else _run_classes
        print_results = run(out, callbacks, changed, quick=quick)
    print_results()


def _run_classes(
    out: Path, callbacks: WorkflowCallbacks, changed: dict[str, Any], *, quick: bool
) -> Callable[[], None]:
    """Run the demonstration; return what prints its results."""
    from sacmil.workflows.demo import DemoSettings, run_demo

    settings = DemoSettings.make_quick(**changed) if quick else DemoSettings(**changed)
    return partial(_print_results, out, run_demo(out, settings, callbacks))


def _run_survival(
    out: Path, callbacks: WorkflowCallbacks, changed: dict[str, Any], *, quick: bool
) -> Callable[[], None]:
    """Run the demonstration of survival; return what prints its results."""
    from sacmil.workflows.survival_demo import SurvivalDemoSettings, run_survival_demo

    make_settings = SurvivalDemoSettings.make_quick if quick else SurvivalDemoSettings
    return partial(_print_survival, run_survival_demo(out, make_settings(**changed), callbacks))


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


def _print_survival(result: SurvivalDemoRun) -> None:
    from sacmil.evaluation.table_format import render_table

    click.echo(render_table(result.report.summary))
    oracle = result.oracle
    click.echo(
        f"oracle: c {oracle['c']:.3f} from the features, {oracle['c_true_hazard']:.3f} from the "
        "true hazard; chance is 0.500"
    )
    click.echo(result.verdict)
    for patient in result.new_patients:
        share = f"{patient.truth.infiltration:.0%} of the immune cells are inside the tumour"
        click.echo(f"new patient {patient.slide_id}: {patient.prediction}; {share}")
    click.echo(f"\nreport: {result.page}\npages of new patients: {result.answers / 'reports'}")
