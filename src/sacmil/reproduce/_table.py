"""Reproduces a table of the paper: cross-validates its rows, writes the paper's means and ours."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from sacmil.atomic import write_file
from sacmil.errors import RunError, format_count
from sacmil.evaluation import table_format
from sacmil.evaluation.summary import MetricEstimate, summarize
from sacmil.evaluation.table_format import Cell, ResultTable, render_table
from sacmil.evaluation.tables import make_caption
from sacmil.reproduce._dataset import ReproduceDataset, load_datasets
from sacmil.reproduce._paper import DATASETS, METRICS, PaperTable, Variant
from sacmil.results import Predictions, Run
from sacmil.training.config import TrainingConfig
from sacmil.training.train import cross_validate

if TYPE_CHECKING:
    from sacmil.reproduce.experiments import ReproduceRequest

RUNS = "runs"
STYLE = table_format.TableStyle(percent=True, spread="std")
LINE_WIDTH = 100
LAYOUT_BY_SUFFIX = {"txt": "text", "md": "markdown", "tex": "latex", "csv": "csv"}
"""Layout by file suffix."""
_TITLE_FORMATS = {"text": "{}\n", "markdown": "# {}\n", "latex": "% {}"}
_LATEX_SYMBOLS = str.maketrans(
    {"†": r"$\dagger$", "‡": r"$\ddagger$", "§": r"\S{}", "¶": r"\P{}", "λ": r"$\lambda$"}
)
"""Characters that plain LaTeX lacks."""


class DatasetResult(NamedTuple):
    """Our results on one dataset."""

    description: str
    """Data and protocol of our results."""
    estimates: Mapping[str, Mapping[str, MetricEstimate]]
    """By row and metric; unfinished rows are omitted."""


NOT_RUN = DatasetResult("Not reproduced on this dataset.", {})


def reproduce_table(
    out: Path, name: str, paper: PaperTable, request: ReproduceRequest
) -> Iterator[Path]:
    """Train what is not trained yet, write the table and yield its files.

    The table is rewritten after each dataset, so that a long run can be followed.

    Args:
        out: folder of the table; all tables share runs/ in it.
        name: stem of the table's files.
        paper: the printed table, and the model of each row.
        request: settings.
    """
    outcomes = {name: NOT_RUN for name in paper.datasets if request.is_requested(name)}
    failures: list[str] = []
    written: list[Path] = []
    for dataset in load_datasets(out, paper, request):
        done = cross_validate_rows(out / RUNS / dataset.name, dataset, paper.rows, request)
        failures += [f"{dataset.name}, {job}: {why}" for job, why in done.failures.items()]
        outcomes[dataset.dataset] = _summarize_dataset(done, paper, dataset, request)
        written = write_tables(out, name, paper, outcomes)
    yield from written
    if failures:
        raise RunError(
            f"{format_count(len(failures), 'job')} failed, and their rows are left empty; run the "
            "command again to retry:\n" + "\n".join(f"  - {failure}" for failure in failures)
        )


def cross_validate_rows(
    out: Path, dataset: ReproduceDataset, rows: Mapping[str, Variant], request: ReproduceRequest
) -> Run:
    """Train every row on every fold of the dataset; skip finished jobs."""

    def report(task: str, done: int, total: int, note: str = "") -> None:
        request.progress(f"{DATASETS[dataset.dataset]}: {task}", done, total, note)

    training = {} if request.epochs is None else {"epochs": request.epochs}
    configs = {
        row.name: TrainingConfig(
            model=row.model, options=row.options, recipe="paper", training=training
        )
        for row in rows.values()
    }
    return cross_validate(
        dataset.data,
        configs,
        out=out,
        folds=dataset.folds,
        seeds=range(request.seeds),
        devices=request.devices * request.workers,
        engine=request.engine,
        address=request.address,
        on_progress=report,
    )


def _summarize_dataset(
    run: Run, paper: PaperTable, dataset: ReproduceDataset, request: ReproduceRequest
) -> DatasetResult:
    """Summarize the rows that were tested on every fold with every requested seed."""
    names = {row: variant.name for row, variant in paper.rows.items()}
    finished = _select_finished(run.predictions, names, request) if run.has_predictions else None
    if finished is None:
        return DatasetResult(f"No row is finished on {dataset.description}.", {})
    estimates = summarize(finished, metrics=tuple(METRICS))
    return DatasetResult(
        _describe_results(finished, paper, dataset, request),
        {row: estimates[name] for row, name in names.items() if name in estimates},
    )


def _select_finished(
    predictions: Predictions, names: Mapping[str, str], request: ReproduceRequest
) -> Predictions | None:
    known = predictions.select((predictions.split == "test") & (predictions.seed < request.seeds))
    jobs = set(zip(known.model.tolist(), known.fold.tolist(), known.seed.tolist(), strict=True))
    tested = [model for model, _, _ in jobs]
    complete = request.folds * request.seeds
    finished = [name for name in names.values() if tested.count(name) == complete]
    return known.select(np.isin(known.model, finished)) if finished else None


def _describe_results(
    predictions: Predictions,
    paper: PaperTable,
    dataset: ReproduceDataset,
    request: ReproduceRequest,
) -> str:
    epochs = "200 epochs" if request.epochs is None else format_count(request.epochs, "epoch")
    caption = make_caption(predictions, data=dataset.description, style=STYLE)
    theirs = (
        f"Paper: means over five folds of the slides of {DATASETS[dataset.dataset]}, "
        f"{paper.encoder} features, after 200 epochs"
    )
    if dataset.synthetic:
        theirs += "; the data differ, so compare rows within a column, not the columns"
    return f"Ours, after {epochs}: {caption} {theirs}."


# --- tables --------------------------------------------------------------------------------------


def write_tables(
    out: Path, name: str, paper: PaperTable, outcomes: Mapping[str, DatasetResult]
) -> list[Path]:
    """Write the table in every layout, a section per dataset; return the files, text first."""
    tables = {
        dataset: make_comparison_table(paper, dataset, outcome)
        for dataset, outcome in outcomes.items()
    }
    for suffix, layout in LAYOUT_BY_SUFFIX.items():
        write_file(out / f"{name}.{suffix}", _render_document(layout, paper.title, tables))
    return [out / f"{name}.{suffix}" for suffix in LAYOUT_BY_SUFFIX]


def make_comparison_table(paper: PaperTable, dataset: str, outcome: DatasetResult) -> ResultTable:
    """Return the table of one dataset, with a row per row of the paper and notes in the caption."""
    columns = [f"{title} {source}" for title in METRICS.values() for source in ("paper", "ours")]
    return ResultTable(
        " ".join([outcome.description, *_collect_notes(paper, dataset)]),
        ("", *columns),
        tuple(tuple(_make_cells(paper, dataset, row, outcome)) for row in paper.results),
        tuple(_make_records(paper, dataset, outcome)),
    )


def _make_cells(
    paper: PaperTable, dataset: str, row: str, outcome: DatasetResult
) -> Iterator[Cell]:
    ours = outcome.estimates.get(row, {})
    yield Cell(row + paper.row_marks[row])
    for metric in METRICS:
        printed = paper.results[row][dataset][metric]
        yield Cell(f"{printed.mean:.1f}{printed.marks}")
        yield Cell(
            STYLE.format_estimate(ours[metric]) if metric in ours else table_format.UNDEFINED
        )


def _collect_notes(paper: PaperTable, dataset: str) -> list[str]:
    """Return the notes of the marks in one dataset's table."""
    used = "".join(
        paper.find_marks(row, dataset, metric) for row in paper.results for metric in METRICS
    )
    return [f"{mark} In the paper: {note}." for mark, note in paper.notes.items() if mark in used]


def _make_records(
    paper: PaperTable, dataset: str, outcome: DatasetResult
) -> Iterator[dict[str, object]]:
    for row, datasets in paper.results.items():
        for metric, printed in datasets[dataset].items():
            marks = paper.find_marks(row, dataset, metric)
            ours = outcome.estimates.get(row, {}).get(metric)
            yield {
                "dataset": dataset,
                "row": row,
                "metric": metric,
                "paper_mean": printed.mean,
                "paper_std": printed.std,
                "misprint": "; ".join(paper.notes[mark] for mark in marks),
                **{f"ours_{key}": _to_percent(ours, key) for key in ("mean", "std", "low", "high")},
                "about": outcome.description,
            }


def _to_percent(estimate: MetricEstimate | None, key: str) -> float | str:
    return "" if estimate is None else 100 * float(getattr(estimate, key))


# --- layouts -------------------------------------------------------------------------------------


def _render_document(layout: str, title: str, tables: Mapping[str, ResultTable]) -> str:
    if layout == "csv":
        joined = [record for table in tables.values() for record in table.records]
        return render_table(replace(next(iter(tables.values())), records=tuple(joined)), "csv")
    sections = [_render_section(layout, DATASETS[name], table) for name, table in tables.items()]
    text = "\n".join([_TITLE_FORMATS[layout].format(title), *sections])
    return text.translate(_LATEX_SYMBOLS) if layout == "latex" else text


def _render_section(layout: str, heading: str, table: ResultTable) -> str:
    if layout == "latex":
        return render_table(replace(table, caption=f"{heading}. {table.caption}"), layout)
    if layout == "markdown":
        return f"## {heading}\n\n{render_table(table, layout)}"
    wrapped = textwrap.fill(table_format.make_printable(table.caption), LINE_WIDTH)
    return f"{heading}\n\n{render_table(replace(table, caption=''), layout)}\n{wrapped}\n"
