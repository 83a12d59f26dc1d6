"""Predicts datasets with models that were trained elsewhere, and measures localisation of runs."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.arguments import ProgressCallback, ignore_progress
from sacmil.atomic import exclusive
from sacmil.bag import Bag
from sacmil.card import CARD_FILE, Card, anonymized_id
from sacmil.cohorts.bags import BagIndex, Folders, describe_slide_mismatch
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.cohorts.dataset import Dataset
from sacmil.deploy.load import LoadedModel, load_ensemble
from sacmil.environment import select_device
from sacmil.errors import CohortWarning, InputError, RunError, SacMILError
from sacmil.evaluation.localization import measure_slide_localization
from sacmil.evaluation.operating_points import AppliedCalibration
from sacmil.formats import read_bag
from sacmil.results import (
    LOCALIZATION_FILE,
    Prediction,
    Predictions,
    SlideLocalization,
    read_predictions,
    write_localization,
)
from sacmil.tasks import from_card
from sacmil.tasks.calibration import Calibration, check_can_calibrate, list_threshold_columns
from sacmil.workflows.input_requirements import InputRequirements
from sacmil.workflows.runs import make_distinct_names

Floats = npt.NDArray[np.float64]
_TOLERANCE = 0.02
"""Maximum difference of probabilities due to another device or precision."""


class EvaluationFailure(NamedTuple):
    """A slide that a model could not predict."""

    slide_id: str
    model: str
    """Empty if the bag cannot be read, so no model could."""
    reason: str


class _EvaluatedModel(NamedTuple):
    """One of the models, prepared for the cohort."""

    ensemble: LoadedModel
    columns: list[int]
    """Its column of the cohort's first, second, … class, or other prediction column."""
    requirements: InputRequirements
    """Bags it accepts."""
    calibrations: Sequence[Calibration] = ()
    """Of its members, if they are applied."""

    def calibrate(self, prediction: Prediction) -> Floats:
        """Return the values, calibrated if requested: each member's before the mean."""
        members = prediction.values[None] if prediction.members is None else prediction.members
        pairs = zip(self.calibrations, members, strict=bool(self.calibrations))
        each = [calibration.apply(values) for calibration, values in pairs]
        return np.asarray(np.mean(each, axis=0)) if each else prediction.values

    def name_thresholds(self, cohort: Cohort) -> dict[str, float]:
        """Return the means of its members' thresholds, by the cohort's name of class or label."""
        named = [cohort.task.value_names[column] for column in np.argsort(self.columns)]
        columns = list_threshold_columns(self.ensemble.task)
        means = np.mean([one.thresholds for one in self.calibrations], axis=0).tolist()
        return dict(zip([named[column] for column in columns], means, strict=True))


@dataclass
class _PartialEvaluation:
    """Results of the slides so far."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    values: list[Floats] = field(default_factory=list)
    raw_values: list[Floats] = field(default_factory=list)
    """Before calibration."""
    failures: list[EvaluationFailure] = field(default_factory=list)
    localization: list[SlideLocalization] = field(default_factory=list)

    def add_failure(self, slide: LabeledSlide, reason: object, model: str = "") -> None:
        text = f"{model}: {reason}" if model else str(reason)
        self.failures.append(EvaluationFailure(slide.slide_id, model, text))


def predict_dataset(
    models: Sequence[Path],
    dataset: Dataset,
    device: str,
    on_progress: ProgressCallback,
    *,
    calibrated: bool = False,
) -> dict[str, Any]:
    """Predict every slide of a dataset with every model; a bad bag does not stop the others.

    Args:
        models: model folders, exported models, or runs, each the mean of its models.
        dataset: its classes must be among those of the models, in any order.
        device: auto, cpu, cuda:0, …
        on_progress: called with (task, done, total).
        calibrated: whether to apply the calibrations in the models' cards.

    Returns:
        The predictions, localization, failures, warnings and calibration of an Evaluation.
    """
    loaded = _load_models(models, device)
    calibrations = [_read_calibrations(one) if calibrated else [] for one in loaded]
    cohort = _add_missing_classes(dataset.cohort, loaded[0].card)
    columns = [_match_columns(one, cohort) for one in loaded]
    needs = [InputRequirements.from_ensembles([one]) for one in loaded]
    prepared = list(map(_EvaluatedModel, loaded, columns, needs, calibrations))
    texts = [text for one in loaded if (text := _describe_known_slides(one, cohort))]
    texts += _describe_missing_classes(cohort)
    for text in texts:
        warnings.warn(text, CohortWarning, stacklevel=3)
    record = _PartialEvaluation()
    for done, slide in enumerate(cohort.slides, start=1):
        _evaluate_slide(prepared, slide, dataset.bags[slide.slide_id], record)
        on_progress("evaluating", done, len(cohort.slides))
    predictions = Predictions.from_rows(cohort.task.card, record.rows, record.values)
    found: dict[str, Any] = {"localization": record.localization, "failures": record.failures}
    if calibrated:
        raw = Predictions.from_rows(cohort.task.card, record.rows, record.raw_values)
        found["calibration"] = _describe_calibration(prepared, cohort, raw)
    return {"predictions": predictions, "warnings": texts, **found}


# --- models --------------------------------------------------------------------------------------


def _load_models(paths: Sequence[Path], device: str) -> list[LoadedModel]:
    """Load the models, with distinct names."""
    loaded = [load_ensemble(path, device=device) for path in paths]
    names = make_distinct_names([(one.path, one.card.model) for one in loaded])
    for one, name in zip(loaded, names, strict=True):
        one.name = name
    return loaded


def _read_calibrations(model: LoadedModel) -> list[Calibration]:
    check_can_calibrate(model.task)
    return [Calibration.from_card(member.card, model.path) for member in model.members]


def _describe_calibration(
    models: Sequence[_EvaluatedModel], cohort: Cohort, raw: Predictions
) -> AppliedCalibration:
    """Return the thresholds of the models; of several members their mean."""
    thresholds = {(one.ensemble.name, 0, 0): one.name_thresholds(cohort) for one in models}
    rules = {found.rule_description for one in models for found in one.calibrations}
    return AppliedCalibration(raw, thresholds, tuple(sorted(rules)))


def _add_missing_classes(cohort: Cohort, card: Card) -> Cohort:
    """Add the model's classes of which the table has no slide."""
    known = card.classes or ()
    if not cohort.task.has_classes or not set(cohort.classes) < set(known):
        return cohort
    new_labels = [known.index(name) for name in cohort.classes]
    slides = tuple(slide._replace(label=new_labels[slide.class_index]) for slide in cohort.slides)
    return Cohort(slides, known)


def _describe_missing_classes(cohort: Cohort) -> list[str]:
    if not cohort.task.has_classes:
        return []
    counted = zip(cohort.classes, cohort.patients_per_class, strict=True)
    missing = [name for name, count in counted if not count]
    if not missing:
        return []
    one_left = len(missing) == len(cohort.classes) - 1
    effect = "AUC is not defined" if one_left else "AUC is of the other classes"
    return [f"the table has no slide of {', '.join(missing)}; {effect}"]


def _match_columns(model: LoadedModel, cohort: Cohort) -> list[int]:
    """Return the columns of the model in the order of the cohort's."""
    if cohort.task.has_classes and model.task.has_classes:
        return _match_classes(model, cohort.classes)
    if reason := model.task.explain_difference(cohort.task):
        raise RunError(f"{model.name}: {reason}")
    return list(range(len(cohort.task.prediction_columns)))


def _match_classes(model: LoadedModel, classes: tuple[str, ...]) -> list[int]:
    """Return the column of the model for each class of the table."""
    name, stated = model.name, model.card.classes
    if len(classes) < 2 and len(stated or ()) < 2:
        raise RunError(
            f"{name}: the table has only the class {', '.join(classes)}, and the card does not "
            "name the other class; name both by `classes`"
        )
    known = _resolve_classes(model, classes)
    if set(known) != set(classes):
        raise RunError(
            f"{name}: has the classes {', '.join(stated or known)}, the table has "
            f"{', '.join(classes)}; expected the same names, rename them in the table"
        )
    return [known.index(each) for each in classes]


def _resolve_classes(model: LoadedModel, classes: tuple[str, ...]) -> tuple[str, ...]:
    name = model.name
    stated: tuple[str, ...] | None = model.card.classes
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
    models: Sequence[_EvaluatedModel], slide: LabeledSlide, path: Path, record: _PartialEvaluation
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
            prediction, localization = _predict_with_model(model, slide, bag)
        except SacMILError as error:
            record.add_failure(slide, error, model.ensemble.name)
            continue
        record.rows.append((*slide[:2], "test", 0, 0, model.ensemble.name, slide.targets))
        record.values.append(model.calibrate(prediction)[model.columns])
        record.raw_values.append(prediction.values[model.columns])
        record.localization += localization
    return None


def _predict_with_model(
    model: _EvaluatedModel, slide: LabeledSlide, bag: Bag
) -> tuple[Prediction, list[SlideLocalization]]:
    """Return the prediction, and the localisation if instance labels are known."""
    if wrong := model.requirements.check(bag).problems:
        raise InputError(
            f"{slide.slide_id}: {'; '.join(wrong)}; {model.requirements.extraction_hint()}"
        )
    prediction = model.ensemble.predict(bag)
    column = model.ensemble.task.find_true_column(slide.targets)
    if bag.labels is None or column is None:
        return prediction, []
    keys = (slide.slide_id, slide.patient_id, 0, 0, model.ensemble.name)
    if model.ensemble.task.has_classes:
        column = model.columns[slide.class_index]
    return prediction, [_measure_slide(prediction, bag.labels, column, keys)]


# --- localisation of runs -------------------------------------------------------------------------


def measure_run_localization(
    run: Path,
    bags: Folders | BagIndex,
    *,
    device: str = "cpu",
    progress: ProgressCallback = ignore_progress,
) -> None:
    """Measure every test slide with the model of its fold, and write localisation_by_slide.csv.

    Args:
        run: a folder of ``sacmil train`` or ``sacmil crossval``.
        bags: folders of the bags, or their index; with the features the run was tested on.
        device: cpu, cuda:0, …
        progress: called with (task, done, total) after each model.

    Raises:
        RunError: the run has no saved models, or the bags are not those of the run.
    """
    is_model = (run / CARD_FILE).is_file()
    cards = [run / CARD_FILE] if is_model else sorted(run.glob(f"*/seed_*/fold_*/{CARD_FILE}"))
    if not cards:
        raise RunError(
            f"{run}: is not a run; expected a folder of sacmil train or sacmil crossval, not a "
            "folder inside it"
        )
    index = bags if isinstance(bags, BagIndex) else BagIndex(bags)
    cohort = _make_test_cohort(read_predictions(run))
    located = Dataset(cohort, index, check_headers=False).bags
    measured: dict[Path, list[SlideLocalization]] = {}
    with exclusive(run, purpose="run"):
        for done, card in enumerate(cards, start=1):
            measured[card.parent] = _measure_model_localization(card.parent, located, device)
            progress("localising", done, len(cards))
        rows = [row for found in measured.values() for row in found]
        if not any(row.has_both_labels for row in rows):
            raise RunError(
                f"{index.location}: no bag of a test slide has both positive and negative instance "
                "labels; expected bags with labels, see Bag.labels. The run is unchanged"
            )
        for folder, found in measured.items():
            if found:
                write_localization(folder / LOCALIZATION_FILE, found)
        rows.sort(key=lambda row: (row.model, row.seed, row.fold))
        write_localization(run / LOCALIZATION_FILE, rows)


def _make_test_cohort(predictions: Predictions) -> Cohort:
    """Return the distinct test slides of a run."""
    test = predictions.select(predictions.split == "test")
    labels = test.label.tolist() if test.classes else map(tuple, test.targets.tolist())
    rows = zip(test.slide_id.tolist(), test.patient_id.tolist(), labels, strict=True)
    slides = {slide_id: LabeledSlide(slide_id, *row) for slide_id, *row in rows}
    return Cohort(tuple(slides.values()), task=from_card(predictions.task))


def _measure_model_localization(
    folder: Path, bags: Mapping[str, Path], device: str
) -> list[SlideLocalization]:
    from sacmil.models import load_model, predict

    model = load_model(folder).to(select_device(device))
    predictions = read_predictions(folder)
    test = predictions.select(predictions.split == "test")
    task, found = from_card(predictions.task), []
    for row, slide_id in enumerate(test.slide_id.tolist()):
        bag = read_bag(bags[slide_id])
        column = task.find_true_column(test.targets[row].tolist())
        if bag.labels is None or column is None:
            continue
        predicted = predict(model, bag)
        before, now = float(test.values[row, -1]), float(predicted.values[-1])
        if abs(now - before) > _TOLERANCE * max(1.0, abs(before)):
            raise RunError(
                f"{bags[slide_id]}: {folder} now predicts {now:.3f}, the run has {before:.3f}; "
                "expected the bags that the run was tested on, with the same features"
            )
        job = (int(test.fold[row]), int(test.seed[row]), str(test.model[row]))
        keys = (slide_id, str(test.patient_id[row]), *job)
        found.append(_measure_slide(predicted, bag.labels, column, keys))
    return found


def _measure_slide(
    prediction: Prediction,
    labels: npt.NDArray[np.integer],
    label: int,
    keys: tuple[str, str, int, int, str],
) -> SlideLocalization:
    """Measure how well the scores for a slide's class match its instance labels."""
    # a single output scores instances for class 1 only, whatever the slide is
    by_class = prediction.class_scores is not None
    scores = prediction.scores_for(label) if by_class else prediction.scores
    return measure_slide_localization(keys, scores, labels)
