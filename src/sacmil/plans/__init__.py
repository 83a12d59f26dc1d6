"""Plans: what a model needs to know of a bag beforehand and weights have no part in.

Without torch, so that an exported model is planned for where there is none. Every public file is
a planner: it has ``make(coords, features, **options)``, and its name goes into a model's card.
"""

from sacmil.plans._registry import Planner, list_planners, make_plan

__all__ = ["Planner", "list_planners", "make_plan"]
