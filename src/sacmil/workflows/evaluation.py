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
from sacmil.card import CARD, model_folders, read_card, seen_mark
from sacmil.cohorts.bags import other_slide
from sacmil.cohorts.table import Cohort, LabelledSlide
from sacmil.errors import CohortWarning, InputError, RunError, SacMILError
from sacmil.evaluation.localisation import measure_slide
from sacmil.formats import read_bag
from sacmil.installation import usable_device
from sacmil.results import (
    LOCALISATION,
    PREDICTIONS,
    Prediction,
    Predictions,
    SlideLocalisation,
    read_localisation,
    read_predictions,
)
from sacmil.results.prediction import scores_of_class
from sacmil.workflows.bag_needs import BagNeeds
from sacmil.workflows.ensemble import GRAPH

if TYPE_CHECKING:
    from sacmil.models import MILModel

Floats = npt.NDArray[np.float64]
Progress = Callable[[str, int, int], None]


class Failure(NamedTuple):
    """A slide that a model could not answer."""

    slide_id: str
    model: str
    """Empty where no model could: the bag itself cannot be read."""
    reason: str


class Evaluation(NamedTuple):
    """What became of models on a cohort."""

    predictions: Predictions
    """One test part, fold 0 and seed 0; a slide that failed has no row."""
    failures: list[Failure]
    localisation: list[SlideLocalisation]
    """A row per model and slide with instance labels: the mean over the model's parts."""
    doubts: list[str]
    """Why figures may mislead; each is also a CohortWarning."""


@dataclass
class _Contestant:
    """One of the models, and its parts."""

    name: str
    parts: list[MILModel]
    columns: list[list[int]]
    """Of each part: which of its classes is the cohort's first, second, …"""
    needs: BagNeeds
    """Which bags it can answer."""


@dataclass
class _Record:
    """What has become of the slides so far."""

    rows: list[tuple[Any, ...]] = field(default_factory=list)
    answers: list[Floats] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    localisation: list[SlideLocalisation] = field(default_factory=list)

    def fail(self, slide: LabelledSlide, reason: object, model: str = "") -> None:
        text = f"{model}: {reason}" if model else str(reason)
        self.failures.append(Failure(slide.slide_id, model, text))


def evaluate_models(
    models: Sequence[Path],
    cohort: Cohort,
    bags: Mapping[str, Path],
    *,
    device: str = "cpu",
    progress: Progress = lambda task, done, total: None,
) -> Evaluation:
    """Answer every slide of a cohort with every model; one bad bag does not stop the others.

    Args:
        models: model folders, or runs, which mean the mean over their parts.
        cohort: what is true; its classes must be among those of the models, in any order.
        bags: a file per slide id.
        device: cpu, cuda:0, …
        progress: called with (task, done, of how many).
    """
    named = _named(models)
    cohort = _in_all_classes(cohort, named[0][1][0])
    contestants = [
        _contestant(name, parts, cohort, device, needs)
        for (name, parts), needs in zip(named, map(_needs, models), strict=True)
    ]
    doubts = [doubt for path in models if (doubt := _known_slides(path, cohort))]
    doubts += _missing_classes(cohort)
    for doubt in doubts:
        warnings.warn(doubt, CohortWarning, stacklevel=2)
    record = _Record()
    for done, slide in enumerate(cohort.slides, start=1):
        _ask(contestants, slide, bags, record)
        progress("evaluating", done, len(cohort.slides))
    predictions = Predictions.of(cohort.classes, record.rows, record.answers)
    return Evaluation(predictions, record.failures, record.localisation, doubts)


def read_runs(paths: Sequence[Path]) -> Predictions:
    """The predictions of several runs, with names by which every model can be told from others.

    Args:
        paths: run folders or files like predictions.csv; their classes must have the same names.
    """
    found = [read_predictions(path) for path in paths]
    folders = [_named_after(path) for path in paths]
    names = _distinct_models(folders, found)
    first = found[0].classes
    return Predictions.joined(
        _renamed(in_classes(predictions, first), folder, names)
        for folder, predictions in zip(folders, found, strict=True)
    )


def read_run_localisation(paths: Sequence[Path]) -> list[SlideLocalisation]:
    """The localisation of several runs, with the model names of read_runs; empty if they have none.

    Args:
        paths: run folders, or predictions.csv of run folders.
    """
    folders = [_named_after(path) for path in paths]
    names = _distinct_models(folders, [read_predictions(path) for path in paths])
    return [
        row._replace(model=names[folder, row.model])
        for folder in folders
        for row in read_localisation(folder / LOCALISATION)
        if (folder, row.model) in names
    ]


def _distinct_models(
    folders: Sequence[Path], found: Sequence[Predictions]
) -> dict[tuple[Path, str], str]:
    models = [
        (folder, str(model))
        for folder, predictions in zip(folders, found, strict=True)
        for model in np.unique(predictions.model)
    ]
    return dict(zip(models, distinct_names(models), strict=True))


def _named_after(path: Path) -> Path:
    """The run a file is of; a file that is not called as a run's is named after itself."""
    if path.is_file():
        return path.parent if path.name == PREDICTIONS else path.with_suffix("")
    return path


def what_was_asked(paths: Sequence[Path]) -> dict[str, str]:
    """Settings and versions that runs or models were made with, as their files tell them."""
    told = {}
    for path in paths:
        folder = path.parent if path.is_file() else path
        for file in (folder / name for name in _ASKED):
            if file.is_file():
                told[str(file)] = file.read_text(encoding="utf-8", errors="replace")
    return told


_ASKED = ("config.yaml", "provenance.json", CARD)


def distinct_names(found: Sequence[tuple[Path, str]]) -> list[str]:
    """Names of models; those that several folders share get as much of the folder as it takes.

    >>> distinct_names([(Path("a"), "abmil"), (Path("b"), "abmil"), (Path("b"), "dsmil")])
    ['a/abmil', 'b/abmil', 'dsmil']
    """
    counted = Counter(name for _, name in found)
    folders = [folder.resolve().parts for folder, _ in found]
    for depth in range(max(map(len, folders), default=0) + 1):
        names = [
            _with_folder(parts[len(parts) - depth :], name) if counted[name] > 1 else name
            for parts, (_, name) in zip(folders, found, strict=True)
        ]
        if len(set(names)) == len(names):
            return names
    twice = next(str(folder) for folder, name in found if counted[name] > 1)
    raise RunError(f"{twice}: is given twice; expected every run or model once")


def _with_folder(parts: tuple[str, ...], name: str) -> str:
    """A part of a run lies in a folder called like its model, which need not be said twice."""
    return "/".join(parts if parts and parts[-1] == name else (*parts, name))


def in_classes(predictions: Predictions, classes: tuple[str, ...]) -> Predictions:
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


def _renamed(
    predictions: Predictions, folder: Path, names: Mapping[tuple[Path, str], str]
) -> Predictions:
    renamed = [names[folder, str(model)] for model in predictions.model]
    return replace(predictions, model=np.array(renamed, dtype=np.str_))


# --- models --------------------------------------------------------------------------------------


def _named(models: Sequence[Path]) -> list[tuple[str, list[MILModel]]]:
    from sacmil.models import load_model

    for path in models:
        _check_not_exported(path)
    parts = [[load_model(folder) for folder in model_folders(path)] for path in models]
    found = [(path, each[0].name) for path, each in zip(models, parts, strict=True)]
    return list(zip(distinct_names(found), parts, strict=True))


def _check_not_exported(path: Path) -> None:
    if any((folder / GRAPH).is_file() for folder in model_folders(path)):
        raise RunError(
            f"{path}: is an exported model, which `sacmil predict` asks; expected the folder it "
            "was exported from"
        )


def _needs(path: Path) -> BagNeeds:
    cards = {str(folder): read_card(folder) for folder in model_folders(path)}
    return BagNeeds.joined({name: BagNeeds.of(card, name) for name, card in cards.items()})


def _contestant(
    name: str, parts: list[MILModel], cohort: Cohort, device: str, needs: BagNeeds
) -> _Contestant:
    columns = [_columns(name, part, cohort.classes) for part in parts]
    placed = [part.to(usable_device(device)) for part in parts]
    return _Contestant(name, placed, columns, needs)


def _in_all_classes(cohort: Cohort, model: MILModel) -> Cohort:
    """With the classes of which the table has no slide, too, where the model names them."""
    known = model.classes or ()
    if not set(cohort.classes) < set(known):
        return cohort
    place = [known.index(name) for name in cohort.classes]
    slides = tuple(slide._replace(label=place[slide.label]) for slide in cohort.slides)
    return Cohort(slides, known)


def _missing_classes(cohort: Cohort) -> list[str]:
    counted = zip(cohort.classes, cohort.patients_per_class, strict=True)
    missing = [name for name, count in counted if not count]
    if not missing:
        return []
    one_left = len(missing) == len(cohort.classes) - 1
    told = "AUC, which compares classes, is not defined" if one_left else "AUC is of the others"
    return [f"the table has no slide of {', '.join(missing)}; {told}"]


def _columns(name: str, model: MILModel, classes: tuple[str, ...]) -> list[int]:
    """Which output of the model speaks of each class of the table."""
    if len(classes) < 2 and len(model.classes or ()) < 2:
        raise RunError(
            f"{name}: the table has the class {', '.join(classes)} alone, and the card does not "
            "say what stands against it; name both by --classes"
        )
    known = _known_classes(name, model, classes)
    if set(known) != set(classes):
        raise RunError(
            f"{name}: knows the classes {', '.join(model.classes or known)}; the table has "
            f"{', '.join(classes)}; expected the same names, rename them in the table"
        )
    return [known.index(each) for each in classes]


def _known_classes(name: str, model: MILModel, classes: tuple[str, ...]) -> tuple[str, ...]:
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


def _known_slides(path: Path, cohort: Cohort) -> str:
    """A model has seen the slides it was made from: the sentence that says so, if there are any."""
    cards = [read_card(folder)["notes"] for folder in model_folders(path)]
    seen = {mark for notes in cards for mark in notes.get("training", {}).get("seen", ())}
    known = [slide for slide in cohort.slides if _marks(slide) & seen]
    if not known:
        return ""
    return (
        f"{path}: {len(known)} of the {len(cohort.slides)} slides in the table, or other slides of "
        f"their patients, are those it was made from, such as {known[0].slide_id}; what it says of "
        "them is no test"
    )


def _marks(slide: LabelledSlide) -> set[str]:
    return {seen_mark("slide", slide.slide_id), seen_mark("patient", slide.patient_id)}


# --- slides --------------------------------------------------------------------------------------


def _ask(
    contestants: Sequence[_Contestant],
    slide: LabelledSlide,
    bags: Mapping[str, Path],
    record: _Record,
) -> None:
    """Put one slide to every model."""
    try:
        bag = read_bag(bags[slide.slide_id])
    except KeyError:
        return record.fail(slide, f"{slide.slide_id}: has no bag")
    except (SacMILError, OSError) as error:
        return record.fail(slide, error)
    if wrong := other_slide(bags[slide.slide_id], slide.slide_id, bag.slide_id):
        return record.fail(slide, wrong)
    for contestant in contestants:
        try:
            answer, localised = _answer(contestant, slide, bag)
        except SacMILError as error:
            record.fail(slide, error, contestant.name)
            continue
        record.rows.append((*slide[:2], "test", 0, 0, contestant.name, slide.label))
        record.answers.append(answer)
        record.localisation += localised
    return None


def _answer(
    contestant: _Contestant, slide: LabelledSlide, bag: Bag
) -> tuple[Floats, list[SlideLocalisation]]:
    """The mean over a model's parts, and how well their scores localise, if labels are known."""
    from sacmil.models import predict

    if wrong := contestant.needs.check(bag).wrong:
        raise InputError(f"{slide.slide_id}: {'; '.join(wrong)}; {contestant.needs.made_anew()}")
    said = [predict(part, bag) for part in contestant.parts]
    pairs = zip(said, contestant.columns, strict=True)
    answer = np.mean([_probabilities(one)[columns] for one, columns in pairs], axis=0)
    if not np.isfinite(answer).all():
        raise RunError(f"{slide.slide_id}: its probabilities are not finite; expected numbers")
    localised = [] if bag.labels is None else [_localise(contestant, slide, bag.labels, said)]
    return np.asarray(answer, dtype=np.float64), localised


def _probabilities(prediction: Prediction) -> Floats:
    """One per class; a single output is the probability of class 1."""
    p = prediction.probabilities
    return np.array([1 - p[0], p[0]]) if len(p) == 1 else p


def _localise(
    contestant: _Contestant,
    slide: LabelledSlide,
    labels: npt.NDArray[np.integer],
    predictions: Sequence[Prediction],
) -> SlideLocalisation:
    """The mean over a model's parts; their class scores may stand in different orders."""
    found = [
        measure_slide(
            slide.slide_id,
            scores_of_class(one.scores, one.class_scores, columns[slide.label]),
            labels,
        )
        for one, columns in zip(predictions, contestant.columns, strict=True)
    ]
    means = (float(np.mean([one[column] for one in found])) for column in (2, 3))
    return SlideLocalisation(*slide[:2], 0, 0, contestant.name, *found[0][:2], *means)
