"""What the scores of a task are called in captions and legends."""

from __future__ import annotations

from typing import NamedTuple, Self

from sacmil.tasks import Task

Effects = tuple[str, str]
"""What a tile does whose score is above zero, and below: "raises the risk", "lowers the risk"."""


class ScoreWords(NamedTuple):
    """The words of a task about its scores."""

    names_title: str = "Classes"
    """What the names of scores are."""
    has_classes: bool = True
    """Whether one of the names is predicted, so that the others are not."""
    task: Task | None = None
    """Whose scores have a sign, if they do."""

    @classmethod
    def from_task(cls, task: Task) -> Self:
        """Return the words of a task."""
        return cls(task.names_title, task.has_classes, task)

    @property
    def is_diverging(self) -> bool:
        """Whether scores by name add to a value or take from it."""
        return self.task is not None and self.task.diverging_scores

    def find_effects(self, name: str | None) -> Effects | None:
        """Return what signs of scores mean; None if they mean nothing.

        Args:
            name: of the scores; None if one score is for all names.
        """
        return self.task.describe_effects(name) if self.task and name is not None else None


def describe_effects(effects: Effects) -> str:
    """Return what the colors of diverging scores mean.

    >>> describe_effects(("raises the risk", "lowers the risk"))
    'raises the risk (red) or lowers the risk (blue)'
    """
    above, below = effects
    return f"{above} (red) or {below} (blue)"
