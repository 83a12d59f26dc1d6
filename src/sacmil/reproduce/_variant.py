"""The model of a table row, and its options."""

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
        """Name of its runs, the same in every table so that tables share them.

        >>> Variant("sac_mil", position="rope").name
        'sac_mil+position=rope'
        """
        return "+".join([self.model, *(f"{key}={value}" for key, value in self.options.items())])
