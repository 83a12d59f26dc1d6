"""Plans: inputs of a model that are computed from a bag beforehand and do not depend on weights.

They need no torch, so that exported models run without it. Every public file is a planner: it has
``make(coords, features, **options)``, and its name is stored in a model's card.
"""

from sacmil.plans._registry import Planner, list_planners, make_plan

__all__ = ["Planner", "list_planners", "make_plan"]
