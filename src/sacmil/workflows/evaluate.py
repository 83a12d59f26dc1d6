"""Models on another cohort, and the predictions of several runs side by side."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from sacmil.bag import Bag
from sacmil.card import CARD_FILE, anonymized_id, find_model_folders, read_card
from sacmil.cohorts.bags import describe_slide_mismatch
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.environment import select_device
from sacmil.errors import CohortWarning, InputError, RunError, SacMILError
from sacmil.evaluation.localization import measure_slide_localization
from sacmil.formats import read_bag
from sacmil.results import (
    LOCALIZATION_FILE,
    PREDICTIONS_FILE,
    Prediction,
    Predictions,
    SlideLocalization,
    read_localization,
    read_predictions,
)
from sacmil.results.prediction import select_class_scores
from sacmil.workflows.ensemble import ONNX_FILE
from sacmil.workflows.input_requirements import InputRequirements

if TYPE_CHECKING:
    from sacmil.models import MILModel

Floats = npt.NDArray[np.float64]
ProgressCallback = Callable[[str, int, int], None]


class EvaluationFailure(NamedTuple):
    """A slide that a model could not answer."""

    slide_id: str
    model: str
    """Empty where no model could: the bag itself cannot be read."""
    reason: str


class Evaluation(NamedTuple):
    """What became of models on a cohort."""

    predictions: Predictions
    """One test part, fold 0 and seed 0; a slide that failed has no row."""
    failures: list[EvaluationFailure]
    localization: list[SlideLocalization]
    """A row per model and slide with instance labels: the mean over the model's parts."""
    warnings: list[str]
    """Why figures may mislead; each is also a CohortWarning."""


@dataclass
class _EvaluatedModel:
    """One of the models, and its parts."""

    name: str
    members: list[MILModel]
    class_columns: list[list[int]]
    """Of each part: which of its classes is the cohort's first, second, …"""
    requirements: InputRequirements
    """Which bags it can answer."""


@dataclass
class _PartialEvaluation:
    """What has become of the slides so far."""

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
    progress: ProgressCallback = lambda task, done, total: None,
) -> Evaluation:
    """Answer every slide of a cohort with every model; one bad bag does not stop the others.

    Args:
        models: model folders, or runs, which mean the mean over their parts.
        cohort: what is true; its classes must be among those of the models, in any order.
        bags: a file per slide id.
        device: cpu, cuda:0, …
        progress: called with (task, done, of how many).
    """
    named = _load_models(models)
    cohort = _add_missing_classes(cohort, named[0][1][0])
    contestants = [
        _prepare_model(name, parts, cohort, device, needs)
        for (name, parts), needs in zip(named, map(_read_requirements, models), strict=True)
    ]
    doubts = [doubt for path in models if (doubt := _describe_known_slides(path, cohort))]
    doubts += _describe_missing_classes(cohort)
    for doubt in doubts:
        warnings.warn(doubt, CohortWarning, stacklevel=2)
    record = _PartialEvaluation()
    for done, slide in enumerate(cohort.slides, start=1):
        _evaluate_slide(contestants, slide, bags, record)
        progress("evaluating", done, len(cohort.slides))
    predictions = Predictions.from_rows(cohort.classes, record.rows, record.probabilities)
    return Evaluation(predictions, record.failures, record.localization, doubts)


def read_runs(paths: Sequence[Path]) -> Predictions:
    """The predictions of several runs, with names by which every model can be told from others.

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
    """The localisation of several runs, with the model names of read_runs; empty if they have none.

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
    """The run a file is of; a file that is not called as a run's is named after itself."""
    if path.is_file():
        return path.parent if path.name == PREDICTIONS_FILE else path.with_suffix("")
    return path


def read_run_settings(paths: Sequence[Path]) -> dict[str, str]:
    """Settings and versions that runs or models were made with, as their files tell them."""
    told = {}
    for path in paths:
        folder = path.parent if path.is_file() else path
        for file in (folder / name for name in _SETTINGS_FILES):
            if file.is_file():
                told[str(file)] = file.read_text(encoding="utf-8", errors="replace")
    return told


_SETTINGS_FILES = ("config.yaml", "provenance.json", CARD_FILE)


def make_distinct_names(models: Sequence[tuple[Path, str]]) -> list[str]:
    """Names of models; those that several folders share get as much of the folder as it takes.

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
    twice = next(str(folder) for folder, name in models if counted[name] > 1)
    raise RunError(f"{twice}: is given twice; expected every run or model once")


def _prefix_folder(parts: tuple[str, ...], name: str) -> str:
    """A part of a run lies in a folder called like its model, which need not be said twice."""
    return "/".join(parts if parts and parts[-1] == name else (*parts, name))


def reorder_classes(predictions: Predictions, classes: tuple[str, ...]) -> Predictions:
    """The same predictions with their classes in another order."""
    if set(predictions.classes) != set(classes):
        raise RunError(
            f"runs of different classes cannot be put side by side: {', '.join(classes)}; and "
            f"{', '.join(predictions.classes)}"
        )
    columns = [predictions.classes.index(name) for name in classes]
    place = np.argsort(columns)
    return replace(
        predictions,
        classes=classes,
        label=place[predictions.label],
        probabilities=predictions.probabilities[:, columns],
    )


def _rename_models(
    predictions: Predictions, folder: Path, names: Mapping[tuple[Path, str], str]
) -> Predictions:
    renamed = [names[folder, str(model)] for model in predictions.model]
    return replace(predictions, model=np.array(renamed, dtype=np.str_))


# --- models --------------------------------------------------------------------------------------


def _load_models(models: Sequence[Path]) -> list[tuple[str, list[MILModel]]]:
    from sacmil.models import load_model

    for path in models:
        _check_not_exported(path)
    parts = [[load_model(folder) for folder in find_model_folders(path)] for path in models]
    found = [(path, each[0].name) for path, each in zip(models, parts, strict=True)]
    return list(zip(make_distinct_names(found), parts, strict=True))


def _check_not_exported(path: Path) -> None:
    if any((folder / ONNX_FILE).is_file() for folder in find_model_folders(path)):
        raise RunError(
            f"{path}: is an exported model, which `sacmil predict` asks; expected the folder it "
            "was exported from"
        )


def _read_requirements(path: Path) -> InputRequirements:
    cards = {str(folder): read_card(folder) for folder in find_model_folders(path)}
    return InputRequirements.merge(
        {name: InputRequirements.from_card(card, name) for name, card in cards.items()}
    )


def _prepare_model(
    name: str, members: list[MILModel], cohort: Cohort, device: str, requirements: InputRequirements
) -> _EvaluatedModel:
    columns = [_match_classes(name, part, cohort.classes) for part in members]
    placed = [part.to(select_device(device)) for part in members]
    return _EvaluatedModel(name, placed, columns, requirements)


def _add_missing_classes(cohort: Cohort, model: MILModel) -> Cohort:
    """With the classes of which the table has no slide, too, where the model names them."""
    known = model.classes or ()
    if not set(cohort.classes) < set(known):
        return cohort
    place = [known.index(name) for name in cohort.classes]
    slides = tuple(slide._replace(label=place[slide.label]) for slide in cohort.slides)
    return Cohort(slides, known)


def _describe_missing_classes(cohort: Cohort) -> list[str]:
    counted = zip(cohort.classes, cohort.patients_per_class, strict=True)
    missing = [name for name, count in counted if not count]
    if not missing:
        return []
    one_left = len(missing) == len(cohort.classes) - 1
    told = "AUC, which compares classes, is not defined" if one_left else "AUC is of the others"
    return [f"the table has no slide of {', '.join(missing)}; {told}"]


def _match_classes(name: str, model: MILModel, classes: tuple[str, ...]) -> list[int]:
    """Which output of the model speaks of each class of the table."""
    if len(classes) < 2 and len(model.classes or ()) < 2:
        raise RunError(
            f"{name}: the table has the class {', '.join(classes)} alone, and the card does not "
            "say what stands against it; name both by --classes"
        )
    known = _resolve_classes(name, model, classes)
    if set(known) != set(classes):
        raise RunError(
            f"{name}: knows the classes {', '.join(model.classes or known)}; the table has "
            f"{', '.join(classes)}; expected the same names, rename them in the table"
        )
    return [known.index(each) for each in classes]


def _resolve_classes(name: str, model: MILModel, classes: tuple[str, ...]) -> tuple[str, ...]:
    outputs = max(2, model.num_classes)  # a single output speaks of class 1 and so of class 0
    if model.classes is None:
        if outputs != len(classes):
            raise RunError(
                f"{name}: has {outputs} classes, which its card does not name; the table has "
                f"{len(classes)}: {', '.join(classes)}"
            )
        warnings.warn(
            f"{name}: its card does not name its classes; they are taken for {', '.join(classes)}, "
            "in this order",
            CohortWarning,
            stacklevel=2,
        )
        return classes
    if len(model.classes) == 1:
        others = [each for each in classes if each != model.classes[0]]
        return (*others, *model.classes) if len(others) == 1 else model.classes
    return model.classes


def _describe_known_slides(path: Path, cohort: Cohort) -> str:
    """A model has seen the slides it was made from: the sentence that says so, if there are any."""
    cards = [read_card(folder)["notes"] for folder in find_model_folders(path)]
    seen = {mark for notes in cards for mark in notes.get("training", {}).get("seen", ())}
    known = [slide for slide in cohort.slides if _anonymize_slide(slide) & seen]
    if not known:
        return ""
    return (
        f"{path}: {len(known)} of the {len(cohort.slides)} slides in the table, or other slides of "
        f"their patients, are those it was made from, such as {known[0].slide_id}; what it says of "
        "them is no test"
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
    """Put one slide to every model."""
    try:
        bag = read_bag(bags[slide.slide_id])
    except KeyError:
        return record.add_failure(slide, f"{slide.slide_id}: has no bag")
    except (SacMILError, OSError) as error:
        return record.add_failure(slide, error)
    if wrong := describe_slide_mismatch(bags[slide.slide_id], slide.slide_id, bag.slide_id):
        return record.add_failure(slide, wrong)
    for contestant in models:
        try:
            answer, localised = _predict_with_model(contestant, slide, bag)
        except SacMILError as error:
            record.add_failure(slide, error, contestant.name)
            continue
        record.rows.append((*slide[:2], "test", 0, 0, contestant.name, slide.label))
        record.probabilities.append(answer)
        record.localization += localised
    return None


def _predict_with_model(
    model: _EvaluatedModel, slide: LabeledSlide, bag: Bag
) -> tuple[Floats, list[SlideLocalization]]:
    """The mean over a model's parts, and how well their scores localise, if labels are known."""
    from sacmil.models import predict

    if wrong := model.requirements.check(bag).problems:
        raise InputError(
            f"{slide.slide_id}: {'; '.join(wrong)}; {model.requirements.extraction_hint()}"
        )
    said = [predict(part, bag) for part in model.members]
    pairs = zip(said, model.class_columns, strict=True)
    answer = np.mean([_to_class_probabilities(one)[columns] for one, columns in pairs], axis=0)
    if not np.isfinite(answer).all():
        raise RunError(f"{slide.slide_id}: its probabilities are not finite; expected numbers")
    localised = (
        [] if bag.labels is None else [_measure_localization(model, slide, bag.labels, said)]
    )
    return np.asarray(answer, dtype=np.float64), localised


def _to_class_probabilities(prediction: Prediction) -> Floats:
    """One per class; a single output is the probability of class 1."""
    p = prediction.probabilities
    return np.array([1 - p[0], p[0]]) if len(p) == 1 else p


def _measure_localization(
    model: _EvaluatedModel,
    slide: LabeledSlide,
    labels: npt.NDArray[np.integer],
    predictions: Sequence[Prediction],
) -> SlideLocalization:
    """The mean over a model's parts; their class scores may stand in different orders."""
    found = [
        measure_slide_localization(
            slide.slide_id,
            select_class_scores(one.scores, one.class_scores, columns[slide.label]),
            labels,
        )
        for one, columns in zip(predictions, model.class_columns, strict=True)
    ]
    means = (float(np.mean([one[column] for one in found])) for column in (2, 3))
    return SlideLocalization(*slide[:2], 0, 0, model.name, *found[0][:2], *means)
