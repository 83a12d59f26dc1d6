"""Four tasks as cohorts made from a seed, with a known label of every instance."""

from sacmil.synthetic.bags.cohort import (
    SyntheticCohort,
    compute_oracle_scores,
    make_cluster_bags,
    make_synthetic_cohort,
    write_synthetic_cohort,
)
from sacmil.synthetic.bags.labeled_bag import (
    LabeledBag,
    SyntheticBagSettings,
    draw_truth,
    make_labeled_bag,
)
from sacmil.synthetic.bags.lesion_shape import Polygons, read_shapes
from sacmil.synthetic.bags.tasks import PRESETS, Cluster, Margin, Metastasis, Subtype, SyntheticTask

__all__ = [
    "PRESETS",
    "Cluster",
    "LabeledBag",
    "Margin",
    "Metastasis",
    "Polygons",
    "Subtype",
    "SyntheticBagSettings",
    "SyntheticCohort",
    "SyntheticTask",
    "compute_oracle_scores",
    "draw_truth",
    "make_cluster_bags",
    "make_labeled_bag",
    "make_synthetic_cohort",
    "read_shapes",
    "write_synthetic_cohort",
]
