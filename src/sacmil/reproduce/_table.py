"""Makes a table of the paper anew: every row cross-validated on every dataset there is."""

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
    from sacmil.results import Predictions
    from sacmil.training.config import TrainingConfig
    from sacmil.training.cross_validate import (
        CrossValidationResult,
        ProgressCallback,
        TrainingResources,
    )

RUNS = "runs"


def reproduce_table(
    out: Path, name: str, paper: PaperTable, rows: Mapping[str, Variant], request: ReproduceRequest
) -> Iterator[Path]:
    """Train what is not trained yet, write the table, and name its files.

    The table is written anew after each dataset, so that a long run can be looked at.

    Args:
        out: folder of the table; runs/ in it is shared by all tables.
        name: of the table's files.
        paper: what was printed.
        rows: what stands behind each row.
        request: what was asked for.
    """
    outcomes = {dataset: NOT_RUN for dataset in paper.datasets if request.is_requested(dataset)}
    failures: list[str] = []
    written: list[Path] = []
    for material in load_datasets(out, paper, request):
        done = cross_validate_rows(out / RUNS / material.name, material, rows, request)
        failures += [f"{material.name}, {part}: {why}" for part, why in done.failures.items()]
        outcomes[material.dataset] = _summarize_dataset(
            done.predictions, paper, material, rows, request
        )
        written = write_tables(out, name, paper, outcomes)
    yield from written
    if failures:
        raise RunError(_describe_failures(failures))


def _describe_failures(failures: list[str]) -> str:
    from sacmil.evaluation.tables import format_count

    return (
        f"{format_count(len(failures), 'training')} failed, and what needs them is left open; the "
        "same "
        "command tries again:\n" + "\n".join(f"  - {failure}" for failure in failures)
    )


def cross_validate_rows(
    out: Path, dataset: ReproduceDataset, rows: Mapping[str, Variant], request: ReproduceRequest
) -> CrossValidationResult:
    """Every row trained on every fold of the material, what is there already left alone."""
    from sacmil.training.cross_validate import cross_validate

    return cross_validate(
        out,
        dataset.cohort,
        dataset.bags,
        dataset.folds,
        {variant.name: _make_config(variant, request) for variant in rows.values()},
        seeds=range(request.seeds),
        resources=_make_resources(request),
        on_progress=_prefix_progress(DATASETS[dataset.dataset], request.progress),
    )


def _make_resources(request: ReproduceRequest) -> TrainingResources:
    from sacmil.training.cross_validate import TrainingResources

    devices = request.devices * request.workers
    return TrainingResources(devices=devices, engine=request.engine, address=request.address)


def _make_config(variant: Variant, request: ReproduceRequest) -> TrainingConfig:
    from sacmil.training.config import TrainingConfig

    training = {} if request.epochs is None else {"epochs": request.epochs}
    return TrainingConfig(
        model=variant.model, options=variant.options, recipe="paper", training=training
    )


def _prefix_progress(title: str, progress: ProgressCallback | None) -> ProgressCallback | None:
    if progress is None:
        return None

    def tell(task: str, done: int, total: int, note: str = "") -> None:
        progress(f"{title}: {task}", done, total, note)

    return tell


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
        return DatasetResult(f"Ours did not come out on {dataset.description}.", {})
    figures = summarize(finished, metrics=tuple(METRICS))
    return DatasetResult(
        _describe_results(finished, paper, dataset, request),
        {row: figures[v.name] for row, v in rows.items() if v.name in figures},
    )


def _select_finished(
    predictions: Predictions, rows: Mapping[str, Variant], request: ReproduceRequest
) -> Predictions | None:
    """The rows of variants tested on every fold with every seed asked for; a mean needs all."""
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

    of_model = predictions.select(predictions.model == model)
    return len(np.unique(np.stack([of_model.fold, of_model.seed]), axis=1).T)


def _describe_results(
    predictions: Predictions,
    paper: PaperTable,
    dataset: ReproduceDataset,
    request: ReproduceRequest,
) -> str:
    from sacmil.evaluation.tables import TableStyle, format_count, make_caption

    epochs = "200 epochs" if request.epochs is None else format_count(request.epochs, "epoch")
    told = make_caption(
        predictions, data=dataset.description, style=TableStyle(percent=True, spread="std")
    )
    theirs = (
        f"The paper's are means over five folds of the slides of {DATASETS[dataset.dataset]}, "
        f"{paper.encoder} features, after 200 epochs"
    )
    if dataset.synthetic:
        theirs += ": other data, so compare the rows of a column, not the columns"
    return f"Ours, after {epochs}: {told} {theirs}."
