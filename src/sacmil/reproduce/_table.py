"""Reproduces a table of the paper: cross-validates every row on every available dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sacmil.errors import RunError
from sacmil.reproduce._dataset import ReproduceDataset, load_datasets
from sacmil.reproduce._paper import DATASETS, METRICS, PaperTable
from sacmil.reproduce._report import NOT_RUN, DatasetResult, write_tables
from sacmil.reproduce._request import ReproduceRequest
from sacmil.reproduce._variant import Variant

if TYPE_CHECKING:
    from sacmil.progress import ProgressCallback
    from sacmil.results import Predictions
    from sacmil.results.run import Run
    from sacmil.training.config import TrainingConfig

RUNS = "runs"


def reproduce_table(
    out: Path, name: str, paper: PaperTable, rows: Mapping[str, Variant], request: ReproduceRequest
) -> Iterator[Path]:
    """Train what is not trained yet, write the table and yield its files.

    The table is rewritten after each dataset, so that a long run can be followed.

    Args:
        out: folder of the table; all tables share runs/ in it.
        name: stem of the table's files.
        paper: the printed table.
        rows: model of each row.
        request: settings.
    """
    outcomes = {name: NOT_RUN for name in paper.datasets if request.is_requested(name)}
    failures: list[str] = []
    written: list[Path] = []
    for dataset in load_datasets(out, paper, request):
        done = cross_validate_rows(out / RUNS / dataset.name, dataset, rows, request)
        failures += [f"{dataset.name}, {job}: {why}" for job, why in done.failures.items()]
        outcomes[dataset.dataset] = _summarize_dataset(
            done.predictions if done.has_predictions else None, paper, dataset, rows, request
        )
        written = write_tables(out, name, paper, outcomes)
    yield from written
    if failures:
        raise RunError(_describe_failures(failures))


def _describe_failures(failures: list[str]) -> str:
    from sacmil.evaluation.table_format import format_count

    return (
        f"{format_count(len(failures), 'job')} failed, and their rows are left empty; run the "
        "command again to retry:\n" + "\n".join(f"  - {failure}" for failure in failures)
    )


def cross_validate_rows(
    out: Path, dataset: ReproduceDataset, rows: Mapping[str, Variant], request: ReproduceRequest
) -> Run:
    """Train every row on every fold of the dataset; skip finished jobs."""
    from sacmil.training.train import cross_validate

    return cross_validate(
        dataset.data,
        {variant.name: _make_config(variant, request) for variant in rows.values()},
        out=out,
        folds=dataset.folds,
        seeds=range(request.seeds),
        devices=request.devices * request.workers,
        engine=request.engine,
        address=request.address,
        on_progress=_prefix_progress(DATASETS[dataset.dataset], request.progress),
    )


def _make_config(variant: Variant, request: ReproduceRequest) -> TrainingConfig:
    from sacmil.training.config import TrainingConfig

    training = {} if request.epochs is None else {"epochs": request.epochs}
    return TrainingConfig(
        model=variant.model, options=variant.options, recipe="paper", training=training
    )


def _prefix_progress(title: str, progress: ProgressCallback) -> ProgressCallback:
    def report(task: str, done: int, total: int, note: str = "") -> None:
        progress(f"{title}: {task}", done, total, note)

    return report


def _summarize_dataset(
    predictions: Predictions | None,
    paper: PaperTable,
    dataset: ReproduceDataset,
    rows: Mapping[str, Variant],
    request: ReproduceRequest,
) -> DatasetResult:
    from sacmil.evaluation.summary import summarize

    finished = None if predictions is None else _select_finished(predictions, rows, request)
    if finished is None:
        return DatasetResult(f"No row is finished on {dataset.description}.", {})
    estimates = summarize(finished, metrics=tuple(METRICS))
    return DatasetResult(
        _describe_results(finished, paper, dataset, request),
        {row: estimates[v.name] for row, v in rows.items() if v.name in estimates},
    )


def _select_finished(
    predictions: Predictions, rows: Mapping[str, Variant], request: ReproduceRequest
) -> Predictions | None:
    """Return the rows of variants tested on every fold with every requested seed."""
    import numpy as np

    known = predictions.select((predictions.split == "test") & (predictions.seed < request.seeds))
    names = [
        variant.name
        for variant in rows.values()
        if _count_jobs(known, variant.name) == request.folds * request.seeds
    ]
    return known.select(np.isin(known.model, names)) if names else None


def _count_jobs(predictions: Predictions, model: str) -> int:
    import numpy as np

    rows = predictions.select(predictions.model == model)
    return len(np.unique(np.stack([rows.fold, rows.seed]), axis=1).T)


def _describe_results(
    predictions: Predictions,
    paper: PaperTable,
    dataset: ReproduceDataset,
    request: ReproduceRequest,
) -> str:
    from sacmil.evaluation.table_format import TableStyle, format_count
    from sacmil.evaluation.tables import make_caption

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
