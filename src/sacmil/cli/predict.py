"""``sacmil predict``: answers for slides and bags nobody has labelled."""

from __future__ import annotations

import shlex
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sacmil.limits import BAG_LIMIT_S

if TYPE_CHECKING:
    from sacmil.workflows.predict import PredictionSummary

_EXISTING = click.Path(exists=True, path_type=Path)


@click.command()
@click.argument("items", nargs=-1, required=True, type=_EXISTING)
@click.option(
    "--model",
    "models",
    required=True,
    multiple=True,
    type=_EXISTING,
    help="Model folder, exported or not, or a run, which is the mean of its parts; again for more.",
)
@click.option(
    "--out",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for predictions.csv, predictions.json, results.json, heatmaps and bags.",
)
@click.option("--report", is_flag=True, help="Write one HTML page per slide as well.")
@click.option(
    "--slides",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Where the slides of bags are, for pictures.",
)
@click.option("--heatmaps/--no-heatmaps", default=True, show_default=True, help="Draw pictures.")
@click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda:0, …")
@click.option(
    "--slide-mpp",
    metavar="X|FILE.csv",
    help="Microns per pixel of the slides, or a table with columns wsi,mpp.",
)
@click.option("--encoder", help="Such as onnx:FILE.  [default: what the model's card names]")
@click.option("--encoder-weights", type=_EXISTING, help="File with the encoder's weights.")
@click.option("--download", is_flag=True, help="Let the encoder fetch its weights from the hub.")
@click.option(
    "--allow-mismatch",
    is_flag=True,
    help="Answer bags of another encoder or tile size than the model's, with a warning.",
)
@click.option(
    "--limit",
    "limit_s",
    default=BAG_LIMIT_S,
    show_default=True,
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds to read a bag.",
)
def command(items: tuple[Path, ...], models: tuple[Path, ...], out: Path, **options: Any) -> None:
    """Answer ITEMS, slides or bags or folders of either, for research use only.

    Encoder, tile size and resolution come from the model's card. An item that cannot be answered
    is told with its reason, and the others go on. Running the same command again does only what is
    missing.
    """
    from sacmil.cli._extraction_progress import show_extraction_progress
    from sacmil.cli._progress import progress_bars
    from sacmil.environment import keep_freed_memory

    keep_freed_memory()  # before the next lines import torch
    from sacmil.workflows.predict import predict_slides
    from sacmil.workflows.prediction_settings import PredictionSettings, WorkflowCallbacks

    with progress_bars() as tell:
        watcher = WorkflowCallbacks(on_progress=tell, track_extraction=show_extraction_progress)
        predicted = predict_slides(
            items, out, models, PredictionSettings(**options), callbacks=watcher
        )
    _print_results(predicted, out, report=options["report"])


def _print_results(summary: PredictionSummary, out: Path, *, report: bool) -> None:
    from sacmil.cli._failures import find_cause
    from sacmil.evaluation.printable import make_printable

    problems = [
        *(("Warning", one.slide_id, text) for one in summary.records for text in one.warnings),
        *(("Error", Path(one.item).stem, one.reason) for one in summary.failures),
    ]
    causes = [(kind, find_cause(name, text)) for kind, name, text in problems]
    counts = Counter(causes)
    for cause in counts:
        kind, _, text = problems[causes.index(cause)]
        alike = f" ({counts[cause]} alike)" if counts[cause] > 1 else ""
        click.echo(f"{kind}: {make_printable(text)}{alike}", err=True)
    for record in summary.records[:_MAX_SHOWN]:
        for answer in record.select_models(summary.models):
            spread = f" ± {max(answer.spread):.2f}" if answer.spread else ""
            said = (
                f"{answer.find_predicted_class(summary.classes)} "
                f"{max(answer.probabilities):.2f}{spread}"
            )
            click.echo(make_printable(f"{record.slide_id}  {answer.model}: {said}"))
    if removed := summary.removed_reports:
        again = "" if report else "; give --report to write pages of these predictions"
        click.echo(f"removed {removed} pages of an earlier run from {out / 'reports'}{again}")
    left = len(summary.records) - _MAX_SHOWN
    if left > 0:
        click.echo(f"… and {left} more")
    pages = f", pages in {out / 'reports'}" if report and summary.records else ""
    answered, failed = len(summary.records), len(summary.failures)
    asked = {one.item for one in summary.records} | {one.item for one in summary.failures}
    click.echo(f"{answered} of {len(asked)} answered: {out / 'predictions.csv'}{pages}")
    if answered:
        click.echo(make_printable(f"to look at them: {_make_view_command(summary, out)}"))
    if failed:
        click.echo(f"{failed} failed: {out / 'predictions.json'} says why", err=True)
        raise SystemExit(1)


def _make_view_command(summary: PredictionSummary, out: Path) -> str:
    """The command that shows them, naming where the slides are if they are few places."""
    slides = [Path(record.slide) for record in summary.records if record.slide]
    folders = {str(slide.parent) for slide in slides if out.resolve() not in slide.parents}
    named = [word for folder in sorted(folders) for word in ("--slides", folder)]
    return shlex.join(
        ["sacmil", "view", str(out), *(named if len(folders) <= _MAX_FOLDERS else [])]
    )


_MAX_FOLDERS = 3
"""Folders of slides that a command still names."""
_MAX_SHOWN = 20
"""Slides whose answers are printed."""
