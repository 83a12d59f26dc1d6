"""Reproduces a table of the paper: cross-validates every row on every available dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sacmil.arguments import ProgressCallback
from sacmil.errors import RunError
from sacmil.evaluation.summary import summarize
from sacmil.evaluation.table_format import TableStyle, format_count
from sacmil.evaluation.tables import make_caption
from sacmil.reproduce._dataset import ReproduceDataset, load_datasets
from sacmil.reproduce._paper import DATASETS, METRICS, PaperTable, Variant
from sacmil.reproduce._report import NOT_RUN, DatasetResult, write_tables
from sacmil.results import Predictions, Run
from sacmil.training.config import TrainingConfig
from sacmil.training.train import cross_validate

if TYPE_CHECKING:
    from sacmil.reproduce.experiments import ReproduceRequest

RUNS = "runs"


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
        on_progress=_prefix_progress(DATASETS[dataset.dataset], request.progress),
    )


def _prefix_progress(title: str, progress: ProgressCallback) -> ProgressCallback:
    def report(task: str, done: int, total: int, note: str = "") -> None:
        progress(f"{title}: {task}", done, total, note)

    return report


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
    caption = make_caption(
        predictions, data=dataset.description, style=TableStyle(percent=True, spread="std")
    )
    theirs = (
        f"Paper: means over five folds of the slides of {DATASETS[dataset.dataset]}, "
        f"{paper.encoder} features, after 200 epochs"
    )
    if dataset.synthetic:
        theirs += "; the data differ, so compare rows within a column, not the columns"
    return f"Ours, after {epochs}: {caption} {theirs}."
