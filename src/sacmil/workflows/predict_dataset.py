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
from sacmil.formats import read_bag
from sacmil.results import (
    LOCALIZATION_FILE,
    Prediction,
    Predictions,
    SlideLocalization,
    read_predictions,
    write_localization,
)
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


def predict_dataset(
    models: Sequence[Path], dataset: Dataset, device: str, on_progress: ProgressCallback
) -> dict[str, Any]:
    """Predict every slide of a dataset with every model; a bad bag does not stop the others.

    Args:
        models: model folders, exported models, or runs, each the mean of its models.
        dataset: its classes must be among those of the models, in any order.
        device: auto, cpu, cuda:0, …
        on_progress: called with (task, done, total).

    Returns:
        The predictions, localization, failures and warnings of an Evaluation.
    """
    loaded = _load_models(models, device)
    cohort = _add_missing_classes(dataset.cohort, loaded[0].card)
    columns = [_match_classes(one, cohort.classes) for one in loaded]
    needs = [InputRequirements.from_ensembles([one]) for one in loaded]
    prepared = list(map(_EvaluatedModel, loaded, columns, needs))
    texts = [text for one in loaded if (text := _describe_known_slides(one, cohort))]
    texts += _describe_missing_classes(cohort)
    for text in texts:
        warnings.warn(text, CohortWarning, stacklevel=3)
    record = _PartialEvaluation()
    for done, slide in enumerate(cohort.slides, start=1):
        _evaluate_slide(prepared, slide, dataset.bags[slide.slide_id], record)
        on_progress("evaluating", done, len(cohort.slides))
    predictions = Predictions.from_rows(cohort.classes, record.rows, record.probabilities)
    found = {"localization": record.localization, "failures": record.failures}
    return {"predictions": predictions, "warnings": texts, **found}


# --- models --------------------------------------------------------------------------------------


def _load_models(paths: Sequence[Path], device: str) -> list[LoadedModel]:
    """Load the models, with distinct names."""
    loaded = [load_ensemble(path, device=device) for path in paths]
    names = make_distinct_names([(one.path, one.card.model) for one in loaded])
    for one, name in zip(loaded, names, strict=True):
        one.name = name
    return loaded


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
            probabilities, localization = _predict_with_model(model, slide, bag)
        except SacMILError as error:
            record.add_failure(slide, error, model.ensemble.name)
            continue
        record.rows.append((*slide[:2], "test", 0, 0, model.ensemble.name, slide.label))
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
    keys = (slide.slide_id, slide.patient_id, 0, 0, model.ensemble.name)
    label = model.class_columns[slide.label]
    return probabilities, [_measure_slide(prediction, bag.labels, label, keys)]


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
    columns = (test.slide_id.tolist(), test.patient_id.tolist(), test.label.tolist())
    slides = dict.fromkeys(LabeledSlide(*row) for row in zip(*columns, strict=True))
    return Cohort(tuple(slides), predictions.classes)


def _measure_model_localization(
    folder: Path, bags: Mapping[str, Path], device: str
) -> list[SlideLocalization]:
    from sacmil.models import load_model, predict

    model = load_model(folder).to(select_device(device))
    predictions = read_predictions(folder)
    test = predictions.select(predictions.split == "test")
    found = []
    for row, slide_id in enumerate(test.slide_id.tolist()):
        bag = read_bag(bags[slide_id])
        if bag.labels is None:
            continue
        predicted = predict(model, bag)
        if abs(predicted.probabilities[-1] - test.probabilities[row, -1]) > _TOLERANCE:
            raise RunError(
                f"{bags[slide_id]}: {folder} now predicts {predicted.probabilities[-1]:.3f}, the "
                f"run has {test.probabilities[row, -1]:.3f}; expected the bags that the run was "
                "tested on, with the same features"
            )
        job = (int(test.fold[row]), int(test.seed[row]), str(test.model[row]))
        keys = (slide_id, str(test.patient_id[row]), *job)
        found.append(_measure_slide(predicted, bag.labels, int(test.label[row]), keys))
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
