"""All tasks by kind: those of this package, and those of other packages' entry points."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import ModuleType
from typing import Any

import sacmil.tasks
from sacmil.card import Card
from sacmil.errors import OptionError, SacMILError, suggest_names
from sacmil.plugins import import_public_modules, load_plugins
from sacmil.results import TaskCard, parse_task_card
from sacmil.tasks._task import Task
from sacmil.tasks.classification import Classification

_REGISTERED: dict[str, type[Task]] = {}


def register_task(task: type[Task]) -> type[Task]:
    """Make a task of your own known by its kind, as a decorator; a package uses an entry point.

    Raises:
        OptionError: the kind is that of another task.
    """
    if task.kind in _get_classes():
        raise OptionError(f"there is a task {task.kind!r} already; choose another kind")
    _REGISTERED[task.kind] = task
    return task


def _get_known() -> dict[str, type[Task]]:
    return {**_get_classes(), **_REGISTERED}


@cache
def _get_classes() -> Mapping[str, type[Task]]:
    found: dict[str, type[Task]] = {}
    for module in import_public_modules(sacmil.tasks).values():
        found |= _find_classes(module)
    for plugin in load_plugins("tasks"):
        found |= {k: v for k, v in _find_classes(plugin.value).items() if k not in found}
    return found


def _find_classes(module: ModuleType | type[Task]) -> dict[str, type[Task]]:
    """Return the tasks that a module defines, by kind."""
    values = [module] if isinstance(module, type) else list(vars(module).values())
    classes = [v for v in values if isinstance(v, type) and issubclass(v, Task) and v is not Task]
    return {each.kind: each for each in classes if hasattr(each, "kind")}


def list_tasks() -> list[str]:
    """Return the kinds of targets, sorted."""
    return sorted(_get_known())


def make_task(kind: str, **settings: Any) -> Task:
    """Return a task by its kind.

    Args:
        kind: one of list_tasks().
        settings: of that task, as its card has them.

    Example:
        >>> make_task("regression", targets="ki67").outputs
        1
    """
    if kind not in _get_known():
        raise OptionError(f"there is no task {kind!r}; {suggest_names(kind, list_tasks())}")
    try:
        return _get_known()[kind].from_settings(settings)
    except SacMILError:
        raise
    except KeyError as error:
        raise OptionError(
            f"`{error.args[0]}` is missing; expected it for the task {kind}"
            f"{_get_known()[kind].missing_hint}"
        ) from error
    except (LookupError, TypeError, ValueError) as error:
        raise OptionError(
            f"the settings of the task {kind} are {dict(settings)} ({error!r}); expected those of "
            f"sacmil.tasks.{_get_known()[kind].__name__}"
        ) from error


def get_model_task(card: Card) -> Task:
    """Return the task of a model's card; of earlier versions they are classes."""
    return from_card(card.task) if card.task else Classification(card.class_names)


def from_card(card: TaskCard | Mapping[str, Any]) -> Task:
    """Return the task of a card: what it learned included.

    Args:
        card: of predictions, or the ``task`` entry of a model's card.
    """
    try:
        known = card if isinstance(card, TaskCard) else parse_task_card(card)
    except (LookupError, TypeError, ValueError) as error:
        raise OptionError(
            f"the card's task cannot be read ({error}); copy the file again"
        ) from None
    made = make_task(known.kind, **known.settings)
    if made.card != known:
        raise OptionError(
            f"the card's settings make {made.card.description} with other columns than its own, "
            f"{', '.join((*known.target_columns, *known.prediction_columns))}; copy the file again"
        )
    return made
