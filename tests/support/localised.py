"""Made-up localisation of models of given strength on the same slides."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sacmil.results import SlideLocalization


def localised(
    strengths: Mapping[str, float],
    *,
    patients: int = 20,
    folds: int = 4,
    seeds: int = 1,
    seed: int = 0,
) -> list[SlideLocalization]:
    """Patient i is in fold i modulo folds and has one slide; every other slide has no positives."""
    random = np.random.default_rng(seed)
    rows = []
    for model, strength in strengths.items():
        for run in range(seeds):
            for patient in range(2 * patients):
                where = (f"s{patient}", f"p{patient}", patient // 2 % folds, run, model)
                if patient % 2 == 0:
                    rows.append(SlideLocalization(*where, 50, 0, float("nan"), float("nan")))
                    continue
                auc, precision = np.clip(strength + 0.05 * random.normal(size=2), 0, 1)
                rows.append(SlideLocalization(*where, 50, 5, float(auc), float(precision)))
    return rows
