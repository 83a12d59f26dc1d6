"""What is predicted: one file per kind of target.

A task knows its columns, its loss, what it learns from a training set, and its metrics. Nothing
else in the package asks what kind of target it is. Another package adds one by an entry point
``sacmil.tasks``; see docs/tutorials/own-task.md.
"""

from sacmil.tasks._explanation import format_number as format_number
from sacmil.tasks._explanation import format_probability as format_probability
from sacmil.tasks._explanation import format_significant as format_significant
from sacmil.tasks._task import Choice as Choice
from sacmil.tasks._task import Curve as Curve
from sacmil.tasks._task import HasValues as HasValues
from sacmil.tasks._task import Summary as Summary
from sacmil.tasks._task import Targets as Targets
from sacmil.tasks._task import Task as Task
from sacmil.tasks.classification import Classification as Classification
from sacmil.tasks.multilabel import MultiLabel as MultiLabel
from sacmil.tasks.ordinal import Ordinal as Ordinal
from sacmil.tasks.regression import Regression as Regression
from sacmil.tasks.survival import Survival as Survival

from sacmil.tasks._registry import from_card as from_card  # isort: skip
from sacmil.tasks._registry import get_model_task as get_model_task  # isort: skip
from sacmil.tasks._registry import list_tasks as list_tasks  # isort: skip
from sacmil.tasks._registry import make_task as make_task  # isort: skip
from sacmil.tasks._registry import register_task as register_task  # isort: skip
