"""Localisation metrics of a trained model, measured while it predicts the test set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
from torch import Tensor

from sacmil.bag import Bag
from sacmil.cohorts.cohort import LabeledSlide
from sacmil.evaluation.localization import measure_slide_localization
from sacmil.models import Output
from sacmil.results import SlideLocalization
from sacmil.results.prediction import select_class_scores
from sacmil.training.loading import BagReader


class LocalizationRecorder:
    """Stores the instance labels of each bag that is read, and scores each output with them.

    Args:
        slides: slides and bag paths of the test set, in the order of prediction.
        read: reads a bag file.
        fold: of the rows.
        seed: of the rows.
        model: of the rows.
    """

    def __init__(
        self,
        slides: Sequence[tuple[LabeledSlide, Path]],
        read: BagReader,
        *,
        fold: int,
        seed: int,
        model: str,
    ) -> None:
        self.rows: list[SlideLocalization] = []
        """One for each slide so far whose bag has instance labels."""
        self._slides, self._read = iter(slides), read
        self._job = (fold, seed, model)
        self._labels: dict[Path, npt.NDArray[Any]] = {}

    def read(self, path: Path) -> Bag:
        """Read a bag and store its labels, so that no test bag is read twice."""
        bag = self._read(path)
        if bag.labels is not None:
            self._labels[path] = bag.labels
        return bag

    def add(self, output: Output) -> None:
        """Measure the output of the next slide."""
        slide, path = next(self._slides)
        labels = self._labels.pop(path, None)
        if labels is None:
            return
        by_class = None if output.class_scores is None else _to_numpy(output.class_scores)
        scores = select_class_scores(_to_numpy(output.scores), by_class, slide.label)
        self.rows.append(
            SlideLocalization(
                slide.slide_id,
                slide.patient_id,
                *self._job,
                **measure_slide_localization(slide.slide_id, scores, labels)._asdict(),
            )
        )


def _to_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    return tensor.float().cpu().numpy()
