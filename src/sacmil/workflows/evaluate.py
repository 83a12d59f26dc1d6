"""Evaluates runs from their predictions, or models on another cohort."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.bag import Bag
from sacmil.card import CARD_FILE, Card, anonymized_id
from sacmil.cohorts.bag_index import BagIndex, Folders
from sacmil.cohorts.bags import describe_slide_mismatch
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.cohorts.dataset import Dataset
from sacmil.deploy.load import LoadedModel, load_ensemble
from sacmil.errors import CohortWarning, InputError, OptionError, RunError, SacMILError
from sacmil.evaluation.comparison import PairComparison, compare_models
from sacmil.evaluation.localization import measure_slide_localization
from sacmil.evaluation.report import Report, write_report_folder
from sacmil.evaluation.summary import DEFAULT_METRICS, MetricEstimate, summarize
from sacmil.evaluation.tables import TableStyle, format_count
from sacmil.formats import read_bag
from sacmil.progress import ProgressCallback, ignore_progress
from sacmil.results import (
    LOCALIZATION_FILE,
    PREDICTIONS_FILE,
    Predictions,
    Run,
    SlideLocalization,
    write_localization,
    write_predictions,
)
from sacmil.workflows.input_requirements import InputRequirements
from sacmil.workflows.localization_tables import make_localization_tables
from sacmil.workflows.run_localization import measure_run_localization
from sacmil.workflows.runs import (
    RunPath,
    make_distinct_names,
    read_run_localization,
    read_run_settings,
    read_runs,
    to_path,
)

if TYPE_CHECKING:
    import pandas

Floats = npt.NDArray[np.float64]

_MAX_LISTED_FAILURES = 10
"""Number of failures that a report lists."""


class EvaluationFailure(NamedTuple):
    """A slide that a model could not predict."""

    slide_id: str
    model: str
    """Empty if the bag cannot be read, so no model could."""
    reason: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Evaluation:
    """Predictions of models, and their metrics.

    Metrics are computed on first use: intervals take a while.
    """

    predictions: Predictions
    """On another cohort: one test set, fold 0 and seed 0; a slide that failed has no row."""
    localization: list[SlideLocalization] = field(default_factory=list)
    """A row per model and slide with instance labels."""
    failures: list[EvaluationFailure] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    """Reasons why metrics may mislead; each is also a CohortWarning."""
    title: str = "Evaluation"
    data: str = ""
    """Short description of the data."""
    settings: dict[str, str] = field(default_factory=dict)
    """Text of the files with settings and versions, by path."""
    metrics: tuple[str, ...] = DEFAULT_METRICS
    level: float = 0.95
    draws: int = 2000
    seed: int = 0

    @cached_property
    def estimates(self) -> dict[str, dict[str, MetricEstimate]]:
        """Estimates by model and metric."""
        return summarize(self.predictions, metrics=self.metrics, **self._resampling)

    @property
    def _resampling(self) -> dict[str, Any]:
        return {"level": self.level, "draws": self.draws, "seed": self.seed}

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas frame with a row per model and metric."""
        import pandas

        rows = [
            {
                "model": model,
                "metric": metric,
                "mean": estimate.mean,
                "std": estimate.std,
                "low": estimate.low,
                "high": estimate.high,
                "folds": len(estimate.values),
            }
            for model, estimates in self.estimates.items()
            for metric, estimate in estimates.items()
        ]
        return pandas.DataFrame(rows)

    def make_report(
        self, style: TableStyle | None = None, comparisons: Sequence[PairComparison] = ()
    ) -> Report:
        """Return the content of a report.

        Args:
            style: number format of tables.
            comparisons: of pairs of models.
        """
        style = style or TableStyle()
        tables = make_localization_tables(
            self.localization, self.predictions, style, **self._resampling
        )
        return Report(
            title=self.title,
            predictions=self.predictions,
            estimates=self.estimates,
            comparisons=comparisons,
            settings=self.settings,
            warnings=self._list_report_warnings(),
            extra_tables=tables,
            data=self.data,
            level=self.level,
            draws=self.draws,
            style=style,
        )

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


@dataclass(frozen=True)
class _EvaluatedModel:
    """One of the models, prepared for the cohort."""

    name: str
    ensemble: LoadedModel
    class_columns: list[int]
    """Its column of the cohort's first, second, … class."""
    requirements: InputRequirements
    """Bags it accepts."""


@dataclass
class _PartialEvaluation:
    """Results of the slides so far."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    probabilities: list[Floats] = field(default_factory=list)
    failures: list[EvaluationFailure] = field(default_factory=list)
    localization: list[SlideLocalization] = field(default_factory=list)

    def add_failure(self, slide: LabeledSlide, reason: object, model: str = "") -> None:
        text = f"{model}: {reason}" if model else str(reason)
        self.failures.append(EvaluationFailure(slide.slide_id, model, text))


def evaluate(
    runs_or_models: RunPath | Sequence[RunPath],
    dataset: Dataset | None = None,
    *,
    bags: Folders | None = None,
    metrics: Sequence[str] = DEFAULT_METRICS,
    level: float = 0.95,
    draws: int = 2000,
    seed: int = 0,
    device: str = "cpu",
    out: str | Path | None = None,
    on_progress: ProgressCallback = ignore_progress,
) -> Evaluation:
    """Evaluate runs on their test sets, or models on another dataset.

    Args:
        runs_or_models: one or several. Without a dataset: runs, whose predictions are read. With
            a dataset: model folders, exported models, or runs, each the mean of its models.
        dataset: slides to predict; its classes must be among those of the models, in any order. A
            bad bag does not stop the others, see ``Evaluation.failures``.
        bags: without a dataset: folders of the runs' bags, to measure localisation again after
            they got instance labels. It is stored in the runs.
        metrics: names, such as auc.
        level: confidence level of the intervals.
        draws: number of resamples of patients.
        seed: of the resampling.
        device: auto, cpu, cuda:0, …
        out: folder to write the predictions on the dataset to, as soon as they are made.
        on_progress: called with (task, done, total).

    Returns:
        Predictions and metrics; ``to_frame()`` is a table, ``write_report(folder)`` a page.

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
    listed = [runs_or_models] if isinstance(runs_or_models, str | Path | Run) else runs_or_models
    statistics: dict[str, Any] = {
        "metrics": tuple(metrics),
        "level": level,
        "draws": draws,
        "seed": seed,
    }
    if dataset is None:
        found = _read_evaluation(list(listed), bags, device, on_progress)
    else:
        paths = [path for one in listed for path in _list_models(one)]
        found = _evaluate_models(paths, dataset, device, on_progress)
        if out is not None:  # write first what took longest to compute
            _write_predictions(Path(out), found)
    return replace(found, **statistics)


def _read_evaluation(
    runs: list[RunPath], bags: Folders | None, device: str, on_progress: ProgressCallback
) -> Evaluation:
    paths = list(map(to_path, runs))
    _check_have_predictions(paths)
    if bags is not None:
        index = BagIndex(bags)
        for path in paths:
            measure_run_localization(path, index, device=device, progress=on_progress)
    return Evaluation(
        predictions=read_runs(paths),
        localization=read_run_localization(paths),
        title=_make_title(paths),
        data=", ".join(map(str, paths)),
        settings=read_run_settings(paths),
    )


def _make_title(paths: Sequence[Path]) -> str:
    return f"Evaluation of {', '.join(path.name or str(path) for path in paths)}"


def _check_have_predictions(paths: Sequence[Path]) -> None:
    for path in paths:
        if (path / CARD_FILE).is_file() and not (path / PREDICTIONS_FILE).is_file():
            raise OptionError(
                f"{path}: is a model without predictions; give a dataset to test it on (`table` "
                "and `bags`)"
            )


def _list_models(one: RunPath) -> list[Path]:
    """Return the models of a run, or the path of one model."""
    if isinstance(one, Run) and len(one.models) > 1:
        return [one.folder / name for name in one.models]
    return [to_path(one)]


def _write_predictions(out: Path, found: Evaluation) -> None:
    write_predictions(out / PREDICTIONS_FILE, found.predictions)
    (out / LOCALIZATION_FILE).unlink(missing_ok=True)  # of an earlier evaluation
    if found.localization:
        write_localization(out / LOCALIZATION_FILE, found.localization)


def _evaluate_models(
    models: Sequence[Path], dataset: Dataset, device: str, on_progress: ProgressCallback
) -> Evaluation:
    """Predict every slide of a dataset with every model."""
    named = _load_models(models, device)
    cohort = _add_missing_classes(dataset.cohort, named[0][1].members[0].card)
    prepared = [
        _EvaluatedModel(
            name, one, _match_classes(name, one, cohort.classes), _merge_requirements(one)
        )
        for name, one in named
    ]
    texts = [text for _, one in named if (text := _describe_known_slides(one, cohort))]
    texts += _describe_missing_classes(cohort)
    for text in texts:
        warnings.warn(text, CohortWarning, stacklevel=3)
    record = _PartialEvaluation()
    for done, slide in enumerate(cohort.slides, start=1):
        _evaluate_slide(prepared, slide, dataset.bags[slide.slide_id], record)
        on_progress("evaluating", done, len(cohort.slides))
    return Evaluation(
        predictions=Predictions.from_rows(cohort.classes, record.rows, record.probabilities),
        localization=record.localization,
        failures=record.failures,
        warnings=texts,
        title=_make_title(models),
        data=f"{len(cohort)} slides",
        settings=read_run_settings(models),
    )


# --- models --------------------------------------------------------------------------------------


def _load_models(models: Sequence[Path], device: str) -> list[tuple[str, LoadedModel]]:
    loaded = [load_ensemble(path, device=device) for path in models]
    names = make_distinct_names(
        [(path, one.members[0].card.model) for path, one in zip(models, loaded, strict=True)]
    )
    return list(zip(names, loaded, strict=True))


def _merge_requirements(ensemble: LoadedModel) -> InputRequirements:
    return InputRequirements.merge(
        {
            f"{ensemble.path}, member {number}": InputRequirements.from_card(
                member.card, str(ensemble.path)
            )
            for number, member in enumerate(ensemble.members)
        }
    )


def _add_missing_classes(cohort: Cohort, card: Card) -> Cohort:
    """Add the model's classes of which the table has no slide."""
    known = card.classes or ()
    if not set(cohort.classes) < set(known):
        return cohort
    new_labels = [known.index(name) for name in cohort.classes]
    slides = tuple(slide._replace(label=new_labels[slide.label]) for slide in cohort.slides)
    return Cohort(slides, known)


def _describe_missing_classes(cohort: Cohort) -> list[str]:
    counted = zip(cohort.classes, cohort.patients_per_class, strict=True)
    missing = [name for name, count in counted if not count]
    if not missing:
        return []
    one_left = len(missing) == len(cohort.classes) - 1
    effect = "AUC is not defined" if one_left else "AUC is of the other classes"
    return [f"the table has no slide of {', '.join(missing)}; {effect}"]


def _match_classes(name: str, model: LoadedModel, classes: tuple[str, ...]) -> list[int]:
    """Return the column of the model for each class of the table."""
    stated = model.members[0].card.classes
    if len(classes) < 2 and len(stated or ()) < 2:
        raise RunError(
            f"{name}: the table has only the class {', '.join(classes)}, and the card does not "
            "name the other class; name both by `classes`"
        )
    known = _resolve_classes(name, model, classes)
    if set(known) != set(classes):
        raise RunError(
            f"{name}: has the classes {', '.join(stated or known)}, the table has "
            f"{', '.join(classes)}; expected the same names, rename them in the table"
        )
    return [known.index(each) for each in classes]


def _resolve_classes(name: str, model: LoadedModel, classes: tuple[str, ...]) -> tuple[str, ...]:
    stated = model.members[0].card.classes
    if stated is None:
        if len(model.classes) != len(classes):
            raise RunError(
                f"{name}: has {len(model.classes)} classes, which its card does not name; the "
                f"table has {len(classes)} ({', '.join(classes)}); expected as many as the model"
            )
        warnings.warn(
            f"{name}: its card does not name its classes; assuming {', '.join(classes)}, in this "
            "order",
            CohortWarning,
            stacklevel=2,
        )
        return classes
    if len(stated) == 1:  # a single output, of class 1
        others = [each for each in classes if each != stated[0]]
        return (*others, *stated) if len(others) == 1 else stated
    return stated


def _describe_known_slides(model: LoadedModel, cohort: Cohort) -> str:
    """Return a warning if the cohort has slides or patients the model was trained on, else ""."""
    trained_on = frozenset().union(*(member.card.training_ids for member in model.members))
    known = [slide for slide in cohort.slides if _anonymize_slide(slide) & trained_on]
    if not known:
        return ""
    return (
        f"{model.path}: was trained on {len(known)} of the {len(cohort.slides)} slides in the "
        f"table, or on other slides of their patients, such as {known[0].slide_id}; its "
        "predictions of them are no test"
    )


def _anonymize_slide(slide: LabeledSlide) -> set[str]:
    return {anonymized_id("slide", slide.slide_id), anonymized_id("patient", slide.patient_id)}


# --- slides --------------------------------------------------------------------------------------


def _evaluate_slide(
    models: Sequence[_EvaluatedModel],
    slide: LabeledSlide,
    path: Path,
    record: _PartialEvaluation,
) -> None:
    """Predict one slide with every model, and add the results to the record."""
    try:
        bag = read_bag(path)
    except (SacMILError, OSError) as error:
        return record.add_failure(slide, error)
    if wrong := describe_slide_mismatch(path, slide.slide_id, bag.slide_id):
        return record.add_failure(slide, wrong)
    for model in models:
        try:
            probabilities, localization = _predict_with_model(model, slide, bag)
        except SacMILError as error:
            record.add_failure(slide, error, model.name)
            continue
        record.rows.append((*slide[:2], "test", 0, 0, model.name, slide.label))
        record.probabilities.append(probabilities)
        record.localization += localization
    return None


def _predict_with_model(
    model: _EvaluatedModel, slide: LabeledSlide, bag: Bag
) -> tuple[Floats, list[SlideLocalization]]:
    """Return the probabilities, and the localisation if instance labels are known."""
    if wrong := model.requirements.check(bag).problems:
        raise InputError(
            f"{slide.slide_id}: {'; '.join(wrong)}; {model.requirements.extraction_hint()}"
        )
    prediction = model.ensemble.predict(bag)
    probabilities = prediction.probabilities[model.class_columns]
    if bag.labels is None:
        return probabilities, []
    # a single output scores instances for class 1 only, whatever the slide is
    label = model.class_columns[slide.label]
    by_class = prediction.class_scores is not None
    scores = prediction.scores_for(label) if by_class else prediction.scores
    found = measure_slide_localization(slide.slide_id, scores, bag.labels)
    job = (*slide[:2], 0, 0, model.name)
    return probabilities, [SlideLocalization(*job, **found._asdict())]
