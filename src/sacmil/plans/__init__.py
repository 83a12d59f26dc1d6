"""Plans: inputs of a model that are computed from a bag beforehand and do not depend on weights.

They need no torch, so that exported models run without it. A planner is a function
``plan_NAME(coords, features, **options)`` of planners.py; a model's card stores its name.
"""

from sacmil.plans.plan_folder import PlanFolder
from sacmil.plans.planners import Planner, list_planners, make_plan

__all__ = ["PlanFolder", "Planner", "list_planners", "make_plan"]
