"""What stands behind a row of a table: a model, and how it differs from its defaults."""

from __future__ import annotations

from typing import Any


class Variant:
    """A model with options.

    Args:
        model: registered name.
        options: arguments of its constructor.
    """

    def __init__(self, model: str, **options: Any) -> None:
        self.model = model
        self.options = options

    @property
    def name(self) -> str:
        """How its runs are called; the same in every table, so that none trains it again.

        >>> Variant("sac_mil", position="rope").name
        'sac_mil+position=rope'
        """
        return "+".join([self.model, *(f"{key}={value}" for key, value in self.options.items())])
