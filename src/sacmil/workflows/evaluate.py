"""Evaluates models on another cohort, and reads the predictions of several runs."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.bag import Bag
from sacmil.card import CARD_FILE, Card, anonymized_id
from sacmil.cohorts.bags import describe_slide_mismatch
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.deploy.load import LoadedModel, load_ensemble
from sacmil.errors import CohortWarning, InputError, RunError, SacMILError
from sacmil.evaluation.localization import measure_slide_localization
from sacmil.formats import read_bag
from sacmil.progress import ProgressCallback, ignore_progress
from sacmil.results import (
    LOCALIZATION_FILE,
    PREDICTIONS_FILE,
    Predictions,
    SlideLocalization,
    read_localization,
    read_predictions,
)
from sacmil.workflows.input_requirements import InputRequirements

Floats = npt.NDArray[np.float64]


class EvaluationFailure(NamedTuple):
    """A slide that a model could not predict."""

    slide_id: str
    model: str
    """Empty if the bag cannot be read, so no model could."""
    reason: str


class Evaluation(NamedTuple):
    """Results of models on a cohort."""

    predictions: Predictions
    """One test set, fold 0 and seed 0; a slide that failed has no row."""
    failures: list[EvaluationFailure]
    localization: list[SlideLocalization]
    """A row per model and slide with instance labels, of the ensemble's scores."""
    warnings: list[str]
    """Reasons why metrics may mislead; each is also a CohortWarning."""


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


def evaluate_models(
    models: Sequence[Path],
    cohort: Cohort,
    bags: Mapping[str, Path],
    *,
    device: str = "cpu",
    progress: ProgressCallback = ignore_progress,
) -> Evaluation:
    """Predict every slide of a cohort with every model; a bad bag does not stop the others.

    Args:
        models: model folders, exported models, or runs, each the mean of its models.
        cohort: slides and labels; its classes must be among those of the models, in any order.
        bags: file by slide id.
        device: cpu, cuda:0, …
        progress: called with (task, done, total).
    """
    named = _load_models(models, device)
    cohort = _add_missing_classes(cohort, named[0][1].members[0].card)
    prepared = [
        _EvaluatedModel(
            name, one, _match_classes(name, one, cohort.classes), _merge_requirements(one)
        )
        for name, one in named
    ]
    texts = [text for _, one in named if (text := _describe_known_slides(one, cohort))]
    texts += _describe_missing_classes(cohort)
    for text in texts:
        warnings.warn(text, CohortWarning, stacklevel=2)
    record = _PartialEvaluation()
    for done, slide in enumerate(cohort.slides, start=1):
        _evaluate_slide(prepared, slide, bags, record)
        progress("evaluating", done, len(cohort.slides))
    predictions = Predictions.from_rows(cohort.classes, record.rows, record.probabilities)
    return Evaluation(predictions, record.failures, record.localization, texts)


def read_runs(paths: Sequence[Path]) -> Predictions:
    """Read the predictions of several runs, with a distinct name for every model.

    Args:
        paths: run folders or files like predictions.csv; their classes must have the same names.
    """
    found = [read_predictions(path) for path in paths]
    folders = [_find_run_folder(path) for path in paths]
    names = _make_distinct_models(folders, found)
    first = found[0].classes
    return Predictions.concatenate(
        _rename_models(reorder_classes(predictions, first), folder, names)
        for folder, predictions in zip(folders, found, strict=True)
    )


def read_run_localization(paths: Sequence[Path]) -> list[SlideLocalization]:
    """Read the localisation of several runs, with the model names of read_runs; empty if none.

    Args:
        paths: run folders, or predictions.csv of run folders.
    """
    folders = [_find_run_folder(path) for path in paths]
    names = _make_distinct_models(folders, [read_predictions(path) for path in paths])
    return [
        row._replace(model=names[folder, row.model])
        for folder in folders
        for row in read_localization(folder / LOCALIZATION_FILE)
        if (folder, row.model) in names
    ]


def _make_distinct_models(
    folders: Sequence[Path], runs: Sequence[Predictions]
) -> dict[tuple[Path, str], str]:
    models = [
        (folder, str(model))
        for folder, predictions in zip(folders, runs, strict=True)
        for model in np.unique(predictions.model)
    ]
    return dict(zip(models, make_distinct_names(models), strict=True))


def _find_run_folder(path: Path) -> Path:
    """Return the run folder of a file; another file's path without suffix serves as one."""
    if path.is_file():
        return path.parent if path.name == PREDICTIONS_FILE else path.with_suffix("")
    return path


def read_run_settings(paths: Sequence[Path]) -> dict[str, str]:
    """Return the text of the files with settings and versions of runs or models, by path."""
    texts = {}
    for path in paths:
        folder = path.parent if path.is_file() else path
        for file in (folder / name for name in _SETTINGS_FILES):
            if file.is_file():
                texts[str(file)] = file.read_text(encoding="utf-8", errors="replace")
    return texts


_SETTINGS_FILES = ("config.yaml", "provenance.json", CARD_FILE)


def make_distinct_names(models: Sequence[tuple[Path, str]]) -> list[str]:
    """Return distinct names of models; equal names get as much of their folder as needed.

    >>> make_distinct_names([(Path("a"), "abmil"), (Path("b"), "abmil"), (Path("b"), "dsmil")])
    ['a/abmil', 'b/abmil', 'dsmil']
    """
    counted = Counter(name for _, name in models)
    folders = [folder.resolve().parts for folder, _ in models]
    for depth in range(max(map(len, folders), default=0) + 1):
        names = [
            _prefix_folder(parts[len(parts) - depth :], name) if counted[name] > 1 else name
            for parts, (_, name) in zip(folders, models, strict=True)
        ]
        if len(set(names)) == len(names):
            return names
    duplicate = next(str(folder) for folder, name in models if counted[name] > 1)
    raise RunError(f"{duplicate}: is given twice; expected every run or model once")


def _prefix_folder(parts: tuple[str, ...], name: str) -> str:
    """Join folder and name, without repeating a folder that is named like the model."""
    return "/".join(parts if parts and parts[-1] == name else (*parts, name))


def reorder_classes(predictions: Predictions, classes: tuple[str, ...]) -> Predictions:
    """Return the predictions with their classes in another order."""
    if set(predictions.classes) != set(classes):
        raise RunError(
            f"the runs have different classes: {', '.join(classes)}; and "
            f"{', '.join(predictions.classes)}; expected runs of the same classes"
        )
    columns = [predictions.classes.index(name) for name in classes]
    new_labels = np.argsort(columns)
    return replace(
        predictions,
        classes=classes,
        label=new_labels[predictions.label],
        probabilities=predictions.probabilities[:, columns],
    )


def _rename_models(
    predictions: Predictions, folder: Path, names: Mapping[tuple[Path, str], str]
) -> Predictions:
    renamed = [names[folder, str(model)] for model in predictions.model]
    return replace(predictions, model=np.array(renamed, dtype=np.str_))


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
    bags: Mapping[str, Path],
    record: _PartialEvaluation,
) -> None:
    """Predict one slide with every model, and add the results to the record."""
    try:
        bag = read_bag(bags[slide.slide_id])
    except KeyError:
        return record.add_failure(slide, f"{slide.slide_id}: has no bag")
    except (SacMILError, OSError) as error:
        return record.add_failure(slide, error)
    if wrong := describe_slide_mismatch(bags[slide.slide_id], slide.slide_id, bag.slide_id):
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
