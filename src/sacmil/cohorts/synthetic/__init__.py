"""Cohorts made from a seed, with the truth of every instance known: four tasks."""

from sacmil.cohorts.synthetic.clustering import Cluster
from sacmil.cohorts.synthetic.cohort import (
    SyntheticCohort,
    cluster,
    synthetic_cohort,
    write_cohort,
)
from sacmil.cohorts.synthetic.margin import Margin
from sacmil.cohorts.synthetic.metastasis import Metastasis
from sacmil.cohorts.synthetic.oracle import CHANCE, ceiling, oracle_scores
from sacmil.cohorts.synthetic.presets import PRESETS, preset
from sacmil.cohorts.synthetic.shape import Polygons, read_shapes
from sacmil.cohorts.synthetic.slide import LabelledBag, Settings, draw, make_slide
from sacmil.cohorts.synthetic.subtype import Subtype
from sacmil.cohorts.synthetic.task import Task

__all__ = [
    "CHANCE",
    "PRESETS",
    "Cluster",
    "LabelledBag",
    "Margin",
    "Metastasis",
    "Polygons",
    "Settings",
    "Subtype",
    "SyntheticCohort",
    "Task",
    "ceiling",
    "cluster",
    "draw",
    "make_slide",
    "oracle_scores",
    "preset",
    "read_shapes",
    "synthetic_cohort",
    "write_cohort",
]
