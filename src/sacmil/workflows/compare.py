"""Compares models that were tested on the same patients and folds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sacmil.arguments import list_paths
from sacmil.errors import ConfigError, RunError, suggest_names
from sacmil.evaluation.comparison import (
    PairComparison,
    compare_models,
    is_significant,
    list_conclusions,
)
from sacmil.evaluation.localization import LOCALIZATION_TITLES, compare_localization
from sacmil.evaluation.report import Report, write_report_folder
from sacmil.evaluation.summary import check_level_and_draws
from sacmil.evaluation.table_format import TableStyle
from sacmil.results import LOCALIZATION_FILE, Predictions, SlideLocalization
from sacmil.tasks import from_card
from sacmil.workflows.calibrate import calibrate_runs
from sacmil.workflows.runs import ModelResults, RunPath, read_run_results

if TYPE_CHECKING:
    import pandas


_FRAME_COLUMNS = (
    *("first", "second", "metric", "difference", "low", "high", "p_holm", "significant"),
    *("patients", "p_permutation", "p_t", "p_delong"),
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Comparison(ModelResults):
    """Differences between models, and whether they are significant."""

    metric: str
    pairs: list[PairComparison]
    """Every pair of models."""

    @property
    def conclusions(self) -> list[str]:
        """A sentence for each result."""
        return list(list_conclusions(self.pairs, level=self.level))

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas frame with a row per pair; PairComparison describes the columns."""
        import pandas

        significant = [is_significant(pair, level=self.level) for pair in self.pairs]
        frame = pandas.DataFrame(self.pairs).assign(significant=significant)
        p_values = ("p_permutation", "p_t", "p_delong", "p_holm")
        return frame.astype(dict.fromkeys(p_values, float))[list(_FRAME_COLUMNS)]

    def make_report(self, style: TableStyle | None = None) -> Report:
        """Return the content of a report.

        Args:
            style: number format of tables.
        """
        content = {"comparisons": self.pairs, "metric": self.metric, "warnings": self.warnings}
        return self._build_report(style, **content)

    def write_report(self, folder: str | Path, *, style: TableStyle | None = None) -> Path:
        """Write report.html, tables and plots to a folder; return the path of the page."""
        return write_report_folder(Path(folder), self.make_report(style))


def compare(
    runs: RunPath | Sequence[RunPath],
    *,
    metric: str | None = None,
    against: str | None = None,
    metrics: str | Sequence[str] | None = None,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
    calibrated: bool = False,
) -> Comparison:
    """Compare all models of one or several runs, tested on the same patients and folds.

    A difference is significant if a paired permutation test over patients passes after Holm's
    correction for the number of pairs.

    Args:
        runs: a run, its folder, its predictions.csv, or several of these.
        metric: metric to compare, such as auc, or one of localisation; None means the headline.
        against: compare the other models with this one only.
        metrics: metrics of the summary; the default is those of the task and the compared one.
        level: confidence level; a difference is significant if p < 1 - level.
        draws: number of resamples of patients.
        seed: of the resampling.
        calibrated: whether to apply the temperatures and thresholds of sacmil.calibrate, each
            fold's own.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from sacmil.results import Predictions, write_predictions
        >>> rows = [(f"s{n}", f"p{n}", "test", 0, 0, m, n % 2) for m in "ab" for n in range(12)]
        >>> values = [[0.2, 0.8] if row[6] else [0.8, 0.2] for row in rows]
        >>> with TemporaryDirectory() as run:
        ...     table = Predictions.from_rows(["normal", "tumor"], rows, values)
        ...     write_predictions(f"{run}/predictions.csv", table)
        ...     frame = compare(run).to_frame()
        >>> frame[["first", "second", "difference", "significant"]].values.tolist()
        [['a', 'b', 0.0, False]]
    """
    resampling: dict[str, Any] = {"level": level, "draws": draws, "seed": seed}
    check_level_and_draws(**resampling)
    paths = list_paths("runs", runs, "run")
    found = read_run_results("Comparison", paths)
    if calibrated:
        found |= calibrate_runs(paths)
    predictions, localization = found["predictions"], found["localization"]
    task = from_card(predictions.task)
    metric = metric or task.headline
    if metric not in (known := (*task.metrics, *LOCALIZATION_TITLES)):
        hint = suggest_names(metric, known)
        raise ConfigError(f"there is no metric {metric!r}; expected the name of one metric, {hint}")
    _check_models(metric, predictions, localization)
    if metric in LOCALIZATION_TITLES:
        pairs = compare_localization(localization, metric=metric, against=against, **resampling)
    else:
        pairs = compare_models(predictions, metric=metric, against=against, **resampling)
    extra = (metric,) if metric in task.metrics else ()
    default = tuple(dict.fromkeys((*task.default_metrics, *extra)))
    return Comparison(
        metric=metric,
        pairs=pairs,
        metrics=default if metrics is None else task.list_metrics(metrics),
        **found,
        **resampling,
    )


def _check_models(
    metric: str, predictions: Predictions, localization: list[SlideLocalization]
) -> None:
    models = sorted(set(predictions.model.tolist()))
    if len(models) < 2:
        found = ", ".join(models) or "none"
        raise RunError(f"a comparison needs two models; found {found}: give more runs")
    located = {row.model for row in localization if row.has_both_labels}
    missing = [model for model in models if model not in located]
    if missing and metric in LOCALIZATION_TITLES:
        raise RunError(
            f"there is no localisation of {', '.join(missing)}; expected {LOCALIZATION_FILE} in "
            "the run, with slides that have positive and negative instances. Put labels into the "
            "bags, then evaluate the run with `bags`"
        )
