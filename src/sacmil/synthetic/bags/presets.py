"""Every synthetic task at three difficulties."""

from __future__ import annotations

from collections.abc import Mapping

from sacmil.errors import ConfigError, suggest_names
from sacmil.synthetic.bags.findings import Findings, make_single_tumour
from sacmil.synthetic.bags.infiltration import GRADES, Infiltration
from sacmil.synthetic.bags.infiltration_survival import InfiltrationSurvival
from sacmil.synthetic.bags.slide_scale import NearOrFar, SameOrDifferent, WhichSide
from sacmil.synthetic.bags.tasks import Cluster, Margin, Metastasis, Subtype, SyntheticTask

PRESETS: Mapping[str, Mapping[str, SyntheticTask]] = {
    "metastasis": {
        "easy": Metastasis(contrast=4, lesion_share=(0.02, 0.1), likeness=0.5),
        "medium": Metastasis(contrast=3, lesion_share=(0.005, 0.03), likeness=0.8),
        "hard": Metastasis(contrast=2.5, lesion_share=(0.001, 0.01), likeness=0.9, density=0.6),
    },
    "subtype": {
        "easy": Subtype(contrast=3, own=8, other=2),
        "medium": Subtype(contrast=2, own=5, other=2),
        "hard": Subtype(contrast=1.5, own=4, other=2),
    },
    "cluster": {
        "easy": Cluster(contrast=4, clusters=3, density=0.9),
        "medium": Cluster(contrast=2.5, clusteredness=((0.0, 0.2), (0.4, 0.8))),
        "hard": Cluster(
            contrast=2, clusters=8, density=0.4, clusteredness=((0.0, 0.2), (0.2, 0.6))
        ),
    },
    "margin": {
        "easy": Margin(contrast=4, stray=0),
        "medium": Margin(contrast=3, infiltration=((0.1, 0.4), (0.6, 0.9))),
        "hard": Margin(contrast=2.5, stray=0.4, infiltration=((0.1, 0.5), (0.5, 0.9))),
    },
    "near_or_far": {
        "easy": NearOrFar(contrast=5, stray=0),
        "medium": NearOrFar(contrast=4, stray=0.5),
        "hard": NearOrFar(
            contrast=3, stray=1, lesion_share=(0.01, 0.03), distances=((0.28, 0.48), (0.56, 0.96))
        ),
    },
    "same_or_different": {
        "easy": SameOrDifferent(contrast=5, stray=0),
        "medium": SameOrDifferent(contrast=4, stray=0.5),
        "hard": SameOrDifferent(contrast=3, stray=1, lesion_share=(0.01, 0.03)),
    },
    "which_side": {
        "easy": WhichSide(contrast=5, stray=0),
        "medium": WhichSide(contrast=4, stray=0.5),
        "hard": WhichSide(contrast=3, stray=1, lesion_share=(0.01, 0.03), distance=(0.3, 0.96)),
    },
    "infiltration": {
        "easy": Infiltration(contrast=4, stray=0),
        "medium": Infiltration(contrast=3),
        "hard": Infiltration(contrast=2.5, stray=0.4),
    },
    "infiltration_grade": {
        "easy": Infiltration(contrast=4, stray=0, classes=GRADES),
        "medium": Infiltration(contrast=3, classes=GRADES),
        "hard": Infiltration(contrast=2.5, stray=0.4, classes=GRADES),
    },
    "infiltration_survival": {
        "easy": InfiltrationSurvival(contrast=4, stray=0),
        "medium": InfiltrationSurvival(contrast=3),
        "hard": InfiltrationSurvival(contrast=2.5, stray=0.4),
    },
    "findings": {
        "easy": Findings(
            contrast=4,
            clustered=Cluster(clusters=2, density=0.9),
            metastasis=Metastasis(lesions=1, lesion_share=(0.05, 0.15), likeness=0.5),
        ),
        "medium": Findings(
            contrast=3,
            clustered=Cluster(clusters=2, clusteredness=((0.0, 0.2), (0.4, 0.8))),
            infiltrated=make_single_tumour(infiltration=((0.1, 0.4), (0.6, 0.9))),
            metastasis=Metastasis(lesions=1, lesion_share=(0.02, 0.06)),
        ),
        "hard": Findings(
            contrast=2.5,
            clustered=Cluster(clusters=2, clusteredness=((0.0, 0.2), (0.2, 0.6))),
            infiltrated=make_single_tumour(stray=0.4, infiltration=((0.1, 0.5), (0.5, 0.9))),
            metastasis=Metastasis(lesions=1, lesion_share=(0.01, 0.03), likeness=0.9),
        ),
    },
}
"""Task → difficulty → settings."""


def get_preset(task: str, difficulty: str = "medium") -> SyntheticTask:
    """Return the settings of a task by name.

    Args:
        task: a key of ``PRESETS``.
        difficulty: easy, medium or hard.
    """
    if task not in PRESETS:
        raise ConfigError(f"there is no synthetic task {task!r}; {suggest_names(task, PRESETS)}")
    if difficulty not in PRESETS[task]:
        raise ConfigError(
            f"there is no difficulty {difficulty!r}; {suggest_names(difficulty, PRESETS[task])}"
        )
    return PRESETS[task][difficulty]
