"""A small cohort on disk: a label one can learn, patients with one or two slides."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np

from sacmil import Bag, write_bag
from sacmil.cohorts.cohort import Cohort, LabeledSlide
from sacmil.cohorts.dataset import Dataset
from sacmil.cohorts.splits import Fold, make_folds


class Material(NamedTuple):
    cohort: Cohort
    bags: dict[str, Path]
    folds: list[Fold]

    @property
    def data(self) -> Dataset:
        return Dataset(self.cohort, self.bags)


def write_material(folder: Path, patients: int = 16, dim: int = 6, folds: int = 2) -> Material:
    random = np.random.default_rng(0)
    slides, bags = [], {}
    for patient in range(patients):
        for part in range(1 + patient % 2):
            label, slide_id = patient % 4 // 2, f"slide-{patient}-{part}"
            coords = np.stack(np.divmod(random.permutation(100)[:30], 10), 1) * 256
            features = random.standard_normal((30, dim)) + 1.5 * label
            bags[slide_id] = folder / f"{slide_id}.h5"
            write_bag(bags[slide_id], Bag(slide_id, features.astype(np.float32), coords, 256, 0.5))
            slides.append(LabeledSlide(slide_id, f"patient-{patient}", label))
    cohort = Cohort(tuple(slides), ("benign", "malignant"))
    return Material(cohort, bags, make_folds(cohort, folds))
