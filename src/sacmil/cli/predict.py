"""``sacmil predict``: predictions for slides and bags."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.cli import _options as opt
from sacmil.cli._messages import find_cause, name_options
from sacmil.limits import BAG_LIMIT_S

if TYPE_CHECKING:
    from sacmil.tasks import Task
    from sacmil.workflows.predict import PredictionSummary

_MAX_FOLDERS = 3
"""Maximum number of folders in the command that shows results."""
_MAX_SHOWN = 20
"""Maximum number of slides whose predictions are printed."""


@click.command()
@click.argument("items", nargs=-1, required=True, type=opt.EXISTING)
@opt.repeatable(
    "--model",
    "Model folder, exported model, or run (the mean of its models); repeatable.",
    opt.EXISTING,
    to="models",
    required=True,
)
@opt.option(
    "--out",
    "Folder for predictions.csv, predictions.json, results.json, heatmaps and bags.",
    opt.FOLDER,
    required=True,
)
@opt.flag("--report", "Also write one HTML page per slide.")
@opt.option("--slides", "Folder of the bags' slides, to draw heatmaps on.", opt.EXISTING_FOLDER)
@opt.option("--heatmaps/--no-heatmaps", "Draw heatmaps.", default=True)
@opt.device_option("auto")
@opt.slide_mpp_option
@opt.option("--encoder", "Encoder, such as onnx:FILE.  [default: the model's]")
@opt.option("--encoder-weights", "File with the encoder's weights.", opt.EXISTING)
@opt.download_option
@opt.allow_mismatch_option
@opt.flag("--calibrated", "Apply the temperatures and thresholds of sacmil calibrate.")
@opt.option("--limit", "Seconds to read one bag.", opt.POSITIVE, to="limit_s", default=BAG_LIMIT_S)
def command(items: tuple[Path, ...], models: tuple[Path, ...], out: Path, **options: Any) -> None:
    """Predict the class of ITEMS: slides, bags, or folders of them. For research use only.

    Encoder, tile size and resolution come from the model's card. If an item fails, the reason is
    printed and the other items continue. Run the command again to do only what is missing.
    """
    from sacmil.cli._progress import progress_bars, show_extraction_progress
    from sacmil.environment import keep_freed_memory

    keep_freed_memory()  # before the next lines import torch
    from sacmil.workflows.predict import predict_slides

    with progress_bars() as progress:
        predicted = predict_slides(
            items,
            models,
            out,
            on_progress=progress,
            track_extraction=show_extraction_progress,
            **options,
        )
    _print_results(predicted, out, report=options["report"])


def _print_results(summary: PredictionSummary, out: Path, *, report: bool) -> None:
    from sacmil.evaluation.table_format import make_printable

    problems = [
        *(("Warning", one.slide_id, text) for one in summary.records for text in one.warnings),
        *(("Error", Path(one.item).stem, one.reason) for one in summary.failures),
    ]
    groups: dict[tuple[str, str], list[str]] = {}
    for kind, name, text in problems:
        groups.setdefault((kind, find_cause(name, text)), []).append(text)
    for (kind, _), texts in groups.items():
        alike = f" ({len(texts)} alike)" if len(texts) > 1 else ""
        click.echo(f"{kind}: {make_printable(name_options(texts[0]))}{alike}", err=True)
    for record in summary.records[:_MAX_SHOWN]:
        for prediction in record.select_models(summary.models):
            deviation = summary.task.find_spread(prediction)
            spread = "" if deviation is None else f" ± {_format_spread(summary.task, deviation)}"
            words = f"{summary.task.describe(prediction).headline}{spread}"
            click.echo(make_printable(f"{record.slide_id}  {prediction.model}: {words}"))
    if removed := summary.removed_reports:
        again = "" if report else "; add --report to write pages of these predictions"
        click.echo(f"removed {removed} pages of an earlier run from {out / 'reports'}{again}")
    left = len(summary.records) - _MAX_SHOWN
    if left > 0:
        click.echo(f"… and {left} more")
    pages = f", pages in {out / 'reports'}" if report and summary.records else ""
    done, failed = len(summary.records), len(summary.failures)
    items = {one.item for one in summary.records} | {one.item for one in summary.failures}
    click.echo(f"{done} of {len(items)} predicted: {out / 'predictions.csv'}{pages}")
    if done:
        click.echo(make_printable(f"view them: {_make_view_command(summary, out)}"))
    if failed:
        click.echo(f"{failed} failed; see the reasons in {out / 'predictions.json'}", err=True)
        raise SystemExit(1)


def _format_spread(task: Task, deviation: float) -> str:
    from sacmil.tasks import format_number

    if task.are_percentages:
        return f"{deviation:.0%}"
    return f"{deviation:.2f}" if task.are_probabilities else format_number(deviation)


def _make_view_command(summary: PredictionSummary, out: Path) -> str:
    """Return the command that shows the results, with the slides' folders if they are few."""
    slides = [Path(record.slide) for record in summary.records if record.slide]
    folders = {str(slide.parent) for slide in slides if out.resolve() not in slide.parents}
    named = [word for folder in sorted(folders) for word in ("--slides", folder)]
    shown = named if len(folders) <= _MAX_FOLDERS else []
    return shlex.join(["sacmil", "view", str(out), *shown])
