"""Makes a table of the paper anew: every row cross-validated on every dataset there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from sacmil.errors import RunError
from sacmil.experiments._material import Material, materials
from sacmil.experiments._paper import DATASETS, METRICS, PaperTable
from sacmil.experiments._report import NOT_RUN, Outcome, write_report
from sacmil.experiments._request import Request
from sacmil.experiments._variant import Variant

if TYPE_CHECKING:
    from sacmil.results import Predictions
    from sacmil.training.config import Config
    from sacmil.training.crossval import CrossValidated, Resources, Tell

RUNS = "runs"


def reproduce(
    out: Path, name: str, paper: PaperTable, rows: Mapping[str, Variant], request: Request
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
    outcomes = {dataset: NOT_RUN for dataset in paper.datasets if request.wants(dataset)}
    failures: list[str] = []
    written: list[Path] = []
    for material in materials(out, paper, request):
        done = cross_validated(out / RUNS / material.name, material, rows, request)
        failures += [f"{material.name}, {part}: {why}" for part, why in done.failures.items()]
        outcomes[material.dataset] = _outcome(done.predictions, paper, material, rows, request)
        written = write_report(out, name, paper, outcomes)
    yield from written
    if failures:
        raise RunError(_told(failures))


def _told(failures: list[str]) -> str:
    from sacmil.evaluation.tables import count

    return (
        f"{count(len(failures), 'training')} failed, and what needs them is left open; the same "
        "command tries again:\n" + "\n".join(f"  - {failure}" for failure in failures)
    )


def cross_validated(
    out: Path, material: Material, rows: Mapping[str, Variant], request: Request
) -> CrossValidated:
    """Every row trained on every fold of the material, what is there already left alone."""
    from sacmil.training.crossval import cross_validate

    return cross_validate(
        out,
        material.cohort,
        material.bags,
        material.folds,
        {variant.name: _config(variant, request) for variant in rows.values()},
        seeds=range(request.seeds),
        resources=_resources(request),
        progress=_titled(DATASETS[material.dataset], request.progress),
    )


def _resources(request: Request) -> Resources:
    from sacmil.training.crossval import Resources

    devices = request.devices * request.workers
    return Resources(devices=devices, engine=request.engine, address=request.address)


def _config(variant: Variant, request: Request) -> Config:
    from sacmil.training.config import Config

    training = {} if request.epochs is None else {"epochs": request.epochs}
    return Config(model=variant.model, options=variant.options, recipe="paper", training=training)


def _titled(title: str, progress: Tell | None) -> Tell | None:
    if progress is None:
        return None

    def tell(task: str, done: int, total: int, note: str = "") -> None:
        progress(f"{title}: {task}", done, total, note)

    return tell


def _outcome(
    predictions: Predictions | None,
    paper: PaperTable,
    material: Material,
    rows: Mapping[str, Variant],
    request: Request,
) -> Outcome:
    from sacmil.evaluation.summary import summarise

    finished = None if predictions is None else _finished(predictions, rows, request)
    if finished is None:
        return Outcome(f"Ours did not come out on {material.about}.", {})
    figures = summarise(finished, metrics=tuple(METRICS))
    return Outcome(
        _about(finished, paper, material, request),
        {row: figures[v.name] for row, v in rows.items() if v.name in figures},
    )


def _finished(
    predictions: Predictions, rows: Mapping[str, Variant], request: Request
) -> Predictions | None:
    """The rows of variants tested on every fold with every seed asked for; a mean needs all."""
    import numpy as np

    known = predictions.where((predictions.split == "test") & (predictions.seed < request.seeds))
    names = [
        variant.name
        for variant in rows.values()
        if _parts(known, variant.name) == request.folds * request.seeds
    ]
    return known.where(np.isin(known.model, names)) if names else None


def _parts(predictions: Predictions, model: str) -> int:
    import numpy as np

    of_model = predictions.where(predictions.model == model)
    return len(np.unique(np.stack([of_model.fold, of_model.seed]), axis=1).T)


def _about(
    predictions: Predictions, paper: PaperTable, material: Material, request: Request
) -> str:
    from sacmil.evaluation.tables import Style, caption, count

    epochs = "200 epochs" if request.epochs is None else count(request.epochs, "epoch")
    told = caption(predictions, data=material.about, style=Style(percent=True, spread="std"))
    theirs = (
        f"The paper's are means over five folds of the slides of {DATASETS[material.dataset]}, "
        f"{paper.encoder} features, after 200 epochs"
    )
    if material.synthetic:
        theirs += ": other data, so compare the rows of a column, not the columns"
    return f"Ours, after {epochs}: {told} {theirs}."
