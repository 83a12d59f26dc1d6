"""``sacmil calibrate``: a temperature and a threshold for each model of a run."""

from __future__ import annotations

from pathlib import Path

import click

from sacmil.cli import _options as opt


@click.command()
@click.argument("run", type=opt.EXISTING_FOLDER)
@opt.option(
    "--rule",
    "Choose thresholds by Youden's index: the largest sensitivity + specificity - 1.  [default]",
    ["youden"],
)
@opt.option(
    "--sensitivity",
    "Choose the largest thresholds that reach this sensitivity instead, such as 0.95.",
    click.FloatRange(0, 1, min_open=True),
)
def command(run: Path, rule: str | None, sensitivity: float | None) -> None:
    """Calibrate the models of RUN on their validation sets.

    Each model gets a temperature and, for two classes or labels, thresholds. They are stored in its
    card. sacmil predict and sacmil evaluate apply them with --calibrated. Run it again to replace
    them. RUN must be trained with -o monitor=val_loss, val_metric or val_auc.
    """
    from sacmil.evaluation.table_format import render_table
    from sacmil.workflows.calibrate import calibrate

    if rule is not None and sensitivity is not None:
        raise click.UsageError("--rule and --sensitivity exclude each other; leave one out")
    calibrated = calibrate(run, sensitivity=sensitivity)
    click.echo(render_table(calibrated.table), nl=False)
    click.echo(f"{len(calibrated.models)} cards written; use them with --calibrated")
