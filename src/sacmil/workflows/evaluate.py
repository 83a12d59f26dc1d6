"""Evaluates runs from their predictions, or models on another cohort."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from sacmil.arguments import ProgressCallback, ignore_progress, list_paths
from sacmil.card import CARD_FILE
from sacmil.cohorts.bags import BagIndex, Folders
from sacmil.cohorts.dataset import Dataset
from sacmil.errors import OptionError, RunError, check_type, format_count
from sacmil.evaluation.comparison import PairComparison, compare_models
from sacmil.evaluation.report import Report, write_report_folder
from sacmil.evaluation.summary import check_level_and_draws
from sacmil.evaluation.table_format import TableStyle
from sacmil.results import (
    LOCALIZATION_FILE,
    PREDICTIONS_FILE,
    Run,
    write_localization,
    write_predictions,
)
from sacmil.tasks import from_card
from sacmil.workflows.calibrate import calibrate_runs
from sacmil.workflows.inputs import check_output_folder
from sacmil.workflows.predict_dataset import (
    EvaluationFailure,
    measure_run_localization,
    predict_dataset,
)
from sacmil.workflows.runs import ModelResults, RunPath, describe_runs, read_run_results

if TYPE_CHECKING:
    import pandas

_FRAME_COLUMNS = ("model", "metric", "mean", "std", "low", "high", "folds")
_MAX_LISTED_FAILURES = 10
"""Number of failures that a report lists."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation(ModelResults):
    """Predictions of models, their metrics, and slides that failed."""

    failures: list[EvaluationFailure] = field(default_factory=list)

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas frame with a row per model and metric."""
        import pandas

        rows = [
            (model, metric, one.mean, one.std, one.low, one.high, len(one.values))
            for model, estimates in self.estimates.items()
            for metric, one in estimates.items()
        ]
        return pandas.DataFrame(rows, columns=_FRAME_COLUMNS)

    def make_report(
        self, style: TableStyle | None = None, comparisons: Sequence[PairComparison] = ()
    ) -> Report:
        """Return the content of a report.

        Args:
            style: number format of tables.
            comparisons: of pairs of models.
        """
        warnings = self._list_report_warnings()
        return self._build_report(style, comparisons=comparisons, warnings=warnings)

    def write_report(self, folder: str | Path, *, style: TableStyle | None = None) -> Path:
        """Write report.html, tables and plots to a folder; return the path of the page.

        Models are compared too, unless they were tested on different data.
        """
        comparisons, _ = self._comparisons
        return write_report_folder(Path(folder), self.make_report(style, comparisons))

    @property
    def comparison_problem(self) -> str:
        """Why the models cannot be compared; empty if they can."""
        return self._comparisons[1]

    @cached_property
    def _comparisons(self) -> tuple[list[PairComparison], str]:
        try:
            return compare_models(self.predictions, **self._resampling), ""
        except RunError as error:
            return [], f"models are not compared: {error}"

    def _list_report_warnings(self) -> list[str]:
        failed = {failure.slide_id: failure.reason for failure in self.failures}
        if not failed:
            return self.warnings
        summary = f"{format_count(len(failed), 'slide')} could not be predicted by every model."
        return [*self.warnings, summary, *list(failed.values())[:_MAX_LISTED_FAILURES]]


def evaluate(
    runs_or_models: RunPath | Sequence[RunPath],
    dataset: Dataset | None = None,
    *,
    bags: Folders | None = None,
    metrics: str | Sequence[str] | None = None,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
    device: str = "cpu",
    calibrated: bool = False,
    out: str | Path | None = None,
    on_progress: ProgressCallback = ignore_progress,
) -> Evaluation:
    """Evaluate runs on their test sets, or models on another dataset.

    Args:
        runs_or_models: one or several. Without a dataset: runs, whose predictions are read. With
            a dataset: model folders, exported models, or runs, each the mean of its models.
        dataset: slides to predict; its classes must be among those of the models, in any order. A
            bad bag does not stop the others, see ``Evaluation.failures``.
        bags: without a dataset: folders of labelled bags, to measure the runs' localisation again.
        metrics: names, such as auc; or all; None means those of the task's tables.
        level: confidence level of the intervals.
        draws: number of resamples of patients.
        seed: of the resampling.
        device: auto, cpu, cuda:0, …
        calibrated: whether to apply the temperatures and thresholds of sacmil.calibrate; of runs
            each fold's own. Reports then have a table of operating points.
        out: folder to write the predictions on the dataset to, as soon as they are made.
        on_progress: called with (task, done, total).

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from sacmil.results import Predictions, write_predictions
        >>> rows = [(f"s{n}", f"p{n}", "test", 0, 0, m, n % 2) for m in "ab" for n in range(12)]
        >>> values = [[0.2, 0.8] if row[6] else [0.8, 0.2] for row in rows]
        >>> with TemporaryDirectory() as run:
        ...     table = Predictions.from_rows(["normal", "tumor"], rows, values)
        ...     write_predictions(f"{run}/predictions.csv", table)
        ...     frame = evaluate(run, metrics=["auc"]).to_frame()
        >>> frame[["model", "metric", "mean"]].values.tolist()
        [['a', 'auc', 1.0], ['b', 'auc', 1.0]]
    """
    check_level_and_draws(level=level, draws=draws, seed=seed)
    listed = list_paths("runs", runs_or_models, "run")
    if dataset is None:
        if out is not None:
            raise OptionError("`out` is for predictions on a `dataset`; give one, or leave it out")
        found = _read_evaluation(listed, bags, device, on_progress, calibrated=calibrated)
    else:
        check_type("dataset", dataset, Dataset, "sacmil.Dataset(cohort, bags)")
        dataset.cohort.task.list_metrics(metrics)  # before slides are predicted
        if bags is not None:
            raise OptionError("`bags` is for runs; the `dataset` has its own, leave `bags` out")
        folder = None if out is None else check_output_folder(out)
        models = [model for path in listed for model in _list_models(path)]
        predicted = predict_dataset(models, dataset, device, on_progress, calibrated=calibrated)
        described = describe_runs("Evaluation", models, format_count(len(dataset), "slide"))
        found = Evaluation(**predicted, **described)
        if folder is not None:  # write first what took longest to compute
            _write_predictions(folder, found)
    chosen = from_card(found.predictions.task).list_metrics(metrics)
    return replace(found, metrics=chosen, level=level, draws=draws, seed=seed)


def _read_evaluation(
    paths: list[Path],
    bags: Folders | None,
    device: str,
    on_progress: ProgressCallback,
    *,
    calibrated: bool,
) -> Evaluation:
    for path in paths:
        if (path / CARD_FILE).is_file() and not (path / PREDICTIONS_FILE).is_file():
            raise OptionError(
                f"{path}: is a model without predictions; give a dataset to test it on (`table` "
                "and `bags`)"
            )
    if bags is not None:
        index = BagIndex(bags)
        for path in paths:
            measure_run_localization(path, index, device=device, progress=on_progress)
    found = Evaluation(**read_run_results("Evaluation", paths))
    return replace(found, **calibrate_runs(paths)) if calibrated else found


def _list_models(path: Path) -> list[Path]:
    """Return the models of a run, or the path of one model."""
    is_run = (path / "provenance.json").is_file() and not (path / CARD_FILE).is_file()
    folders = [path / name for name in Run(path).models] if is_run else []
    return folders if len(folders) > 1 else [path]


def _write_predictions(out: Path, found: Evaluation) -> None:
    write_predictions(out / PREDICTIONS_FILE, found.predictions)
    (out / LOCALIZATION_FILE).unlink(missing_ok=True)  # of an earlier evaluation
    if found.localization:
        write_localization(out / LOCALIZATION_FILE, found.localization)
