"""Measures localisation of a finished run whose bags got instance labels later."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sacmil.atomic import exclusive
from sacmil.card import CARD_FILE
from sacmil.cohorts.bags import BagIndex, Folders
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.cohorts.dataset import Dataset
from sacmil.environment import select_device
from sacmil.errors import RunError
from sacmil.evaluation.localization import measure_slide_localization
from sacmil.formats import read_bag
from sacmil.progress import ProgressCallback, ignore_progress
from sacmil.results import (
    LOCALIZATION_FILE,
    Predictions,
    SlideLocalization,
    read_predictions,
    write_localization,
)

_TOLERANCE = 0.02
"""Maximum difference of probabilities due to another device or precision."""


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
    cards = (
        [run / CARD_FILE]
        if (run / CARD_FILE).is_file()
        else sorted(run.glob("*/seed_*/fold_*/" + CARD_FILE))
    )
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
        by_class = predicted.class_scores is not None
        scores = predicted.scores_for(int(test.label[row])) if by_class else predicted.scores
        job = (int(test.fold[row]), int(test.seed[row]), str(test.model[row]))
        measured = measure_slide_localization(slide_id, scores, bag.labels)._asdict()
        found.append(SlideLocalization(slide_id, str(test.patient_id[row]), *job, **measured))
    return found
