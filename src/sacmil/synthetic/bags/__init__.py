"""Four tasks as cohorts made from a seed, with a known label of every instance."""

from sacmil.synthetic.bags.cluster import Cluster
from sacmil.synthetic.bags.cohort import (
    SyntheticCohort,
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
from sacmil.synthetic.bags.margin import Margin
from sacmil.synthetic.bags.metastasis import Metastasis
from sacmil.synthetic.bags.oracle import CHANCE_AUC, compute_oracle_auc, compute_oracle_scores
from sacmil.synthetic.bags.presets import PRESETS, get_preset
from sacmil.synthetic.bags.subtype import Subtype
from sacmil.synthetic.bags.task import SyntheticTask

__all__ = [
    "CHANCE_AUC",
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
    "compute_oracle_auc",
    "compute_oracle_scores",
    "draw_truth",
    "get_preset",
    "make_cluster_bags",
    "make_labeled_bag",
    "make_synthetic_cohort",
    "read_shapes",
    "write_synthetic_cohort",
]
