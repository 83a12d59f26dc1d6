"""Eleven tasks as cohorts made from a seed, with a known label of every instance."""

from sacmil.synthetic.bags.cohort import LabeledBag as LabeledBag
from sacmil.synthetic.bags.cohort import SyntheticBagSettings as SyntheticBagSettings
from sacmil.synthetic.bags.cohort import SyntheticCohort as SyntheticCohort
from sacmil.synthetic.bags.cohort import compute_oracle_scores as compute_oracle_scores
from sacmil.synthetic.bags.cohort import draw_truth as draw_truth
from sacmil.synthetic.bags.cohort import make_labeled_bag as make_labeled_bag
from sacmil.synthetic.bags.cohort import make_synthetic_cohort as make_synthetic_cohort
from sacmil.synthetic.bags.cohort import write_synthetic_cohort as write_synthetic_cohort
from sacmil.synthetic.bags.findings import Findings as Findings
from sacmil.synthetic.bags.infiltration import Infiltration as Infiltration
from sacmil.synthetic.bags.infiltration_survival import (
    InfiltrationSurvival as InfiltrationSurvival,
)
from sacmil.synthetic.bags.infiltration_survival import SurvivalTruth as SurvivalTruth
from sacmil.synthetic.bags.lesion_shape import Polygons as Polygons
from sacmil.synthetic.bags.lesion_shape import read_shapes as read_shapes
from sacmil.synthetic.bags.presets import PRESETS as PRESETS
from sacmil.synthetic.bags.slide_scale import NearOrFar as NearOrFar
from sacmil.synthetic.bags.slide_scale import SameOrDifferent as SameOrDifferent
from sacmil.synthetic.bags.slide_scale import WhichSide as WhichSide
from sacmil.synthetic.bags.tasks import Cluster as Cluster
from sacmil.synthetic.bags.tasks import Margin as Margin
from sacmil.synthetic.bags.tasks import Metastasis as Metastasis
from sacmil.synthetic.bags.tasks import Subtype as Subtype
from sacmil.synthetic.bags.tasks import SyntheticTask as SyntheticTask
